"""What a node holds while strangers fill its connections: resident memory, and an honest transfer beside it.

The node, the strangers and an honest source are processes of their own on loopback. In a wave every stranger
connects, is let in, asks for 16 MiB that it does not read, and pushes what the node then does not read; where it is
cut, it comes again until the wave ends. Then the strangers fall silent (stopped, their connections open), and at last
they are killed. Memory is read from outside, so any version of the node can be measured.
"""

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import trio
from _table import build_parser, finish, print_table

from psyche.network.blobs.messages import BlobRequest, encode_blob_request
from psyche.network.limits import NetworkLimits
from psyche.network.node import P2PNode, get_peer_id, open_node
from psyche.wire.address_record import AddressRecord, sign_address_record
from psyche.wire.crypto import Identity

MIB: Final = 1 << 20
RUN, PLAN = b"\1" * 32, b"\2" * 32
NODE, SOURCE, FIRST_STRANGER = 0, 1, 10
STRANGERS: Final = 16
PROCESSES: Final = 2  # that the strangers share
PUSH_BYTES: Final = 63 * MIB  # by each stranger on one connection: below what a single one was ever allowed
PAYLOAD_BYTES: Final = 16 * MIB
FRAME_BYTES: Final = 65_536 - 12
REST_S: Final = 8.0  # after the strangers are gone, until memory is read
SAMPLE_S: Final = 0.05
TELL_S: Final = 0.5
LIMITS: Final = NetworkLimits(memory_blob_bytes=256 * MIB)
EVERYBODY: Final = (NODE, SOURCE, *range(FIRST_STRANGER, FIRST_STRANGER + STRANGERS))


def get_identity(number: int) -> Identity:
    """The node is 0, the source 1, strangers follow from 10 on."""
    return Identity(number.to_bytes(32, "big"))


def get_key(number: int) -> bytes:
    return get_identity(number).public


async def read_line() -> str:
    return await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


# the node and the source


async def serve(number: int) -> None:
    """A node that offers a payload; on each line of its input it fetches the one that the line names."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_node(get_identity(number), "127.0.0.1", 0, Path(folder), limits=LIMITS) as node:
            node.set_plan(RUN, PLAN)
            node.set_allowed(frozenset(get_key(n) for n in EVERYBODY))
            blob = await node.provide(bytes([number]) * PAYLOAD_BYTES, expires=None)
            say(address=node.address_record().addresses[0], blob=blob.hex())
            while line := (await read_line()).split():
                if line[0] == "meet":
                    node.set_addresses([sign_address_record(get_identity(SOURCE), [line[1]], 1 << 40)])
                    with trio.fail_after(60):
                        await node.wait_for_peers(frozenset({get_key(SOURCE)}))
                    say(met=True)
                else:
                    say(seconds=await fetch(node, bytes.fromhex(line[1])))
    os._exit(0)


async def fetch(node: P2PNode, blob: bytes) -> float:
    start = perf_counter()
    await node.fetch(blob, [get_key(SOURCE)], size_bytes=PAYLOAD_BYTES, deadline=trio.current_time() + 300)
    await node.withdraw(blob)
    return perf_counter() - start


# the strangers


async def attack(numbers: Sequence[int], record: AddressRecord, blob: bytes) -> None:
    """Push until somebody ends this process; tells now and then how much."""
    pushed = [0]
    async with trio.open_nursery() as nursery:
        for number in numbers:
            nursery.start_soon(keep_pushing, number, record, blob, pushed)
        while True:
            say(pushed=pushed[0])
            await trio.sleep(TELL_S)


async def keep_pushing(number: int, record: AddressRecord, blob: bytes, pushed: list[int]) -> None:
    while True:
        with tempfile.TemporaryDirectory() as folder:
            async with open_node(get_identity(number), "127.0.0.1", 0, Path(folder)) as node:
                node.set_plan(RUN, PLAN)
                node.set_allowed(frozenset({record.p2p}))
                node.set_addresses([record])
                await node.wait_for_peers(frozenset({record.p2p}))
                with contextlib.suppress(Exception):  # it was cut
                    await push(node, record.p2p, blob, pushed)
        await trio.sleep(0.1)


async def push(node: P2PNode, key: bytes, blob: bytes, pushed: list[int]) -> None:
    transport: Any = node._transport  # noqa: SLF001 - here and below: no honest node does what follows
    connection = transport._swarm.get_connections(get_peer_id(key))[0]  # noqa: SLF001
    stream = await transport._host.new_stream(get_peer_id(key), ["/psyche/blob/1"])  # noqa: SLF001
    await stream.write(encode_blob_request(BlobRequest(blob, 0, 16)) * 4)
    header = struct.pack("!BBHII", 0, 0, 0, stream.muxed_stream.stream_id, FRAME_BYTES)
    for _ in range(PUSH_BYTES // FRAME_BYTES):
        if connection.is_closed:
            return
        await connection.muxed_conn.secured_conn.write(header + bytes(FRAME_BYTES))
        pushed[0] += FRAME_BYTES
    await connection.event_closed.wait()


# the measurement


class Child:
    """A process of this script that answers lines of JSON."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._input, self._output = process.stdin, process.stdout
        self.ready = self.read()

    def read(self) -> dict[str, Any]:
        line = self._output.readline()
        return json.loads(line) if line else {"pushed": 0}

    def write(self, line: str) -> None:
        self._input.write(line + "\n")
        self._input.flush()

    async def ask(self, line: str) -> dict[str, Any]:
        self.write(line)
        return await trio.to_thread.run_sync(self.read)


