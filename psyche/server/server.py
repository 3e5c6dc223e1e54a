"""The coordinator server on trio: a thin layer around `CoordinatorHandler`.

Tasks: one accepts connections, two serve each connection (requests in; answers and pushes out), one ticks every
0.5 s, one writes the journal, one decides when a state is pushed. Nobody sees a state or an answer before its
record is on disk (K1). A fault of a client ends its own connection and is logged; a fault of the disk or the
state machine ends the server with a clear message.
"""

import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from psyche import __version__
from psyche.config.load import LoadedRun
from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.elections import get_verifiers
from psyche.core.encoding.account import decode_state
from psyche.core.rules.audits import find_jury
from psyche.core.state.bits import get_members
from psyche.core.state.limits import MAX_CLIENTS
from psyche.core.state.state import Coordinator, DataLocationKind, DataType, RoundFlag
from psyche.data.local import find_difference
from psyche.data.provider import LocalFiles, open_files
from psyche.data.server import AUDITED_ROUNDS, Audited, DataServer, PortStatus
from psyche.errors import BackendError, ConfigError
from psyche.server.access import AllowList
from psyche.server.connections.hub import Hub
from psyche.server.connections.limits import TICK_S
from psyche.server.connections.push import StateVersion, compute_delay_s
from psyche.server.handler import CoordinatorHandler
from psyche.server.journal.disk import FolderDisk
from psyche.server.journal.journal import JournalDisk
from psyche.server.journal.recovery import OpenRun
from psyche.server.rounds import Past
from psyche.server.run import hash_settings, open_run, read_data_manifest, remember_change
from psyche.storage.port import StorageOptions
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink, NoEvents
from psyche.wire.access import Access
from psyche.wire.crypto import Identity
from psyche.wire.line.descriptors import WAY_OUT, count_places, get_limit
from psyche.wire.line.tls import TlsListener
from psyche.wire.nursery import open_plain_nursery

PROGRAM: Final = f"psyche {__version__}"
ENTROPY_BYTES: Final = 32
CLOSING_TIMEOUT_S: Final = 5.0
LEAST_PLACES: Final = 8
USUAL_PLACES: Final = MAX_CLIENTS + 128  # all members, and others who come and go
Listener = trio.abc.Listener[Any]


class RunClock:
    """Starts at the wall clock, or at the journal's last record if that is later, and then follows the monotonic clock.

    Setting the wall clock while the server runs has no effect on it (a jump would be a timeout for everybody);
    the next start treats the difference as downtime (K2).
    """

    def __init__(self, unix_s: float, not_before: int) -> None:
        self._offset_s = max(unix_s, float(not_before)) - trio.current_time()

    def now(self) -> int:
        return int(self._offset_s + trio.current_time())


async def listen_tls(host: str, port: int, identity: Identity) -> tuple[Listener, int]:
    """Open a TCP listener whose connections speak TLS with the identity's key; port 0 chooses a free one."""
    listeners = await trio.open_tcp_listeners(port, host=host)
    for extra in listeners[1:]:  # a name with several addresses and port 0 would get several ports
        await extra.aclose()
    return TlsListener(listeners[0], identity), listeners[0].socket.getsockname()[1]


