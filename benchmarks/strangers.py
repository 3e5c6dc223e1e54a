"""How much strangers slow a run: real clients and a real server, without and under each attack, closed and open.

A server with its data server and three clients are processes of their own, over loopback: libp2p, TLS, trainers that
only wait. Strangers share one process that gets what processor time the run leaves: theirs would be that of other
machines. Steps are counted while they are at work, and divided by the mean of two runs of the same sort without them,
the first and the last that are measured: how far those two are apart says what a ratio is worth. A closed run, as runs
are unless their owner opens them, should keep 0.8 of its speed.

`slots`: 256 fresh keys join and leave the line before the run begins. `ready`: two join every epoch, say that they are
ready with the digest on record, and do nothing. `join`: one joins every epoch, and does nothing. `data 40`: so many
keys ask the data server for a round which never comes, again and again. `data 560`: so many connections stand there.
`status 250`: so many keys ask the server for its public status, each as often as one connection may.
Strangers that are closed are back after two seconds; they have the run's address. What each row is divided by it names:
`calm` counts from the third step on, as attacks do; `start` from the moment the clients start, as `slots` does.
"""

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import trio
from _table import build_parser, finish, print_table

from psyche.backends.tcp.backend import TcpBackend, open_backend
from psyche.backends.tcp.dial import ServerAddress, dial
from psyche.backends.tcp.owner import TcpAdministration
from psyche.client.engine.round_engine import RoundEngine
from psyche.config.load import LoadedData
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import Join, WarmupWitness
from psyche.core.state.state import Checkpoint, CheckpointKind, Coordinator, DataLocation, DataLocationKind, RunState
from psyche.data.client import RemoteData
from psyche.errors import BackendError, PsycheError
from psyche.server.connections.limits import REQUESTS_PER_S
from psyche.server.server import BoundServer, ServerSettings, run_server
from psyche.sim.scenarios.scenario import build_run
from psyche.testing.builders import build_config, build_hash, build_model
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.testing.swarm import build_member
from psyche.testnet.free_port import choose_port
from psyche.wire.access import OPEN, Access
from psyche.wire.address_record import sign_address_record
from psyche.wire.backend import Request, StatusRequest, encode_message
from psyche.wire.crypto import Identity
from psyche.wire.data import MAX_REPLY_BYTES, PURPOSE, FetchRequest, encode_data_request
from psyche.wire.line.framing import FrameStream
from psyche.wire.line.handshake import client_handshake
from psyche.wire.line.tls import open_tls

LIMIT = 0.8
LOWEST_PRIORITY = 19
CLIENTS = 3
TRAIN_S = 0.3
SEQUENCE = 16
START_S = 90.0
AGAIN_S = 2.0  # between two connections of one stranger: its processor time is that of this machine too
SERVER = Identity(build_hash("server"))
CONFIG = build_config(
    init_min_clients=CLIENTS, min_clients=2, rounds_per_epoch=12, total_steps=1_000_000, warmup_time=10,
    cooldown_time=1, waiting_for_members_extra_time=1, max_round_train_time=10, round_witness_time=2,
)  # fmt: skip
_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Place:
    """Where a run is served; `data` is the data server's port."""

    server: ServerAddress
    data: int


def get_identity(index: int) -> Identity:
    """An honest client's key."""
    return Identity(build_hash("client", index))


def get_stranger(number: int) -> Identity:
    """A key that nobody knows."""
    return Identity(build_hash("stranger", number))


# --- the run ----------------------------------------------------------------------------------------


def serve(sender: Connection, folder: Path, access: Access) -> None:
    """The server's process; sends where it is."""
    data_port = choose_port()
    np.zeros(SEQUENCE * 100_000, dtype="<u2").tofile(folder / "data.bin")
    location = DataLocation(DataLocationKind.SERVER, f"127.0.0.1:{data_port}")
    model = build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "model"), data_location=location)
    settings = ServerSettings(
        run=build_run(CONFIG, model), identity=SERVER, state_dir=folder / "server", access=access,
        data_files=LoadedData(folder, 2, SEQUENCE, None, folder / "data.toml"),
    )  # fmt: skip

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            bound: BoundServer = await nursery.start(run_server, settings)  # pyright: ignore[reportArgumentType]
            sender.send(Place(ServerAddress(host=bound.host, port=bound.port, key=bound.key), data_port))

    trio.run(main)