@contextmanager
def start_child(*arguments: str) -> Iterator[Child]:
    command = [sys.executable, __file__, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield Child(process)
        finally:
            process.kill()


def read_memory(pid: int) -> float:
    """What a process has resident, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


async def watch(pid: int, peak: list[float]) -> None:
    while True:
        peak[0] = max(peak[0], read_memory(pid))
        await trio.sleep(SAMPLE_S)


async def run_wave(node: Child, fetched: str, wave_s: float, silent_s: float) -> dict[str, Any]:
    """One wave, with honest transfers one after another beside it."""
    peak, took, pushed = [0.0], list[float](), [0] * PROCESSES
    numbers = [str(n) for n in EVERYBODY[2:]]
    with ExitStack() as stack:
        where = (node.ready["address"], node.ready["blob"])
        parts = [",".join(numbers[part::PROCESSES]) for part in range(PROCESSES)]
        strangers = [stack.enter_context(start_child("attack", part, *where)) for part in parts]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, node.pid, peak)
            for index, stranger in enumerate(strangers):
                nursery.start_soon(follow, stranger, pushed, index)
            end = trio.current_time() + wave_s
            while trio.current_time() < end:
                took.append((await node.ask(f"fetch {fetched}"))["seconds"])
            for stranger in strangers:
                os.kill(stranger.pid, signal.SIGSTOP)
            await trio.sleep(silent_s)
            nursery.cancel_scope.cancel()
        silent = read_memory(node.pid)
    await trio.sleep(REST_S)
    return {
        "pushed_mib": sum(pushed) / MIB, "peak_mib": peak[0], "silent_mib": silent,
        "after_mib": read_memory(node.pid), "seconds": median(took),
    }  # fmt: skip


async def follow(stranger: Child, pushed: list[int], index: int) -> None:
    while True:
        told = await trio.to_thread.run_sync(stranger.read, abandon_on_cancel=True)
        pushed[index] = told["pushed"]


async def measure(node: Child, source: Child, waves: int, wave_s: float, silent_s: float) -> dict[str, Any]:
    await node.ask(f"meet {source.ready['address']}")
    fetched = source.ready["blob"]
    idle = [(await node.ask(f"fetch {fetched}"))["seconds"] for _ in range(5)]
    before = read_memory(node.pid)
    results = [await run_wave(node, fetched, wave_s, silent_s) for _ in range(waves)]
    idle += [(await node.ask(f"fetch {fetched}"))["seconds"] for _ in range(5)]
    return {"before_mib": before, "idle_s": median(idle), "waves": results}


def main() -> None:
    args = build_parser(__doc__).parse_args()
    waves, wave_s, silent_s = (2, 8.0, 2.0) if args.quick else (3, 12.0, 30.0)
    with start_child("serve", str(NODE)) as node, start_child("serve", str(SOURCE)) as source:
        result = trio.run(measure, node, source, waves, wave_s, silent_s)
    rows = [
        (number + 1, w["pushed_mib"], w["peak_mib"], w["silent_mib"], w["after_mib"], result["idle_s"] / w["seconds"])
        for number, w in enumerate(result["waves"])
    ]
    title = f"{STRANGERS} strangers fill a node; resident before: {result['before_mib']:.0f} MiB"
    print_table(title, ["wave", "pushed, MiB", "peak, MiB", "silent, MiB", "gone, MiB", "honest rate, of idle"], rows)
    finish(args, result)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        trio.run(serve, int(sys.argv[2]))
    elif sys.argv[1:2] == ["attack"]:
        told = sign_address_record(get_identity(NODE), [sys.argv[3]], 1 << 40)
        trio.run(attack, [int(n) for n in sys.argv[2].split(",")], told, bytes.fromhex(sys.argv[4]))
    else:
        main()
