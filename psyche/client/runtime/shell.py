"""The trio shell around the round engine: it executes actions and reports events to the engine."""

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio
from msgspec.structs import replace

from psyche.backends.port import Backend
from psyche.client.engine import actions as act
from psyche.client.engine.round_engine import RoundEngine
from psyche.client.runtime.bootstrapping import Bootstrapping
from psyche.client.runtime.departure import Departure
from psyche.client.runtime.evals.evaluating import Evaluating
from psyche.client.runtime.evals.exam import Exam
from psyche.client.runtime.openings import Openings
from psyche.client.runtime.peer_queries import PeerQueries
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.trainer_inputs import DataAhead, PayloadCache
from psyche.client.runtime.trainer_tasks import RestartableTrainer, TrainerAction, TrainerTasks
from psyche.client.runtime.weights import sharing
from psyche.client.runtime.weights.loading import Loader
from psyche.client.runtime.weights.replay import ReplayStore
from psyche.client.runtime.weights.serving import Serving
from psyche.client.runtime.weights.uploading import Uploader, is_uploading
from psyche.config.places import format_address
from psyche.core.state.errors import CoordinatorError, Halted, InvalidRunState, WrongRound
from psyche.core.state.messages import Join, NameCheckpoint, Withdraw
from psyche.core.state.state import ZERO32, Checkpoint, Coordinator, OptimizerKind
from psyche.data.provider import DataProvider
from psyche.errors import BackendError, NetworkError, PsycheError, VersionMismatch, WireError
from psyche.modeling.distro.codec import PLAN_NAME
from psyche.modeling.snapshot import read_snapshot_info
from psyche.network.streams import Signal, take_rest
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink
from psyche.wire.address_record import AddressRecord
from psyche.wire.backend import NotAllowed, get_kind
from psyche.wire.line.turns import AtOnce
from psyche.wire.ports import Network, Proof, SyncReply, SyncRequest

FETCHES: Final = 1_024  # payload fetches at once: 256 members, four rounds; the node limits the transfers itself
STATISTICS_EVERY_S: Final = 5.0
IDLE_TICK_S: Final = 1.0
SMALL_BODY_BYTES: Final = 4_096  # checking one is faster than starting a thread
TURN_S: Final = 0.02  # with many members, messages and payloads are processed together at this interval


@dataclass(slots=True)
class Parts:
    """The parts of a shell; the simulator and the tests replace some of them."""

    engine: RoundEngine
    backend: Backend
    network: Network
    trainer: RestartableTrainer
    data: DataProvider
    log: EventSink
    unix_now: Callable[[], float]
    check_payload: Callable[[bytes], None]  # raises WireError (R4)
    on_loaded: Callable[[act.Loaded], None] = lambda _loaded: None
    measure_data: Callable[[bytes], int | None] = lambda _root: None  # size of the data manifest offered to peers (D1)
    exam: Exam | None = None  # what this client measures the certified weights with


@dataclass(frozen=True, slots=True)
class ShellStatistics:
    payloads: int  # in memory
    fetches: int  # under way
    trainer_requests: int  # queued or running


