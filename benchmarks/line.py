"""What TLS costs, and what a flood of handshakes does: the real server, on plain sockets and on TLS, side by side.

Plain sockets are this script's own; everything above them is the same. Four parts: time, bytes and the server's time
per request; 256 clients that connect and subscribe at once, with the server's memory; and, while attackers on one
address shake hands as fast as they can, how long newcomers, and members that come back, wait for the state, and a
member that is connected for an answer.
Ratios are of figures measured in the same run.
"""

import argparse
import itertools
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import trio
from _table import build_parser, finish, print_table
from kits.middle import open_middle

from psyche.backends.tcp.backend import Platform, open_backend
from psyche.backends.tcp.dial import Connect, ServerAddress, ask, dial
from psyche.config.load import load_run
from psyche.core.state.messages import Join
from psyche.errors import PsycheError
from psyche.server.server import BoundListener, ServerSettings, listen_tls, run_server
from psyche.wire import backend as wire
from psyche.wire.access import OPEN
from psyche.wire.address_record import sign_address_record
from psyche.wire.crypto import Identity, blake3_hash
from psyche.wire.line.framing import FrameStream
from psyche.wire.line.tls import TlsConnection, make_channel, secure_client

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
ELSEWHERE = "127.0.0.2"  # where honest clients come from while attackers come from HOST
SERVER = Identity(bytes([7]) * 32)
KINDS = ("plain", "tls")
PARTS = ("requests", "clients", "floods")
BURST = 100  # requests that one connection may send at once
DEADLINE_S = 120.0
NEWCOMER, RETURNING = "newcomer", "member that comes back"
ARRIVING = (NEWCOMER, RETURNING)
PARALLEL = 64  # connections of each attacker at a time


def get_connect(kind: str, source: str | None = None) -> Connect:
    """How to connect, from which of this machine's addresses."""

    async def connect(host: str, port: int) -> TlsConnection:
        stream = await trio.open_tcp_stream(host, port, local_address=source)
        return await secure_client(stream) if kind == "tls" else TlsConnection(stream, make_channel(SERVER))

    return connect


async def listen_plain(host: str, port: int, _identity: Identity) -> BoundListener:
    (listener,) = await trio.open_tcp_listeners(port, host=host)
    return BoundListener(listener, listener.socket.getsockname()[1])


def get_identity(name: str, number: int) -> Identity:
    return Identity(blake3_hash(name.encode(), number.to_bytes(4, "little")))


def get_address(port: int) -> ServerAddress:
    return ServerAddress(host=HOST, port=port, key=SERVER.public)


async def serve(kind: str, folder: Path) -> None:
    """The server's process: says its port, and serves until it is killed."""
    listen = listen_tls if kind == "tls" else listen_plain
    run = load_run(ROOT / "config" / "dummy" / "run.toml")
    settings = ServerSettings(run=run, identity=SERVER, state_dir=folder / kind, host=HOST, listen=listen, access=OPEN)
    async with trio.open_nursery() as nursery:
        print((await nursery.start(run_server, settings)).port, flush=True)


