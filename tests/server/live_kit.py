"""A server over real sockets that a test can stop and start, and honest clients without trainers that follow it."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from kits import server as server_kit
from kits.log import Log
from kits.runs import Run
from kits.server import CLIENTS, OWNER, SERVER, RunFile, build_record

from psyche.backends.tcp.backend import TcpBackend
from psyche.backends.tcp.dial import ServerAddress
from psyche.core.state import errors
from psyche.core.state.messages import Join, WarmupWitness
from psyche.core.state.state import ClientState, Coordinator, RunState
from psyche.errors import BackendError
from psyche.server.server import BoundServer, ServerSettings, run_server
from psyche.telemetry.sink import EventSink
from psyche.testing.builders import START_UNIX
from psyche.testnet.free_port import choose_port
from psyche.wire.access import OPEN
from psyche.wire.crypto import Identity

RATE = 16  # seconds of the run per second of the test


class Server:
    """A server that a test can stop, kill and start again on the same port."""

    def __init__(
        self, nursery: trio.Nursery, folder: Path, file: RunFile, *, sink: EventSink | None = None, **options: Any
    ) -> None:
        self.sink = sink or Log()
        self.folder = folder
        self._nursery, self._file = nursery, file
        wall = {"unix_time": lambda: START_UNIX + trio.current_time()}
        self._options = {"owners": frozenset({OWNER.public}), "access": OPEN} | wall | options
        self._scope: trio.CancelScope | None = None
        self._ended = trio.Event()
        self.port = choose_port()  # which nobody takes while it is stopped

    async def start(self) -> BoundServer:
        settings = ServerSettings(
            run=self._file, identity=SERVER, state_dir=self.folder, port=self.port, sink=self.sink, **self._options
        )
        self._ended = trio.Event()
        bound = await self._nursery.start(self._run, settings)
        self.port = bound.port
        return bound

    async def _run(self, settings: ServerSettings, *, task_status: Any) -> None:
        with trio.CancelScope() as self._scope:
            await run_server(settings, task_status=task_status)
        self._ended.set()

    async def stop(self) -> None:
        assert self._scope is not None
        self._scope.cancel()
        await self._ended.wait()

    @property
    def address(self) -> ServerAddress:
        return ServerAddress(host="127.0.0.1", port=self.port, run_id="test-run", key=SERVER.public)


@asynccontextmanager
async def open_server(tmp_path: Path, file: RunFile | None = None, **options: Any) -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        server = Server(nursery, tmp_path / "state", file or build_file(), **options)
        await server.start()
        yield server
        nursery.cancel_scope.cancel()


def build_file(**config: Any) -> RunFile:
    """As the kit's, without waiting where nothing is to happen."""
    quick = {"max_round_train_time": 120, "waiting_for_members_extra_time": 1, "cooldown_time": 1}
    return server_kit.build_file(**(quick | config))


class Script:
    """An honest client without a trainer: joins, shows weights, witnesses, until the run is finished."""

    def __init__(self, backend: TcpBackend, identity: Identity) -> None:
        self.backend, self.identity = backend, identity
        self.state: Coordinator | None = None
        self.seen: list[tuple[RunState, int, int]] = []
        self.nonces: list[int] = []
        self._done: set[tuple[str, int, int]] = set()

    def get_member(self, state: Coordinator) -> int | None:
        found = (m for m, c in enumerate(state.clients) if c.p2p == self.identity.public)
        return next((m for m in found if state.clients[m].state is ClientState.HEALTHY), None)

    async def follow(self, until: Callable[[Coordinator], bool]) -> Coordinator:
        """Do what each state asks for, until one is as wanted."""
        async with contextlib.aclosing(self.backend.states()) as states:
            async for state in states:
                self.state = state
                self.nonces.append(state.nonce)
                self.seen.append((state.run_state, state.progress.epoch, state.current.height))
                if until(state):
                    return state
                await self.act(state)
        raise AssertionError("states end only by an error")

    async def act(self, state: Coordinator) -> None:
        member, epoch = self.get_member(state), state.progress.epoch
        run = Run(state)
        if state.run_state is RunState.WAITING_FOR_MEMBERS and self._first("join", state.registry.next_active):
            await self.backend.submit(
                Join(self.identity.public), build_record(self.identity, expires_unix=4_000_000_000)
            )
        elif member is None:
            return
        elif state.run_state is RunState.WARMUP and self._first("warm", epoch, state.registry.next_active):
            await self.backend.submit(WarmupWitness(epoch, member, run.get_start_digest()))
        elif state.in_round and self._first("witness", epoch, state.current.height):
            await self.send_witness(run, member)

    def _first(self, what: str, *when: int) -> bool:
        key = (what, *when)
        is_first = key not in self._done
        self._done.add(key)
        return is_first

    async def send_witness(self, run: Run, member: int) -> None:
        with contextlib.suppress(errors.WrongRound, errors.InvalidRunState, errors.Halted):  # q others were faster
            await self.backend.submit(run.build_witness(member))


def is_finished(state: Coordinator) -> bool:
    return state.run_state is RunState.FINISHED


def is_training(state: Coordinator) -> bool:
    return state.run_state is RunState.ROUND_TRAIN


@asynccontextmanager
async def open_scripts(server: Server, count: int = 3, sink: Log | None = None) -> AsyncIterator[list[Script]]:
    async with trio.open_nursery() as nursery:
        scripts = [Script(TcpBackend(server.address, identity, sink=sink), identity) for identity in CLIENTS[:count]]
        for script in scripts:
            nursery.start_soon(run_until_given_up, script.backend)
        yield scripts
        nursery.cancel_scope.cancel()


async def run_until_given_up(backend: TcpBackend) -> None:
    with contextlib.suppress(BackendError):  # those that wait for the backend get it too
        await backend.run()


async def follow_all(scripts: list[Script], until: Callable[[Coordinator], bool]) -> None:
    with trio.fail_after(120 * RATE):
        async with trio.open_nursery() as nursery:
            for script in scripts:
                nursery.start_soon(script.follow, until)