class RunData:
    """A data server that follows the run's rounds; the port is that of the run's `data_location`."""

    def __init__(self, server: DataServer, host: str, port: int, kept_files: int = 0) -> None:
        self.server = server
        self.kept_files = kept_files
        self._host, self._port = host, port
        self._round: tuple[int, int] | None = None
        self._audited: dict[int, Audited] = {}  # by height, of the running epoch

    def update(self, state: Coordinator) -> None:
        """Serve the current round of `state`; call this before clients see that state."""
        now = (state.progress.epoch, state.current.height)
        if not state.in_round or now == self._round:
            return
        if self._round is not None and self._round[0] != now[0]:
            self._audited.clear()
        self._round = now
        keys = {member: state.clients[member].p2p for member in get_members(state.current.members)}
        ranges = compute_assignments(state.current, state.config)
        assigned = {keys[member]: samples for member, samples in ranges.items()}
        if state.config.verification_percent:
            self._follow_audits(state, keys)
            first = state.current.data_index  # of the epoch: the calibration row of everybody is of it (V6)
            audited = self._audited if state.current.height else {0: Audited(first, first, frozenset(keys.values()))}
        else:
            audited = {}
        self.server.set_assignments(*now, assigned, frozenset(keys.values()), audited)

    def _follow_audits(self, state: Coordinator, keys: Mapping[int, bytes]) -> None:
        """Let verifiers and jurors of a round have the samples of the four rounds before it (V8)."""
        round_, height = state.current, state.current.height
        auditors = set(get_verifiers(round_, state.config)) | _find_jurors(state)
        found = {h: one for h, one in self._audited.items() if height - AUDITED_ROUNDS <= h < height}
        asking = frozenset(keys[member] for member in auditors if member in keys)
        self._audited = {h: replace(one, keys=one.keys | asking) for h, one in found.items()}
        last = round_.data_index + round_.batch_size - 1
        if not round_.flags & RoundFlag.DRAIN and last >= round_.data_index:
            self._audited[height] = Audited(round_.data_index, last, frozenset())

    async def serve(self, *, task_status: PortStatus = trio.TASK_STATUS_IGNORED) -> None:
        await self.server.serve(self._host, self._port, task_status=task_status)


def _find_jurors(state: Coordinator) -> set[int]:
    """The members that judge open challenges in the running round (V12)."""
    return {juror for challenge in state.challenges for juror in find_jury(state, challenge) or ()}


def open_run_data(
    state: Coordinator, files: LocalFiles | None, identity: Identity, host: str, manifest: Path | None = None
) -> RunData:
    """Open the data server of a run whose `data_location` is Server; blocks on the disk, so call it in a thread."""
    address = state.model.data_location.address
    port = address.rpartition(":")[2]
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f'model.LLM.data_location.Server: {address!r} must be "host:port", port 1 to 65535')
    if files is None:
        raise ConfigError("model.LLM.data_location is Server: name the data to serve with --data-config")
    if files.sequence_length != state.model.max_seq_len:
        raise ConfigError(
            f"data.toml seq_len: {files.sequence_length}, but the run's max_seq_len is {state.model.max_seq_len}; "
            "they must be equal"
        )
    has_labels = state.model.data_type is DataType.FINETUNING
    source = open_files(files, state.metadata.vocab_size or None, has_labels=has_labels)
    if different := find_difference(source.files, state.config.data_root, manifest):
        raise ConfigError(different)
    return RunData(DataServer(source, identity), host, int(port), source.kept_files)


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a server.

    `on_state` is called with every state before it is pushed, and must read it at once and not keep it.
    """

    run: LoadedRun
    identity: Identity  # the server's
    state_dir: Path  # of the journal; a run found there continues
    host: str = "127.0.0.1"
    port: int = 0  # 0 chooses a free one
    owners: frozenset[bytes] = frozenset()  # keys that may command the run; empty: the server's own
    access: Access = Access()  # as set in run.toml (M12); the default admits nobody
    withdraw_on_disconnect: bool = True  # whether a connection lost for 15 s ends a membership (H6)
    accept_loss: bool = False  # whether records behind a broken place of the journal are given up (K1)
    model_folder: Path | None = None  # where the model would be; a new run is bound to the weights there (S11)
    storage: StorageOptions | None = None  # of a model that is elsewhere; None: as the environment says
    data_manifest: Path | None = None  # where the run's would be, for clients (D1)
    data_files: LocalFiles | None = None  # of the data server, if `data_location` is Server
    sink: EventSink | None = None
    read_history: Callable[[], Iterable[Past]] = tuple  # what the log has of rounds before; blocks
    on_state: Callable[[Coordinator], None] | None = None
    unix_time: Callable[[], float] = time.time  # read once, at the start
    entropy: Callable[[], bytes] = partial(os.urandom, ENTROPY_BYTES)  # E5
    open_disk: Callable[[Path], JournalDisk] = FolderDisk  # blocks
    listen: Callable[[str, int, Identity], Awaitable[tuple[Listener, int]]] = listen_tls


@dataclass(frozen=True, slots=True)
class BoundServer:
    """The address of a running server; `data_port` is None if it serves no data. `notes`: see `OpenRun`."""

    host: str
    port: int
    key: bytes
    run_uid: bytes
    data_port: int | None
    notes: tuple[str, ...] = ()
    is_open: bool = False
    allowed: int = 0


class Started(Protocol):
    """The part of trio's `TaskStatus` that is used here."""

    def started(self, value: BoundServer, /) -> None: ...