@dataclass(frozen=True)
class Server:
    """A server's process."""

    kind: str
    pid: int
    port: int

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_mib(self) -> float:
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def start(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """This script in a process of its own, until the block ends."""
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def open_server(kind: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder, start("--serve", kind, "--folder", folder) as process:
        assert process.stdout is not None
        yield Server(kind, process.pid, int(process.stdout.readline()))


async def time_requests(server: Server, rounds: int) -> tuple[list[float], float]:
    """Milliseconds of each request, and of the server's processor for one."""
    took: list[float] = []
    cpu_s = 0.0
    for number in range(rounds):
        dialed = await dial(get_address(server.port), get_identity("asker", number), get_connect(server.kind))
        before_s = server.cpu_s
        for count in range(BURST):
            began = time.perf_counter()
            await ask(dialed.frames, wire.Request(count + 1, wire.PingRequest()))
            took.append(1e3 * (time.perf_counter() - began))
        cpu_s += server.cpu_s - before_s
        await dialed.frames.aclose()
    return took, 1e3 * cpu_s / len(took)


async def time_greetings(server: Server, count: int) -> float:
    """Milliseconds from the first packet to the answered hello."""
    took: list[float] = []
    for number in range(count):
        began = time.perf_counter()
        dialed = await dial(get_address(server.port), get_identity("greeted", number), get_connect(server.kind))
        took.append(1e3 * (time.perf_counter() - began))
        await dialed.frames.aclose()
    return statistics.median(took)


async def count_bytes(server: Server) -> tuple[int, float]:
    """Bytes both ways on the line until the server has said hello, and for each request after it."""
    async with open_middle(server.port) as middle:
        dialed = await dial(get_address(middle.port), get_identity("counted", 0), get_connect(server.kind))
        (session,) = middle.sessions
        before = len(session.to_client) + len(session.to_server)
        for count in range(BURST):
            await ask(dialed.frames, wire.Request(count + 1, wire.PingRequest()))
        after = len(session.to_client) + len(session.to_server)
        await dialed.frames.aclose()
    return before, (after - before) / BURST


async def gather(server: Server, clients: int) -> tuple[float, float]:
    """Seconds until all clients that come at once have the state, and the server's memory for each, in KiB."""
    left, done = clients, trio.Event()
    before_mib, began = server.memory_mib, time.perf_counter()

    async def follow(number: int) -> None:
        nonlocal left
        platform = Platform(connect=get_connect(server.kind))
        async with open_backend(get_address(server.port), get_identity("crowd", number), platform=platform) as backend:
            async for _ in backend.states():
                break
            left -= 1
            if not left:
                done.set()
            await trio.sleep_forever()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(follow, number)
            await done.wait()
            took_s, memory_mib = time.perf_counter() - began, server.memory_mib
            nursery.cancel_scope.cancel()
    return took_s, 1024 * (memory_mib - before_mib) / clients


async def shake_hands(kind: str, port: int) -> None:
    """Whole handshakes, as many as can be; prints how many each second."""
    connect, address, identity = get_connect(kind, HOST), get_address(port), get_identity("attacker", os.getpid())
    count = 0

    async def repeat() -> None:
        nonlocal count
        while True:
            with suppress(PsycheError):
                await (await dial(address, identity, connect)).frames.aclose()
                count += 1

    async with trio.open_nursery() as nursery:
        for _ in range(PARALLEL):
            nursery.start_soon(repeat)
        while True:
            before = count
            await trio.sleep(1)
            print(count - before, flush=True)


def open_connections(kind: str, port: int) -> None:
    """What costs the server most and the attacker least: a first message computed once, then the next connection."""
    opening = trio.run(record_opening, kind, port)
    held: deque[socket.socket] = deque()
    since_s, count = time.perf_counter(), 0
    while True:
        with suppress(OSError):
            held.append(socket.create_connection((HOST, port), timeout=1, source_address=(HOST, 0)))
            held[-1].sendall(opening)
            count += 1
        if len(held) > PARALLEL:
            held.popleft().close()
        if time.perf_counter() - since_s > 1:
            print(count, flush=True)
            since_s, count = time.perf_counter(), 0


async def record_opening(kind: str, port: int) -> bytes:
    """The first bytes that a client sends: a record of TLS, or a frame."""
    async with open_middle(port) as middle:
        while True:  # the other attacker has begun, and this one may be turned away
            with suppress(PsycheError):
                dialed = await dial(get_address(middle.port), get_identity("attacker", 0), get_connect(kind))
                break
        await dialed.frames.aclose()
        raw = bytes(middle.sessions[-1].to_server)
    size_bytes = 5 + int.from_bytes(raw[3:5], "big") if kind == "tls" else 4 + int.from_bytes(raw[:4], "little")
    return raw[:size_bytes]


@dataclass(frozen=True)
class Flood:
    """What a flood did; seconds until each that arrived had the state, and milliseconds of requests."""

    per_s: float
    arrivals_s: dict[tuple[str, str], list[float]]  # (who, from where) -> each that arrived
    requests_ms: list[float]


async def flood(server: Server, what: str, seconds: float) -> Flood:
    """Who arrives while attackers do, from their address and from another, and a member that is served."""
    arrivals_s = {(who, source): list[float]() for who in ARRIVING for source in (HOST, ELSEWHERE)}
    requests_ms: list[float] = []
    member = await open_member(server, get_identity("member", 0))
    for source in (HOST, ELSEWHERE):
        await (await open_member(server, get_identity(source, 0))).aclose()
    arguments = ("--attack", server.kind, "--what", what, "--port", str(server.port))
    with start(*arguments) as one, start(*arguments) as other:
        attackers = (one, other)
        for process in attackers:
            assert process.stdout is not None
            await trio.to_thread.run_sync(process.stdout.readline)
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_on, member, requests_ms)
                for (who, source), found in arrivals_s.items():
                    nursery.start_soon(arrive_on, server, who, source, found)
        rates = [await trio.to_thread.run_sync(read_rates, process) for process in attackers]
    return Flood(sum(rates), arrivals_s, requests_ms)


async def open_member(server: Server, identity: Identity) -> FrameStream:
    """The connection of a client that has joined."""
    dialed = await dial(get_address(server.port), identity, get_connect(server.kind, ELSEWHERE))
    record = sign_address_record(identity, ["/ip4/127.0.0.1/tcp/4001"], int(time.time()) + 3_600)
    bodies = (wire.SubscribeRequest(), wire.build_submit(Join(record.p2p), record))
    for number, body in enumerate(bodies, 1 << 40):
        await ask(dialed.frames, wire.Request(number, body))
    return dialed.frames


def read_rates(process: subprocess.Popen[bytes]) -> float:
    process.terminate()
    assert process.stdout is not None
    return statistics.mean([int(line) for line in process.stdout.read().split()] or [0])


async def arrive_on(server: Server, who: str, source: str, took: list[float]) -> None:
    """One newcomer after the other, or a member again and again: seconds until it has the state, over all its tries."""
    platform = Platform(connect=get_connect(server.kind, source))
    for number in itertools.count(1):
        began, is_there = time.perf_counter(), False
        try:
            identity = get_identity(source, 0 if who == RETURNING else number)
            async with open_backend(get_address(server.port), identity, platform=platform) as backend:
                async for _ in backend.states():
                    is_there = True
                    break
        finally:  # one that is still waiting at the end counts as it is
            if is_there or time.perf_counter() - began > 1:
                took.append(time.perf_counter() - began)


async def ask_on(frames: FrameStream, took: list[float]) -> None:
    """Milliseconds of each request of a member, once every 100 ms."""
    for number in itertools.count(1):
        began = time.perf_counter()
        await ask(frames, wire.Request(number, wire.PingRequest()))
        took.append(1e3 * (time.perf_counter() - began))
        await trio.sleep(0.1)


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--attack", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--what", default="whole", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=PARTS, help="measure this alone")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        trio.run(serve, args.serve, args.folder)
    elif args.attack:
        if args.what == "whole":
            trio.run(shake_hands, args.attack, args.port)
        open_connections(args.attack, args.port)
    else:
        finish(args, report(args.quick, (args.part,) if args.part else PARTS))