class Shell:
    """Runs one participant until its engine says Exit."""

    def __init__(self, parts: Parts, settings: ClientSettings) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._settings = settings
        self._unwritten_plan = b""  # what kept updates are read by
        snapshots = settings.snapshots_dir
        self._serving = Serving(parts.engine, parts.network, parts.measure_data)
        self._replay = ReplayStore(settings.data_dir / "replay", settings.replay_quota_bytes)
        self._loader = Loader(parts.network, self._serving, snapshots, settings.local_root, self.log, settings.storage)
        self._payloads = PayloadCache()
        self._data = DataAhead(parts.data)
        self._tasks = TrainerTasks(
            parts.trainer, self._loader, self._replay, self, settings=settings, snapshots=snapshots,
            payloads=self._payloads, data=self._data,
        )  # fmt: skip
        self._openings = Openings(parts.network, self._payloads, self)
        self._evals = Evaluating(parts.exam, parts.engine, parts.trainer, self._tasks, parts.network, self.log)
        self._queries = PeerQueries(parts.network, self, settings.node_name)
        self._departure = Departure(settings.stop_grace_s, self._tasks.wait_idle, self.log, self._wait_for_uploads)
        self._fetches = trio.CapacityLimiter(FETCHES)
        self._next_tick = trio.CancelScope()  # pyright: ignore[reportCallIssue]  # its deadline is the next tick
        self._addresses: tuple[AddressRecord, ...] = ()
        self._bootstrapping = Bootstrapping(parts.network, settings.bootstrap, self.log, parts.unix_now)
        self._arrived: list[act.EngineEvent] = []  # payload events for the next turn
        self._turn_at = math.inf  # when the next turn is
        self._replay_writes = 0
        self._replay_idle = Signal()
        self._uploader = Uploader(settings, parts.network, lambda: self.state, self.log)
        self._uploads = 0
        self._uploads_idle = Signal()
        self._newest = ZERO32  # digest of the newest snapshot
        self._keeping = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self._started: dict[type[act.Action], Callable[[Any], Awaitable[object]]] = {
            act.Publish: self._publish,
            act.Announce: self._announce,
            act.FetchPayload: self._fetch_payload,
            act.CancelTrain: self._tasks.cancel,
            act.CancelAudit: self._tasks.audits.cancel,
            act.KeepEvidence: self._keep_evidence,
            act.ShortenTrain: self._tasks.shorten,
            act.AskAnnouncements: self._queries.ask_announcements,
            act.AskTable: self._queries.ask_table,
            act.AskWeights: self._queries.ask_weights,
            act.AskOpening: self._openings.ask,
            act.Submit: self._send,
            act.ShareCheckpoint: self._send,
            act.Exit: self._departure.leave,
        }

    # --- TrainerContext ---------------------------------------------------------------------------

    @property
    def state(self) -> Coordinator:
        return self._engine.state

    def find_mergeable(self, epoch: int, height: int) -> Sequence[act.Held]:
        return self._engine.find_mergeable(epoch, height)

    async def offer_opening(self, action: act.Open, opening: bytes) -> None:
        await self._openings.offer(action.epoch, action.height, action.member, opening)

    def statistics(self) -> ShellStatistics:
        return ShellStatistics(len(self._payloads), int(self._fetches.borrowed_tokens), self._tasks.open_requests)

    def log(self, event: types.Event) -> None:
        self._parts.log.emit(event)

    def feed(self, event: act.EngineEvent) -> None:
        """Pass an event to the engine, and execute the resulting actions."""
        if isinstance(event, act.Loaded):
            self._unwritten_plan = event.reply.plan
            self._openings.set_plan(event.reply.plan)
            self._parts.on_loaded(event)
        self._execute(self._engine.on_events((event,), trio.current_time()))
        if isinstance(event, act.SnapshotWritten) and event.reply is not None:
            self._newest = event.digest
        if isinstance(event, act.SnapshotWritten | act.Loaded | act.FetchedAhead):
            self._start(self._keep_snapshots)

    def take_answer(self, items: tuple[bytes, ...]) -> None:
        self._execute(self._engine.on_answer(items, trio.current_time()))

    # --- running ----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Take part until the run is finished, the client has to leave, or `stop` is called; return the exit code."""
        self._parts.network.set_sync_handler(self._answer)
        self._bootstrapping.start()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for task in (self._follow_states, self._follow_gossip, self._tick, self._tasks.run):
                nursery.start_soon(task)
            nursery.start_soon(self._report_statistics)
            nursery.start_soon(self._guard, self._evals.run)
            code = await self._departure.wait()
            nursery.cancel_scope.cancel()
        self._log_statistics()
        return code

    @property
    def is_stopped(self) -> bool:
        return self._departure.is_stopped

    def stop(self, reason: str) -> None:
        """Withdraw and end within the grace period (F26)."""
        self._execute(self._engine.on_stop(reason))

    def _execute(self, actions: list[act.Action]) -> None:
        for action in actions:
            self._do(action)
        self._follow_addresses()
        self._next_tick.deadline = self._compute_next_tick()

    def _do(self, action: act.Action) -> None:
        match action:
            case types.Event():
                self._write_log(action)
            case act.FetchData():
                self._start(self._data.fetch, action, self._data.expect(action))
            case act.SetPeers():
                self._parts.network.set_allowed(action.keys, action.members)
            case act.SetPlan():
                self._parts.network.set_plan(action.run_uid, action.plan_hash)
            case act.ReconnectSoon():
                if self._parts.backend.reconnect_soon is not None:
                    self._parts.backend.reconnect_soon()
            case act.Expire():
                self._expire(action)
            case _ if isinstance(action, TrainerAction):
                self._put(action)
            case _:
                self._start_on(action)

    def _put(self, action: TrainerAction) -> None:
        if isinstance(action, act.Apply):
            # S7: stored first, so that a replay finds also the set whose apply went wrong
            self._replay_writes += 1
            self._start(self._store_replay, action, self._payloads.find(action.blobs))
        elif not isinstance(action, act.Audit) and self._tasks.audits.is_running:
            self._start(self._tasks.audits.cancel, action)  # training comes first
        self._tasks.put(action)

    def _start_on(self, action: act.Action) -> None:
        """Start the task of an action; what others may rely on at once is noted before it."""
        if isinstance(action, act.Announce):
            self._payloads.keep(action.blob_id, action.epoch, action.height, action.body)  # may be applied soon
        elif isinstance(action, act.Submit) and isinstance(action.message, Withdraw):
            self._departure.note_withdrawing()
        self._start(self._started[type(action)], action)

    def _start(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        assert self._nursery is not None, "actions are executed while running"
        self._nursery.start_soon(self._guard, function, *args)

    async def _guard(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run the task of one action; log its failure instead of ending the client."""
        try:
            await function(*args)
        except (PsycheError, OSError) as error:  # F16: not even a full disk ends the client
            self.log(types.Error(message=str(error), action=getattr(function, "__name__", "task")))

    def _write_log(self, event: types.Event) -> None:
        if isinstance(event, types.WaitStarted | types.WaitEnded) and event.until is not None:
            # the engine's deadlines are monotonic; the log needs unix time
            event = replace(event, until=self._parts.unix_now() + event.until - trio.current_time())
        self.log(event)
        if isinstance(event, types.Evidence):
            self._start(self._write_evidence, event)

    async def _write_evidence(self, event: types.Evidence) -> None:
        text = json.dumps(types.get_plain_fields(event), indent=1) + "\n"
        path = self._settings.data_dir / f"evidence-epoch-{self.state.progress.epoch:05d}.json"
        await trio.to_thread.run_sync(_write_file, path, text.encode())

    # --- events in --------------------------------------------------------------------------------

    async def _follow_states(self) -> None:
        try:
            async for state in self._parts.backend.states():
                self._execute(self._engine.on_state(state, trio.current_time()))
                self._evals.follow()
        except VersionMismatch as error:
            self.log(types.Error(message=str(error)))
            self._do(act.Exit(error.exit_code, str(error), types.LeaveCause.WRONG_VERSION))
        except BackendError as error:
            self.log(types.Error(message=str(error)))
            self._do(act.Exit(error.exit_code, str(error), types.LeaveCause.BACKEND))

    async def _follow_gossip(self) -> None:
        """Pass on all waiting messages together: an engine step gets more expensive with the number of members."""
        messages = self._parts.network.messages()
        async for _, raw in messages:
            raws = self._evals.take([raw, *(rest for _, rest in take_rest(messages))])
            self._execute(self._engine.on_messages(raws, trio.current_time()))
            if self._engine.has_many_members:
                await trio.sleep(TURN_S)

    def _feed_soon(self, event: act.PayloadArrived | act.PayloadFailed) -> None:
        """Pass a payload event to the engine; with many members, in the next turn."""
        if self._engine.has_many_members:
            if not self._arrived:
                self._turn_at = trio.current_time() + TURN_S
                self._next_tick.deadline = min(self._next_tick.deadline, self._turn_at)
            self._arrived.append(event)
        else:
            self.feed(event)

    async def _tick(self) -> None:
        while True:
            self._next_tick = trio.CancelScope(deadline=self._compute_next_tick())  # pyright: ignore[reportCallIssue]
            with self._next_tick:  # every event moves the deadline without waking this task
                await trio.sleep_forever()
            now, arrived = trio.current_time(), self._arrived
            self._arrived, self._turn_at = [], math.inf
            self._execute(self._engine.on_events(arrived, now))

    def _compute_next_tick(self) -> float:
        now = trio.current_time()
        deadline = self._engine.get_deadline(now)
        latest = min(now + IDLE_TICK_S, self._turn_at)
        return latest if deadline is None else min(deadline, latest)

    def _follow_addresses(self) -> None:
        """Pass on changed addresses at every event: others may join at any time."""
        if self._parts.backend.get_addresses is not None:
            book = tuple(self._parts.backend.get_addresses())
            if book is not self._addresses and book != self._addresses:
                self._addresses = book
                self._parts.network.set_addresses(book)
        self._bootstrapping.follow(self.state.bootstrap)

    # --- messages out -----------------------------------------------------------------------------

    async def _submit(self, action: act.Submit) -> None:
        message = action.message
        if action.before is not None:
            self._write_log(action.before)
        try:
            await self._parts.backend.submit(message, self._get_proof(action))
        finally:
            if isinstance(message, Withdraw):
                self._departure.note_withdrawn()
        if action.after is not None:
            self._write_log(action.after)

    def _get_proof(self, action: act.Submit) -> Proof:
        """The proof sent with a message: this node's address record with a join, else the action's evidence."""
        return self._parts.network.address_record() if isinstance(action.message, Join) else action.evidence

    async def _send(self, action: act.Submit | act.ShareCheckpoint) -> None:
        """Send a message; log it if the message comes too late or the coordinator refuses it."""
        name = get_kind(action.message).name if isinstance(action, act.Submit) else "checkpoint"
        try:
            await (self._submit(action) if isinstance(action, act.Submit) else self._share_checkpoint(action))
        except (WrongRound, InvalidRunState, Halted) as error:
            self.log(types.TooLate(action=name, reason=str(error)))  # T7: the state has moved on
        except CoordinatorError as error:
            self.log(types.RefusedByCoordinator(action=name, code=error.code, reason=str(error)))
        except NotAllowed as error:  # M12: the backend waits until the owner lets this key in
            self.log(types.RefusedByCoordinator(action=name, code="NotAllowed", reason=str(error)))

    async def _share_checkpoint(self, action: act.ShareCheckpoint) -> None:
        settings, state = self._settings, self.state
        own = await self._loader.find_local(action.digest)
        if own is None:
            return  # another epoch has certified newer weights meanwhile
        if is_uploading(settings):
            await self._upload(action, own.path)
            return
        assert settings.checkpoint_dir is not None, "`check_client_settings` demands it"
        path = settings.checkpoint_dir / sharing.get_shared_name(state.run_id, action.epoch, action.step)
        place = await trio.to_thread.run_sync(sharing.share_snapshot, own.path, path, settings.local_root)
        await self._name(action, place, place.name)
        kept = sharing.get_names_on_record(self.state)
        await trio.to_thread.run_sync(
            sharing.remove_old_shared, settings.checkpoint_dir, state.run_id, settings.local_root, kept
        )  # fmt: skip

    async def _upload(self, action: act.ShareCheckpoint, path: Path) -> None:
        self._uploads += 1
        try:
            info = await trio.to_thread.run_sync(read_snapshot_info, path)
            place = await self._uploader.upload(info, self._tasks.loss)
            if place is not None:
                await self._name(action, place, format_address(place))
                await self._uploader.upload_for_people(info, self._tasks.loss)
        finally:
            self._uploads -= 1
            self._uploads_idle.notify()

    async def _name(self, action: act.ShareCheckpoint, place: Checkpoint, address: str) -> None:
        await self._parts.backend.submit(NameCheckpoint(action.epoch, action.digest, place))
        self.log(types.CheckpointShared(epoch=action.epoch, step=action.step, digest=action.digest, path=address))

    async def _wait_for_uploads(self) -> None:
        while self._uploads:
            await self._uploads_idle.wait()

    async def _publish(self, action: act.Publish) -> None:
        await self._parts.network.publish(action.raw)

    async def _announce(self, action: act.Announce) -> None:
        for blob in filter(None, (action.body, action.table)):
            await self._parts.network.provide(blob, expires=(action.epoch, action.height + 4))
        await self._parts.network.publish(action.raw)
        await self._prepare(action.body)
        await self._write_update(f"epoch-{action.epoch:05d}-round-{action.height:06d}", action.body)

    async def _prepare(self, body: bytes) -> None:
        if self.state.model.optimizer.kind is OptimizerKind.LOCAL_STEPS:  # others merge nothing in a round
            await self._parts.trainer.prepare(body)

    async def _write_update(self, name: str, body: bytes) -> None:
        folder = self._settings.distro_dir
        if folder is None:
            return
        if plan := self._unwritten_plan:
            await trio.to_thread.run_sync(_write_file, folder / PLAN_NAME, plan)
            self._unwritten_plan = b"" if self._unwritten_plan is plan else self._unwritten_plan
        await trio.to_thread.run_sync(_write_file, folder / f"{name}.distro", body)

    # --- payloads and data ------------------------------------------------------------------------

    async def _fetch_payload(self, action: act.FetchPayload) -> None:
        try:
            async with AtOnce(self._fetches):
                body = await self._fetch(action, action.blob_id, action.size_bytes)
                table = await self._fetch(action, action.table, action.table_bytes) if action.table_bytes else b""
            if action.is_report:  # the engine reads it
                self._feed_soon(act.PayloadArrived(action.commitment, table, body))
                return
            if len(body) > SMALL_BODY_BYTES:
                await trio.to_thread.run_sync(self._parts.check_payload, body)
            else:
                self._parts.check_payload(body)
        except NetworkError as error:
            self._feed_soon(act.PayloadFailed(action.commitment, str(error), refused=False))
        except WireError as error:
            self._feed_soon(act.PayloadFailed(action.commitment, str(error), refused=True))
        else:
            self._payloads.keep(action.blob_id, action.epoch, action.height, body)
            self.log(types.PayloadReceived(from_member=action.member, height=action.height, bytes=len(body)))
            self._feed_soon(act.PayloadArrived(action.commitment, table))
            await self._prepare(body)
            if self._settings.write_gradients == "all":
                name = f"epoch-{action.epoch:05d}-round-{action.height:06d}-member-{action.member:03d}"
                await self._write_update(name, body)

    async def _fetch(self, action: act.FetchPayload, blob: bytes, size_bytes: int) -> bytes:
        fetch = self._parts.network.fetch
        return await fetch(blob, action.sources, size_bytes=size_bytes, deadline=action.deadline)

    async def _keep_evidence(self, action: act.KeepEvidence) -> None:
        settings = self._settings
        if settings.keep_evidence:
            folder = settings.data_dir / "evidence"
            path = await self._tasks.audits.write_evidence(action, folder, settings.keep_evidence)
            self.log(types.EvidenceKept(path=str(path), member=action.member, height=action.height))

    async def _store_replay(self, action: act.Apply, bodies: tuple[bytes, ...] | None) -> None:
        try:
            if bodies is None:
                raise NetworkError(f"replay store: a payload applied at height {action.height} is no longer here")
            await trio.to_thread.run_sync(self._replay.write, action, bodies)
        finally:
            self._replay_writes -= 1
            self._replay_idle.notify()

    async def wait_for_replay(self) -> None:
        while self._replay_writes:
            await self._replay_idle.wait()  # bounded by the disk

    def _expire(self, action: act.Expire) -> None:
        self._parts.network.expire(action.epoch, action.height)
        self._payloads.expire(action.epoch, action.height)
        self._data.expire(action.epoch, action.height)

    # --- asking peers -----------------------------------------------------------------------------

    async def _answer(self, peer: bytes, request: SyncRequest) -> SyncReply:
        if request.kind == "upload":
            return SyncReply(found=is_uploading(self._settings))
        if request.kind == "opening":
            return self._openings.answer(request)
        if request.kind != "manifest" or request.key:
            return await self._serving.answer(peer, request)
        promised, actions = self._engine.on_weights_wanted(peer, request.epoch, request.height)
        self._execute(actions)
        return SyncReply(found=promised)

    # --- the rest ---------------------------------------------------------------------------------

    async def _keep_snapshots(self) -> None:
        async with self._keeping:
            await self._loader.keep(self.state.certified.digest, self._newest)
        epoch = self.state.progress.epoch
        await trio.to_thread.run_sync(self._replay.keep_epochs, max(0, epoch - 1), epoch)

    async def _report_statistics(self) -> None:
        while True:
            await trio.sleep(STATISTICS_EVERY_S)
            self._log_statistics()

    def _log_statistics(self) -> None:
        s = self._parts.network.statistics()
        self.log(
            types.Network(
                bytes_sent=s.bytes_sent, bytes_received=s.bytes_received, peers=s.peers,
                gossip_sent=s.gossip_sent, gossip_received=s.gossip_received, gossip_refused=s.gossip_refused,
            )
        )  # fmt: skip


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
