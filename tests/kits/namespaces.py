"""A separate machine for each node, as far as the kernel can emulate one, on lines with delay and loss.

    with open_namespaces({"server": Line(), "client-1": Line(delay_s=0.05, loss=0.01)}) as machines:
        subprocess.Popen([*machines.prefix["server"], "psyche", "server", "run", ...])

Each node has a network namespace with one interface. A process of ours carries its packets to the others,
delayed by both lines, and drops some of them, so that kernels without `netem` will do. Loopback stays down, so that
no traffic takes another way. Needs root and iproute2.
"""

import argparse
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from random import SystemRandom
from typing import Final

from psyche.errors import PsycheError

IP_S: Final = 60.0
MTU_BYTES: Final = 16_000  # large packets, so that there are fewer to carry
_TUNSETIFF: Final = 0x400454CA
_TUN_WITHOUT_HEADER: Final = 0x0001 | 0x1000


@dataclass(frozen=True, slots=True)
class Line:
    """The conditions between a machine and the network, the same both ways."""

    delay_s: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class Namespaces:
    """The namespace and the address of each node."""

    program: str
    names: dict[str, str]
    addresses: dict[str, str]

    @property
    def prefix(self) -> dict[str, list[str]]:
        """The command that a node's command line starts with."""
        return {node: [self.program, "netns", "exec", name] for node, name in self.names.items()}


class NoNamespaces(PsycheError):
    """Network namespaces are not available here; the message says why."""


@contextmanager
def open_namespaces(nodes: Mapping[str, Line], *, seed: int = 0) -> Iterator[Namespaces]:
    """Namespaces that reach each other; they are deleted when the block ends.

    Raises:
        NoNamespaces: the machine lacks something that they need, or does not allow them.
    """
    program = shutil.which("ip")
    if program is None:
        raise NoNamespaces("iproute2 is not installed: there is no `ip` to make network namespaces with")
    if os.geteuid() != 0:
        raise NoNamespaces("only root may make network namespaces")
    tag = f"{SystemRandom().randrange(16**6):06x}"
    network = f"10.{83 + os.getpid() % 100}.{SystemRandom().randrange(256)}"
    addresses = {node: f"{network}.{number}" for number, node in enumerate(nodes, 1)}
    made = Namespaces(program, {node: f"psy-{tag}-{node}" for node in nodes}, addresses)
    with ExitStack() as stack:
        try:
            tunnels = [_open_machine(stack, made, node, f"psy{tag}{number}") for number, node in enumerate(nodes)]
        except subprocess.CalledProcessError as error:
            raise NoNamespaces(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error
        except OSError as error:
            raise NoNamespaces(f"no tunnel device: {error}") from error
        ends = [End(addresses[node], tunnel, nodes[node]) for node, tunnel in zip(nodes, tunnels, strict=True)]
        stack.enter_context(_carry(ends, seed))
        yield made


def _open_machine(stack: ExitStack, made: Namespaces, node: str, device: str) -> int:
    """Create a namespace; return the descriptor of the tunnel behind its only interface."""
    name, address = made.names[node], made.addresses[node]
    _run(made.program, "netns", "add", name)
    stack.callback(subprocess.run, [made.program, "netns", "del", name], check=False, capture_output=True, timeout=IP_S)
    tunnel = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    stack.callback(os.close, tunnel)
    fcntl.ioctl(tunnel, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TUN_WITHOUT_HEADER))
    _run(made.program, "link", "set", device, "netns", name)
    inside = ("-n", name)
    _run(made.program, *inside, "addr", "add", f"{address}/24", "dev", device)
    _run(made.program, *inside, "link", "set", device, "mtu", str(MTU_BYTES), "up")
    return tunnel


def _run(program: str, *arguments: str) -> None:
    subprocess.run([program, *arguments], check=True, capture_output=True, text=True, timeout=IP_S)


@dataclass(frozen=True, slots=True)
class End:
    """A machine's end of the network: an IPv4 address and a tunnel's descriptor."""

    address: str
    tunnel: int
    line: Line

    def format(self) -> str:
        return f"{self.address}={self.tunnel}={self.line.delay_s}={self.line.loss}"


def parse_end(text: str) -> End:
    address, tunnel, delay_s, loss = text.split("=")
    return End(address, int(tunnel), Line(float(delay_s), float(loss)))


@contextmanager
def _carry(ends: Sequence[End], seed: int) -> Iterator[None]:
    """Run a process that carries packets until the block, or this process, ends."""
    command = [sys.executable, __file__, "--seed", str(seed), *(end.format() for end in ends)]
    tunnels = [end.tunnel for end in ends]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=tunnels) as carrier:
        try:
            yield
        finally:
            carrier.kill()


class Carrier:
    """Carries IPv4 packets between ends, by address."""

    def __init__(self, ends: Sequence[End], rng: random.Random) -> None:
        self._by_tunnel = {end.tunnel: end for end in ends}
        self._by_address = {IPv4Address(end.address).packed: end for end in ends}
        self._rng = rng
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def run(self) -> None:
        poll = select.poll()
        for tunnel in (sys.stdin.fileno(), *self._by_tunnel):
            poll.register(tunnel, select.POLLIN)
        while True:
            left_s = self._waiting[0][0] - time.monotonic() if self._waiting else None
            for source, _ in poll.poll(None if left_s is None else max(0.0, left_s * 1e3)):
                if source == sys.stdin.fileno():
                    return
                self._take(self._by_tunnel[source].line, os.read(source, MTU_BYTES))
            self._give()

    def _take(self, line: Line, packet: bytes) -> None:
        target = self._by_address.get(packet[16:20]) if packet[0] >> 4 == 4 else None
        if target is not None and self._rng.random() < (1 - line.loss) * (1 - target.line.loss):
            self._count += 1  # the count keeps packets with equal times in order
            due = time.monotonic() + line.delay_s + target.line.delay_s
            heapq.heappush(self._waiting, (due, self._count, target.tunnel, packet))

    def _give(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, tunnel, packet = heapq.heappop(self._waiting)
            os.write(tunnel, packet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of which packets are lost")
    parser.add_argument("ends", nargs="+", type=parse_end, metavar="ADDRESS=TUNNEL=DELAY=LOSS")
    given = parser.parse_args()
    Carrier(given.ends, random.Random(given.seed)).run()


if __name__ == "__main__":
    main()