def take_part(place: Place, folder: Path, index: int) -> None:
    """A client's process."""

    async def main() -> None:
        from psyche.network.node import open_node

        identity = get_identity(index)
        async with (
            open_node(identity, "127.0.0.1", 0, folder / f"client-{index}" / "network") as network,
            open_backend(place.server, identity) as backend,
        ):
            data = RemoteData(f"127.0.0.1:{place.data}", identity, sequence_length=SEQUENCE)
            trainer = DummyTrainer(train_s=TRAIN_S)
            member = build_member(
                RoundEngine(identity), backend, network, trainer, folder, index, unix_now=time.time, data=data
            )
            await member.shell.run()

    trio.run(main)


@contextmanager
def open_run(folder: Path, access: Access) -> Iterator[tuple[Place, Callable[[], None]]]:
    """A run, and what starts its clients."""
    import psyche.network.node  # noqa: F401  # heavy: before the fork, once

    (folder / "model").mkdir()
    receiver, sender = _fork.Pipe(duplex=False)
    processes: list[Any] = [_fork.Process(target=serve, args=(sender, folder, access), daemon=True)]
    processes[0].start()
    place: Place = receiver.recv()

    def start_clients() -> None:
        for index in range(CLIENTS):
            processes.append(_fork.Process(target=take_part, args=(place, folder, index), daemon=True))
            processes[-1].start()

    try:
        yield place, start_clients
    finally:
        for process in processes:
            process.kill()
            process.join()


async def count_steps(place: Place, window_s: float) -> int:
    """Steps that the run takes within the window."""
    first = (await TcpAdministration(place.server, SERVER).get_status()).step
    await trio.sleep(window_s)
    return (await TcpAdministration(place.server, SERVER).get_status()).step - first


async def until_training(place: Place) -> None:
    """Until the first rounds are done."""
    with trio.fail_after(START_S):
        while (await TcpAdministration(place.server, SERVER).get_status()).step < 3:  # noqa: ASYNC110 - the server is asked
            await trio.sleep(0.2)


# --- strangers --------------------------------------------------------------------------------------


async def join_and_leave_the_line(place: Place, number: int) -> None:
    """A fresh key takes a slot and is gone."""
    identity = get_stranger(number)
    with trio.move_on_after(10):
        async with open_backend(place.server, identity) as backend:
            with contextlib.suppress(PsycheError):
                await backend.submit(Join(identity.public), build_record(identity))


def build_record(identity: Identity) -> Any:
    return sign_address_record(identity, ["/ip4/127.0.0.1/tcp/9"], int(time.time()) + 3_600)


async def fill_slots(place: Place) -> None:
    """256 of them, thirty-two at a time."""
    limiter = trio.CapacityLimiter(32)

    async def one(number: int) -> None:
        async with limiter:
            await join_and_leave_the_line(place, number)

    async with trio.open_nursery() as nursery:
        for number in range(256):
            nursery.start_soon(one, number)


async def idle_as_member(place: Place, number: int, *, says_ready: bool) -> None:
    """Join whenever the run waits for members, say ready where asked to, do nothing else."""
    identity = get_stranger(number)
    backend = TcpBackend(place.server, identity)

    async def follow() -> None:
        said: set[tuple[int, int, int]] = set()
        async for state in backend.states():
            key = (state.run_state, state.progress.epoch, state.registry.next_active)
            if key in said:
                continue
            with contextlib.suppress(CoordinatorError, BackendError):
                if await act(backend, identity, state, says_ready=says_ready):
                    said.add(key)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.run)
        nursery.start_soon(follow)


async def act(backend: TcpBackend, identity: Identity, state: Coordinator, *, says_ready: bool) -> bool:
    """What one state makes the stranger do; whether that was something."""
    if state.run_state is RunState.WAITING_FOR_MEMBERS:
        await backend.submit(Join(identity.public), build_record(identity))
        return True
    member = next((m for m, c in enumerate(state.clients) if c.p2p == identity.public), None)
    if state.run_state is RunState.WARMUP and member is not None and says_ready:
        await backend.submit(WarmupWitness(state.progress.epoch, member, state.certified.digest))
        return True
    return False


async def ask_in_vain(place: Place, number: int) -> None:
    """Ask the data server for a round that never comes, and again when it hangs up."""
    while True:
        with contextlib.suppress(PsycheError, OSError):
            stream, channel = await open_tls("127.0.0.1", place.data)
            frames = FrameStream(stream, MAX_REPLY_BYTES)
            try:
                await client_handshake(frames, get_stranger(number), PURPOSE, channel, SERVER.public, 10)
                await frames.send(encode_data_request(FetchRequest(60_000, 0, 0, 0)), 10)
                await frames.receive(60)
            finally:
                await frames.aclose()
        await trio.sleep(AGAIN_S)


