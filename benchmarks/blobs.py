"""The rate of a blob over our libp2p node against raw TCP, in one run: with one source and with three.

Sources are processes of their own on loopback, so on a machine with few cores the sources and the
receiver compete; ratios within one round are what the figures are good for.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import trio
from _table import build_parser, finish, print_table

from psyche.network.limits import NetworkLimits
from psyche.network.node import P2PNode, open_node
from psyche.wire.address_record import AddressRecord, sign_address_record
from psyche.wire.crypto import Identity

MIB = 1 << 20
RUN, PLAN = b"\1" * 32, b"\2" * 32
LIMITS = NetworkLimits(memory_blob_bytes=4 << 30)
READ_BYTES = 1 << 20
TIMEOUT_S = 300.0


def get_identity(number: int) -> Identity:
    """The receiver is 0, the sources are 1, 2 and 3."""
    return Identity(number.to_bytes(32, "big"))


@dataclass(frozen=True)
class Source:
    record: AddressRecord
    raw_port: int
    blob: bytes


async def serve(number: int, path: Path) -> None:
    """A source: the blob over our node, and the same bytes over raw TCP; ends with its standard input."""
    data = path.read_bytes()  # noqa: ASYNC240 - before anything runs

    async def send(stream: trio.SocketStream) -> None:
        await stream.send_all(data)
        await stream.aclose()

    async def end_with_input() -> None:
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        os._exit(0)

    with tempfile.TemporaryDirectory() as folder:
        async with open_node(get_identity(number), "127.0.0.1", 0, Path(folder), limits=LIMITS) as node:
            node.set_plan(RUN, PLAN)
            node.set_allowed(frozenset({get_identity(0).public}))
            blob = await node.provide(path, expires=None)
            async with trio.open_nursery() as nursery:
                listeners = await nursery.start(partial(trio.serve_tcp, send, 0, host="127.0.0.1"))
                raw_port = listeners[0].socket.getsockname()[1]
                address = node.address_record().addresses[0]
                print(json.dumps({"address": address, "raw_port": raw_port, "blob": blob.hex()}), flush=True)
                await end_with_input()


@contextmanager
def start_source(number: int, path: Path) -> Iterator[Source]:
    command = [sys.executable, __file__, "serve", str(number), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            record = sign_address_record(get_identity(number), [ready["address"]], 1 << 40)
            yield Source(record, ready["raw_port"], bytes.fromhex(ready["blob"]))
        finally:
            process.kill()


async def fetch_raw(source: Source, target: Path) -> None:
    """Plain TCP to a file: no encryption, no hashes, no multiplexing."""
    async with await trio.open_tcp_stream("127.0.0.1", source.raw_port) as stream:
        with target.open("wb") as file:
            while part := await stream.receive_some(READ_BYTES):
                file.write(part)


async def fetch_file(node: P2PNode, sources: Sequence[Source], size: int, folder: Path) -> None:
    keys = [s.record.p2p for s in sources]
    deadline = trio.current_time() + TIMEOUT_S
    found = await node.fetch_many([(sources[0].blob, size)], keys, folder, deadline=deadline)
    await node.withdraw(sources[0].blob)
    found[sources[0].blob].unlink()


async def fetch_payload(node: P2PNode, source: Source, size: int) -> None:
    deadline = trio.current_time() + TIMEOUT_S
    await node.fetch(source.blob, [source.record.p2p], size_bytes=size, deadline=deadline)
    await node.withdraw(source.blob)


async def measure(ways: dict[str, Callable[[], Awaitable[None]]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(seconds, own CPU seconds) of every way, in turn, so that all see the same machine."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start, cpu = perf_counter(), get_cpu_s()
            await way()
            if number:  # the first round warms up
                took[name].append((perf_counter() - start, get_cpu_s() - cpu))
    return took


def get_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def run(size: int, rounds: int, folder: Path, sources: list[Source]) -> dict[str, list[tuple[float, float]]]:
    async with open_node(get_identity(0), "127.0.0.1", 0, folder / "node", limits=LIMITS) as node:
        keys = frozenset(s.record.p2p for s in sources)
        node.set_plan(RUN, PLAN)
        node.set_allowed(keys)
        node.set_addresses([s.record for s in sources])
        with trio.fail_after(60):
            await node.wait_for_peers(keys)

        async def to_file(chosen: Sequence[Source]) -> None:
            await fetch_file(node, chosen, size, folder / "copies")

        return await measure(
            {
                "raw TCP to a file": partial(fetch_raw, sources[0], folder / "raw"),
                "payload, 1 source": partial(fetch_payload, node, sources[0], size),
                "file, 1 source": partial(to_file, sources[:1]),
                "file, 3 sources": partial(to_file, sources),
            },
            rounds,
        )


def main() -> None:
    args = build_parser(__doc__).parse_args()
    size, rounds = (32 * MIB, 2) if args.quick else (128 * MIB, 5)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        path = folder / "blob"
        path.write_bytes(os.urandom(size))
        sources = [stack.enter_context(start_source(number, path)) for number in (1, 2, 3)]
        took = trio.run(run, size, rounds, folder, sources)
    raw = [seconds for seconds, _ in took["raw TCP to a file"]]
    rows, result = [], {}
    for name, pairs in took.items():
        ratio = median(r / s for r, (s, _) in zip(raw, pairs, strict=True))
        rate = size / 1e6 / median(s for s, _ in pairs)
        cpu = median(c for _, c in pairs) / (size / 1e9)
        rows.append((name, rate, ratio, cpu))
        result[name] = {"mb_per_s": rate, "of_raw_tcp": ratio, "receiver_cpu_s_per_gb": cpu}
    columns = ["way", "MB/s", "of raw TCP", "receiver CPU s/GB"]
    print_table(f"A blob of {size // MIB} MiB on loopback, {rounds} rounds", columns, rows)
    finish(args, result)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        trio.run(serve, int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