def report(quick: bool, parts: Sequence[str]) -> dict[str, float]:
    """Measure both kinds in turns, and print what was found."""
    result: dict[str, float] = {}
    for part in parts:
        found: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
        {"requests": measure_requests, "clients": measure_clients, "floods": measure_floods}[part](quick, found)
        rows = [
            (name, figure, found["tls"][name], found["tls"][name] / figure) for name, figure in found["plain"].items()
        ]
        print_table(part, ("", "plain", "TLS", "ratio"), rows)
        result |= {f"{kind}: {name}": figure for kind, figures in found.items() for name, figure in figures.items()}
    return result


def measure_requests(quick: bool, found: dict[str, dict[str, float]]) -> None:
    rounds = 3 if quick else 20
    with open_server("plain") as plain, open_server("tls") as tls:
        for server in (plain, tls):
            found[server.kind] |= trio.run(ask_and_greet, server, rounds)


async def ask_and_greet(server: Server, rounds: int) -> dict[str, float]:
    await time_requests(server, 1)  # warm
    took_ms, cpu_ms = await time_requests(server, rounds)
    greeting_bytes, request_bytes = await count_bytes(server)
    return {
        "request, ms": statistics.median(took_ms),
        "request, server's processor, ms": cpu_ms,
        "request and answer, bytes": request_bytes,
        "greeting, ms": await time_greetings(server, 10 * rounds),
        "greeting, bytes": float(greeting_bytes),
    }


def measure_clients(quick: bool, found: dict[str, dict[str, float]]) -> None:
    clients = 32 if quick else 256
    for kind in KINDS:
        with open_server(kind) as server:
            took_s, memory_kib = trio.run(gather, server, clients)
            found[kind] |= {f"{clients} clients have the state, s": took_s, "server's memory for each, KiB": memory_kib}


def measure_floods(quick: bool, found: dict[str, dict[str, float]]) -> None:
    for what in ("whole", "opening"):
        for kind in KINDS:
            with open_server(kind) as server:
                found[kind] |= describe_flood(what, trio.run(flood, server, what, 4.0 if quick else 15.0))


def describe_flood(what: str, flood: Flood) -> dict[str, float]:
    found = {f"{what}: attackers' connections a second": flood.per_s}
    for (who, source), took in flood.arrivals_s.items():
        where = "the same address" if source == HOST else "another address"
        found |= {f"{what}: {who} from {where}, {key}": figure for key, figure in summarize(took, "s").items()}
    return found | {
        f"{what}: request served, {key}": figure for key, figure in summarize(flood.requests_ms, "ms").items()
    }


def summarize(took: list[float], unit: str) -> dict[str, float]:
    ordered = sorted(took) or [math.inf]
    return {f"median {unit}": ordered[len(ordered) // 2], f"longest {unit}": ordered[-1]}


if __name__ == "__main__":
    main()