async def stand(place: Place) -> None:
    """A connection to the data server that says nothing, and again when it is closed."""
    while True:
        with contextlib.suppress(OSError, trio.BrokenResourceError):
            stream = await trio.open_tcp_stream("127.0.0.1", place.data)
            async with stream:
                await stream.receive_some(1)
        await trio.sleep(AGAIN_S)


async def ask_for_status(place: Place, number: int) -> None:
    """The public status again and again, without waiting for answers; and again when the server hangs up."""
    frame = encode_message(Request(1, StatusRequest()))
    while True:
        try:
            frames = (await dial(place.server, get_stranger(number))).frames
            async with contextlib.aclosing(frames), trio.open_nursery() as nursery:
                nursery.start_soon(read_all, frames)
                while True:
                    await frames.send(frame, 60)
                    await trio.sleep(1 / REQUESTS_PER_S)
        except* PsycheError:
            pass
        await trio.sleep(AGAIN_S)


async def read_all(frames: FrameStream) -> None:
    while True:
        await frames.receive(60)


Attack = Callable[[Place], Awaitable[None]]


def many(count: int, one: Callable[[Place, int], Awaitable[None]]) -> Attack:
    """So many of them at once."""

    async def attack(place: Place) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(one, place, number)

    return attack


ATTACKS: dict[str, Attack] = {
    "slots": fill_slots,  # before the run begins
    "ready": many(2, partial(idle_as_member, says_ready=True)),
    "join": many(1, partial(idle_as_member, says_ready=False)),
    "data 40": many(40, ask_in_vain),
    "data 560": many(560, lambda place, _number: stand(place)),
    "status 250": many(250, ask_for_status),
}


BASES = ("calm", "start")  # no attack, each counted in one of the two ways


def attack(name: str, place: Place) -> None:
    """The strangers' process."""
    os.nice(LOWEST_PRIORITY)
    trio.run(ATTACKS[name], place)


@contextmanager
def under_attack(name: str, place: Place) -> Iterator[Any]:
    """While the strangers are at work."""
    process = _fork.Process(target=attack, args=(name, place), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def get_base(name: str) -> str:
    """What the steps under an attack are divided by."""
    return "start" if name == "slots" else "calm"


def play(name: str, window_s: float, *, is_open: bool) -> int:
    """The steps of one run within the window, under an attack or as one of `BASES`."""
    listed = Access().add(tuple(get_identity(index).public for index in range(CLIENTS)))
    access = OPEN if is_open else listed
    with tempfile.TemporaryDirectory() as folder, open_run(Path(folder), access) as (place, start_clients):
        if name == "slots":
            with under_attack(name, place) as strangers:
                strangers.join()
        start_clients()
        if name in ("slots", "start"):
            return trio.run(count_steps, place, window_s)
        trio.run(until_training, place)
        with contextlib.nullcontext() if name in BASES else under_attack(name, place):
            return trio.run(count_steps, place, window_s)


def measure(kind: str, window_s: float) -> list[tuple[object, ...]]:
    """The rows of one sort of run."""
    order = (*BASES, *ATTACKS, *BASES)
    steps: dict[str, list[int]] = {}
    for name in order:
        steps.setdefault(name, []).append(play(name, window_s, is_open=kind == "open"))
        print(f"{kind}, {name}: {steps[name][-1]} steps in {window_s:g} s", flush=True)
    rows: list[tuple[object, ...]] = []
    for name in ATTACKS:
        base, under = steps[get_base(name)], steps[name][0]
        mean = sum(base) / len(base)
        measured = " and ".join(str(one) for one in base)
        rows.append((kind, name, f"{get_base(name)}, {kind}: {measured}", under, under / max(1.0, mean)))
    return rows


def main() -> None:
    """Measure and print."""
    parser = build_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each window (40)")
    parser.add_argument("--only", choices=("closed", "open"), help="measure this sort of run alone")
    args = parser.parse_args()
    window_s = 10.0 if args.quick else args.seconds
    rows: list[tuple[object, ...]] = []
    for kind in ("closed", "open") if args.only is None else (args.only,):
        rows += measure(kind, window_s)
    columns = ("run", "attack", "divided by the mean of", "steps under it", "ratio")
    print_table(f"Strangers: steps within {window_s:g} s", columns, rows)
    good = all(row[4] >= LIMIT for row in rows if row[0] == "closed")  # pyright: ignore[reportOperatorIssue]
    print(f"\nclosed runs keep {LIMIT:.0%} of their speed: {'yes' if good else 'NO'}")
    finish(args, {f"{row[0]} {row[1]}": row[4] for row in rows})


if __name__ == "__main__":
    main()
