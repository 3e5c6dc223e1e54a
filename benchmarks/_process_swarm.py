"""Several whole clients, each a process of its own, with the real server in another: libp2p and TCP over loopback.

    for member in run_processes(3, tmp_path, config=build_config(...), limit_s=120):
        print(member.code, member.cpu_s)

What `swarm` does in one process, with the clients' processors shared by nobody. The processes are forked:
importing libp2p in each would take longer than many a run.
"""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import trio

from psyche.backends.tcp.backend import open_backend
from psyche.backends.tcp.dial import ServerAddress
from psyche.client.engine.round_engine import RoundEngine
from psyche.client.runtime.trainer_tasks import RestartableTrainer
from psyche.core.state.state import Checkpoint, CheckpointKind, Config
from psyche.errors import PsycheError
from psyche.server.server import BoundServer, ServerSettings, run_server
from psyche.sim.scenarios.scenario import SimRunFile
from psyche.telemetry.events import Entry
from psyche.testing.builders import build_identity, build_model
from psyche.testing.swarm import RUN_ID, build_member
from psyche.wire.access import OPEN

_fork: Final = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class MemberReport:
    """How a client's process ended. `digest`: of the weights it held; `cpu_s`: processor time of its process."""

    code: int
    digest: bytes | None
    cpu_s: float
    events: list[Entry]


def run_processes(
    clients: int, folder: Path, *, config: Config, make_trainer: Callable[[], RestartableTrainer], limit_s: float
) -> list[MemberReport]:
    """Run all clients to the run's end.

    Raises:
        PsycheError: a process failed, or `limit_s` seconds were not enough.
    """
    import psyche.network.node  # noqa: F401  # heavy: before the fork, once

    (folder / "model").mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + limit_s
    children: list[_Child] = []
    try:
        server = _Child(_serve, config, folder / "server")
        children.append(server)
        address = server.receive(deadline)
        members = [_Child(_take_part, index, folder, address, make_trainer) for index in range(clients)]
        children += members
        return [member.receive(deadline) for member in members]
    finally:
        for child in children:
            child.end()


class _Child:
    """A forked process that sends one object, or the exception it ended with."""

    def __init__(self, function: Callable[..., None], *args: object) -> None:
        self._receiver, sender = _fork.Pipe(duplex=False)
        self._process = _fork.Process(target=_run_child, args=(function, sender, *args), daemon=True)
        self._process.start()
        sender.close()

    def receive(self, deadline: float) -> Any:
        if not self._receiver.poll(max(0.0, deadline - time.monotonic())):
            raise PsycheError("a process of the swarm took too long")
        try:
            found = self._receiver.recv()
        except EOFError as error:
            raise PsycheError("a process of the swarm is gone") from error
        if isinstance(found, str):
            raise PsycheError(f"a process of the swarm failed: {found}")
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def _run_child(function: Callable[..., None], sender: Connection, *args: object) -> None:
    try:
        function(sender, *args)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells it
        sender.send(repr(error))


def _serve(sender: Connection, config: Config, folder: Path) -> None:
    folder.mkdir()
    run = SimRunFile(config, build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "model")), RUN_ID)
    settings = ServerSettings(run=run, identity=build_identity("server"), state_dir=folder, access=OPEN)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            bound: BoundServer = await nursery.start(run_server, settings)  # pyright: ignore[reportArgumentType]
            sender.send(ServerAddress(host=bound.host, port=bound.port, run_id=run.run_id, key=bound.key))

    trio.run(main)


def _take_part(
    sender: Connection, index: int, folder: Path, address: ServerAddress, make_trainer: Callable[[], RestartableTrainer]
) -> None:
    trio.run(_play, sender, index, folder, address, make_trainer())


async def _play(
    sender: Connection, index: int, folder: Path, address: ServerAddress, trainer: RestartableTrainer
) -> None:
    from psyche.network.node import open_node

    identity, started = build_identity(index), time.process_time()
    async with (
        open_node(identity, "127.0.0.1", 0, folder / f"client-{index}" / "network") as network,
        open_backend(address, identity) as backend,
    ):
        engine = RoundEngine(identity)
        member = build_member(engine, backend, network, trainer, folder, index, unix_now=time.time)
        code = await member.shell.run()
    sender.send(MemberReport(code, member.digest, time.process_time() - started, member.events.drain()))