async def run_server(settings: ServerSettings, *, task_status: Started = trio.TASK_STATUS_IGNORED) -> None:
    """Serve the run until cancelled; `task_status.started` is given the address. On cancellation the journal is
    flushed to disk and the clients get a goodbye.

    Raises:
        ConfigError: the state folder holds another run, or the address cannot be used.
        CoordinatorError: a new run whose configuration breaks a rule.
        BackendError: the state folder is in use, the journal is broken, or the disk failed.
        DataError: the data server cannot be started.
    """
    disk = await trio.to_thread.run_sync(settings.open_disk, settings.state_dir)
    try:
        now = int(settings.unix_time())
        open_ = partial(
            open_run, accept_loss=settings.accept_loss, model_folder=settings.model_folder, storage=settings.storage
        )
        opened = await trio.to_thread.run_sync(
            open_, disk, settings.run, settings.identity.public, PROGRAM, lambda: now
        )
        await _Server(settings, opened, disk).run(task_status)
    finally:
        disk.close()


class _Server:
    def __init__(self, settings: ServerSettings, opened: OpenRun, disk: JournalDisk) -> None:
        self._settings = settings
        self._opened = opened
        self._notes = opened.notes
        self._disk = disk
        self._config = opened.state.config
        self._sink = settings.sink or NoEvents()
        self._clock = RunClock(settings.unix_time(), opened.now)
        key = settings.identity.public
        self._handler = CoordinatorHandler(
            opened.state,
            opened.journal,
            now=opened.now,
            owners=settings.owners or frozenset({key}),
            access=AllowList(settings.access, opened.access, key),
            entropy=settings.entropy,
            op_ids=opened.op_ids,
            withdraw_on_disconnect=settings.withdraw_on_disconnect,
            program=PROGRAM,
            sink=self._sink,
        )
        self._hub = Hub(self._handler, settings.identity, self._clock.now, self._sink, self._note_work)
        self._data: RunData | None = None
        self._work = trio.Event()  # set when the journal has something to write
        self._news = trio.Event()  # set when the durable state has changed
        self._durable = self._handler.version
        self._pushed_at_s = trio.current_time()
        self._has_served = False

    async def run(self, task_status: Started) -> None:
        listener, port = await self._listen()
        self._report_recovery()
        if not self._opened.is_new:
            await trio.to_thread.run_sync(lambda: self._handler.history.restore(self._settings.read_history()))
        try:
            async with open_plain_nursery() as nursery:
                nursery.start_soon(self._serve, nursery, listener, port, task_status)
        finally:
            with trio.move_on_after(CLOSING_TIMEOUT_S) as scope:
                scope.shield = True
                await self._close(listener)

    async def _serve(self, nursery: trio.Nursery, listener: Listener, port: int, task_status: Started) -> None:
        data_port = await self._start_data(nursery)
        self._share_places()
        await self._read_data_manifest()
        await self._publish(self._durable)
        for task in (self._write_journal, self._push, self._tick):
            nursery.start_soon(task)
        self._has_served = True
        host, key, access = self._settings.host, self._settings.identity.public, self._handler.access
        self._sink.emit(types.ServerListening(host=host, port=port, data_port=data_port))
        uid, allowed = self._handler.state.run_uid, len(access.keys)
        task_status.started(BoundServer(host, port, key, uid, data_port, self._notes, access.is_open, allowed))
        await trio.serve_listeners(self._hub.serve, [listener])

    async def _listen(self) -> tuple[Listener, int]:
        host, port = self._settings.host, self._settings.port
        try:
            return await self._settings.listen(host, port, self._settings.identity)
        except OSError as error:
            why = f"{error.strerror or error}; choose another port with --server-port"
            raise ConfigError(f"server: cannot listen on {host}:{port}: {why}") from error

    def _report_recovery(self) -> None:
        access = self._handler.access
        self._sink.emit(types.Access(is_open=access.is_open, allowed=len(access.keys)))
        for note in self._opened.notes:
            self._sink.emit(types.JournalNote(note=note))
        if not self._opened.is_new:
            self._handler.recover(self._clock.now())
            self._note_work()

    async def _start_data(self, nursery: trio.Nursery) -> int | None:
        state, settings = self._handler.state, self._settings
        if state.model.data_location.kind is not DataLocationKind.SERVER:
            return None
        self._data = await trio.to_thread.run_sync(
            open_run_data, state, settings.data_files, settings.identity, settings.host, settings.data_manifest
        )
        port: int = await nursery.start(self._data.serve)  # pyright: ignore[reportArgumentType]  # stubs lag behind
        return port

    def _share_places(self) -> None:
        """Give each service its share of the connections for which there are descriptors."""
        services = [self._hub] if self._data is None else [self._hub, self._data.server]
        places = count_places(self._data.kept_files if self._data else 0) // len(services)
        if places < LEAST_PLACES:
            raise ConfigError(f"server: this process may open only {get_limit()} files; {WAY_OUT}")
        if places < USUAL_PLACES:
            what = f"this process may open only {get_limit()} files, so each service has {places} connections"
            self._notes += (f"{what}, and a full run needs {USUAL_PLACES}; {WAY_OUT}",)
        for service in services:
            service.limit(places)

    async def _tick(self) -> None:
        while True:
            self._handler.tick(self._clock.now())
            self._note_work()
            self._hub.note_book()
            self._hub.end_disallowed()
            await trio.sleep(TICK_S)

    def _note_work(self) -> None:
        if self._handler.journal.has_work:
            self._work.set()

    async def _write_journal(self) -> None:
        """Write the journal with group commit: records added while the disk is busy share the next sync (K1)."""
        while True:
            await self._work.wait()
            self._work = trio.Event()
            await self._flush()

    async def _flush(self) -> None:
        journal = self._handler.journal
        while (batch := journal.take()) is not None:
            version = self._handler.version
            with trio.move_on_after(math.inf) as scope:
                scope.shield = True  # a batch that is taken must be written, or later ones would leave a gap
                await trio.to_thread.run_sync(journal.write, batch)
                journal.commit(batch)
                await self._remember_change()
            self._durable = version
            self._news.set()
            self._hub.note_durable()

    async def _remember_change(self) -> None:
        """Remember the settings of an update, which has put a new config into the state (P9)."""
        state = self._handler.state
        if state.config is not self._config:
            self._config = state.config
            await trio.to_thread.run_sync(remember_change, self._disk, hash_settings(state))
            await self._read_data_manifest()

    async def _read_data_manifest(self) -> None:
        if self._settings.data_manifest is not None:
            found = await trio.to_thread.run_sync(read_data_manifest, self._settings.data_manifest)
            self._handler.data_manifest = found

    async def _push(self) -> None:
        """Push the durable state, at most every 100 ms unless the run's phase has changed (K5)."""
        while True:
            if self._durable is self._hub.published:
                await self._wait_for_news()
                continue
            since_s = trio.current_time() - self._pushed_at_s
            delay_s = compute_delay_s(self._hub.published, self._durable, since_s)
            if delay_s > 0:
                with trio.move_on_after(delay_s):
                    await self._wait_for_news()
                continue
            await self._publish(self._durable)

    async def _wait_for_news(self) -> None:
        await self._news.wait()
        self._news = trio.Event()

    async def _publish(self, version: StateVersion) -> None:
        self._pushed_at_s = trio.current_time()
        if self._data is not None or self._settings.on_state is not None:
            is_live = self._handler.version is version
            state = self._handler.state if is_live else await trio.to_thread.run_sync(decode_state, version.raw)
            if self._data is not None:
                self._data.update(state)
            if self._settings.on_state is not None:
                self._settings.on_state(state)
        self._hub.publish(version)

    async def _close(self, listener: Listener) -> None:
        await listener.aclose()
        try:
            await self._flush()
        except BackendError as error:  # the disk failed: an earlier error already gives that as the reason for the stop
            self._sink.emit(types.JournalFailed(error=str(error)))
        if self._has_served:  # otherwise it failed to start, which its own error reports
            self._sink.emit(types.ServerStopped(seq=self._handler.journal.durable_seq))
