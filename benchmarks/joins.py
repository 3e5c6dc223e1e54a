"""How soon the server answers when everybody joins at once: 256 clients within ten seconds, over real sockets.

A server process of its own, and 256 of the clients' own backends in this one: each connects at a moment drawn
from the seed, proves its key, subscribes to the state and joins. Measured from the first packet to the answered join,
and from the request to its answer. Answers should take less than 0.2 s (F17 in docs/promises.md).
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from _table import build_parser, finish, print_table

from psyche.backends.tcp.backend import open_backend
from psyche.backends.tcp.dial import ServerAddress
from psyche.core.state.messages import Join
from psyche.testnet.free_port import choose_port
from psyche.wire.address_record import sign_address_record
from psyche.wire.crypto import Identity, blake3_hash

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 0.2
WITHIN_S = 10.0
START_S = 60.0
DEADLINE_S = 120.0


@dataclass(frozen=True)
class Joined:
    """One client; seconds."""

    connect_s: float  # until it had the state
    join_s: float


@contextmanager
def open_server(folder: Path, clients: int, port: int) -> Iterator[None]:
    """A server whose run needs all of them, until the block ends."""
    state = folder / "run.toml"
    text = (ROOT / "config" / "dummy" / "run.toml").read_text(encoding="utf-8")
    text = text.replace("init_min_clients = 2", f"init_min_clients = {clients}") + "\n[access]\nopen = true\n"
    state.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "psyche", "server", "run", "--state", str(state), "--server-port", str(port)]
    command += ["--bind-ip", "127.0.0.1", "--state-dir", str(folder / "server"), "--events-dir", str(folder / "events")]
    with (folder / "server.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.kill()


async def until_listening(port: int) -> None:
    """Until the server's port answers."""
    with trio.fail_after(START_S):
        while True:
            try:
                await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
            except OSError:
                await trio.sleep(0.1)
            else:
                return


async def join(number: int, port: int, delay_s: float, send: trio.MemorySendChannel[Joined]) -> None:
    """One client, which stays connected until all have joined."""
    await trio.sleep(delay_s)
    identity = Identity(blake3_hash(b"joins", number.to_bytes(4, "little")))
    record = sign_address_record(identity, [f"/ip4/127.0.0.1/tcp/{20_000 + number}"], int(time.time()) + 3_600)
    began = trio.current_time()
    async with open_backend(ServerAddress(host="127.0.0.1", port=port), identity) as backend:
        async for _ in backend.states():
            break
        connected = trio.current_time()
        await backend.submit(Join(record.p2p), record)
        await send.send(Joined(connected - began, trio.current_time() - connected))
        await trio.sleep_forever()


async def measure(clients: int, port: int, seed: int) -> list[Joined]:
    """All of them; raises trio.TooSlowError where not all are answered."""
    send, receive = trio.open_memory_channel[Joined](clients)
    rng = random.Random(seed)
    await until_listening(port)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(join, number, port, rng.uniform(0, WITHIN_S), send)
            found = [await receive.receive() for _ in range(clients)]
            nursery.cancel_scope.cancel()
    return found


def main() -> None:
    args = build_parser(__doc__).parse_args()
    clients, port = (32 if args.quick else 256), choose_port()
    with tempfile.TemporaryDirectory() as folder, open_server(Path(folder), clients, port):
        found = trio.run(measure, clients, port, 1)
    result: dict[str, float] = {}
    rows: list[tuple[str, float, float, float]] = []
    kinds = {"join": [f.join_s for f in found], "connection and join": [f.connect_s + f.join_s for f in found]}
    for what, seconds in kinds.items():
        ordered = sorted(1e3 * one for one in seconds)
        p50, p99, most = (
            ordered[len(ordered) // 2],
            ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
            ordered[-1],
        )
        rows.append((what, p50, p99, most))
        result |= {f"{what} p50 ms": p50, f"{what} p99 ms": p99}
    print_table(f"{clients} clients join within {WITHIN_S:g} s", ("until", "median ms", "p99 ms", "longest ms"), rows)
    verdict = "below" if rows[0][2] < 1e3 * LIMIT_S else "NOT below"
    print(f"99 of 100 joins are answered {verdict} {1e3 * LIMIT_S:.0f} ms")
    finish(args, result)


if __name__ == "__main__":
    main()
