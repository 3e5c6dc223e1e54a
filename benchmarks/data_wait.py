"""How long a client waits for rows that it reads over HTTP, and what a large data set costs to open.

A real server of files behind a line of 100 Mbit/s with 50 ms one way. Each round's rows are asked for when the round
begins: 64 rows of 2,048 tokens for a member, in the order of the files, or shuffled. A client that has nothing else to
do meanwhile waits for all of them; one that applies the last round's results waits for what is left then. The share is
that of a round in which the trainer works 15.7 s (8B) or 2.0 s (1B), as in training_share; it should be below 1 % for
the first.

The second table opens 1e9 rows in 1,000 files: at most 50 MB, and 1 s after the files are listed.
"""

import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import numpy as np
import trio
from _table import build_parser, finish, print_table

from psyche.data.stored import StoredRows
from psyche.storage.port import StorageOptions, StoredFile
from psyche.storage.urls import open_urls

RATE, DELAY_S = 100e6 / 8, 0.05  # bytes a second each way; one way
ROWS, LENGTH = 64, 2_048
ROUNDS = {"8B": 15.7, "1B": 2.0}
FILES, FILE_ROWS = 1_000, 1_000_000
TARGET_PERCENT, TARGET_MB, TARGET_S = 1.0, 50.0, 1.0
PART = 16 << 10
SEED = bytes(range(32))
CASES = (("in order", None), ("shuffled", SEED))


@contextmanager
def serve(folder: Path) -> Iterator[int]:
    """Serve a folder with caddy; the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    command = [Path(sys.executable).parent / "caddy", "file-server", "--root", folder]
    command += ["--listen", f"fd/{listening.fileno()}"]
    with subprocess.Popen(command, pass_fds=[listening.fileno()], stderr=subprocess.DEVNULL) as process:
        try:
            yield listening.getsockname()[1]
        finally:
            process.kill()


class Line:
    """One direction of a line that all connections share."""

    def __init__(self) -> None:
        self._free_at = 0.0

    async def carry(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        send, receive = trio.open_memory_channel[tuple[float, bytes]](1_024)

        async def deliver() -> None:
            async for due, part in receive:
                await trio.sleep_until(due)
                await target.send_all(part)
            await target.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            async with send:
                while part := await source.receive_some(PART):
                    self._free_at = max(self._free_at, trio.current_time()) + len(part) / RATE
                    await send.send((self._free_at + DELAY_S, part))


@asynccontextmanager
async def open_line(port: int) -> AsyncGenerator[int]:
    """A line to a port of this machine; the port at its other end. A connection costs a round trip, as TCP's does."""
    there, back = Line(), Line()

    async def handle(client: trio.SocketStream) -> None:
        await trio.sleep(2 * DELAY_S)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with await trio.open_tcp_stream("127.0.0.1", port) as server, trio.open_nursery() as nursery:
                nursery.start_soon(there.carry, client, server)
                nursery.start_soon(back.carry, server, client)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def measure_waits(folder: Path, rounds: int) -> dict[str, float]:
    """Seconds until a member has its rows, in the median over rounds."""
    found: dict[str, float] = {}
    names = [path.name for path in await trio.to_thread.run_sync(lambda: sorted(folder.iterdir()))]
    with serve(folder) as server:
        async with open_line(server) as port:
            for name, seed in CASES:
                options = StorageOptions(allow_private_hosts=True)
                storage = open_urls([f"http://127.0.0.1:{port}/{one}" for one in names], options)
                rows = StoredRows(
                    storage, names=storage.names, token_size_bytes=2, sequence_length=LENGTH, shuffle_seed=seed
                )
                await rows.get(0, ROWS - 1)
                seconds: list[float] = []
                for number in range(1, rounds + 1):
                    began = trio.current_time()
                    await rows.get(number * ROWS, (number + 1) * ROWS - 1)
                    seconds.append(trio.current_time() - began)
                found[name] = statistics.median(seconds)
                await rows.aclose()
    return found


class Listed:
    """A storage with the names and sizes of many large files."""

    address = "gs://large"

    async def list_files(self) -> tuple[StoredFile, ...]:
        size_bytes = FILE_ROWS * LENGTH * 2
        return tuple(StoredFile(f"tokens/{n:05}_part.ds", size_bytes, str(1_700_000_000 + n)) for n in range(FILES))

    async def read(self, file: StoredFile, start: int, end: int) -> bytes:
        raise NotImplementedError

    async def aclose(self) -> None: ...


async def measure_opening() -> tuple[float, float]:
    """Seconds and MB for the listing's files, their order, and the places of one round's rows."""
    tracemalloc.start()
    began = time.perf_counter()
    rows = StoredRows(Listed(), token_size_bytes=2, sequence_length=LENGTH, shuffle_seed=SEED)
    order = await rows.open()
    order.find(np.arange(ROWS, dtype=np.int64) + order.num_sequences // 2)
    seconds, (_, peak_bytes) = time.perf_counter() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert order.num_sequences == FILES * FILE_ROWS
    return seconds, peak_bytes / 1e6


def main() -> None:
    args = build_parser(__doc__).parse_args()
    rounds = 4 if args.quick else 40
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "files"
        folder.mkdir()
        for number in range(4):
            np.zeros((rounds + 1) * ROWS * LENGTH // 4, "<u2").tofile(folder / f"{number}.bin")
        waits = trio.run(measure_waits, folder, rounds)
    seconds, megabytes = trio.run(measure_opening)
    columns = ("rows", "wait, s", *(f"% of a round of {model}" for model in ROUNDS))
    rows = [(name, s, *(100 * s / (s + train_s) for train_s in ROUNDS.values())) for name, s in waits.items()]
    print_table(f"Waiting for {ROWS} rows of {LENGTH} tokens (8B: at most {TARGET_PERCENT:g} %)", columns, rows)
    title = f"Opening 1e9 rows in {FILES} files (at most {TARGET_S:g} s, {TARGET_MB:g} MB)"
    print_table(title, ("s", "MB"), [(seconds, megabytes)])
    finish(args, {"wait_s": waits, "open_s": seconds, "open_mb": megabytes})


if __name__ == "__main__":
    main()
