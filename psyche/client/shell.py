"""The trio shell around the round engine: executes its actions, feeds it what happens."""

import math
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import trio

from psyche.client import actions as act
from psyche.client.files import write_distro, write_evidence
from psyche.client.loading import Loader
from psyche.client.parts import Parts
from psyche.client.replay import ReplayStore
from psyche.client.serving import Serving
from psyche.client.settings import ClientSettings
from psyche.client.sharing import get_names_on_record, get_shared_name, remove_old_shared, share_snapshot
from psyche.client.trainer_tasks import TrainerAction, TrainerTasks
from psyche.core.errors import CoordinatorError, Halted, InvalidRunState, WrongRound
from psyche.core.state import ZERO32, Coordinator
from psyche.errors import BackendError, DataError, NetworkError, PsycheError, WireError
from psyche.wire.ports import AddressRecord, SyncReply, SyncRequest
from psyche.wire.turns import AtOnce

T = TypeVar("T")
FETCHES: Final = 1_024  # payloads asked for: of 256 members, four rounds; the node transfers few of them at a time
SYNC_PEERS: Final = 4  # peers asked for announcements at a time
SYNC_TIMEOUT_S: Final = 5.0
STATISTICS_EVERY_S: Final = 5.0
IDLE_TICK_S: Final = 1.0
SMALL_BODY_BYTES: Final = 4_096  # checked sooner than a thread begins to run
TURN_S: Final = 0.02  # where members are many, what they say and send is looked at so often, and together
LAST_WRITES_S: Final = 600.0  # for an export that still runs when the run is over
FAREWELL_S: Final = 0.2
WITHDRAW_S: Final = 2.0  # for the answer to a last withdrawal: a server that is away withdraws us itself (H6)
TRAINER_ACTIONS: Final = (
    act.Load, act.Train, act.Apply, act.Heal, act.Compare, act.Snapshot, act.Export, act.FetchSnapshot,
)  # fmt: skip


@dataclass(slots=True)
class _Pending:
    """Data that is on its way."""

    done: trio.Event = field(default_factory=trio.Event)
    tokens: bytes = b""
    error: PsycheError | None = None


class Shell:
    """Runs one participant until its engine says Exit."""

    def __init__(self, parts: Parts, settings: ClientSettings) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._settings = settings
        snapshots = (settings.checkpoint_dir or settings.data_dir) / "resume"
        self._serving = Serving(parts.engine, parts.network)
        self._replay = ReplayStore(settings.data_dir / "replay", settings.replay_quota_bytes)
        self._loader = Loader(parts.network, self._serving, snapshots, settings.local_root)
        self._tasks = TrainerTasks(
            parts.trainer, self._loader, self._replay, self, settings=settings, snapshots=snapshots
        )
        self._bodies: dict[bytes, tuple[int, int, bytes]] = {}  # blob id -> epoch, height, body
        self._data: dict[tuple[int, int], _Pending] = {}
        self._fetches = trio.CapacityLimiter(FETCHES)
        self._next_tick = trio.CancelScope()  # pyright: ignore[reportCallIssue]  # ends when the engine wants to look
        self._addresses: tuple[AddressRecord, ...] = ()
        self._exit: act.Exit | None = None
        self._withdrawn = trio.Event()  # the last withdrawal is answered
        self._withdrawn.set()
        self._ended = trio.Event()
        self._hurry = trio.Event()  # a second Exit: nobody waits for the first one's serving any more
        self._arrived: list[act.Event] = []  # payloads that the engine hears of in the next turn
        self._turn_at = math.inf  # when that is
        self._replay_writes = 0
        self._replay_idle = trio.Event()
        self._asked = 0
        self._newest = ZERO32  # digest of the snapshot that was written last
        self._keeping = trio.Lock()
        self._nursery: trio.Nursery | None = None

    # --- TrainerContext ---------------------------------------------------------------------------

    @property
    def state(self) -> Coordinator:
        """The newest state."""
        return self._engine.state

    def log(self, kind: str, **fields: object) -> None:
        """Write an event."""
        self._parts.log.emit(kind, **fields)

    def feed(self, event: act.Event) -> None:
        """Tell the engine that something is done, and do what follows from it."""
        if isinstance(event, act.Loaded):
            self._parts.on_loaded(event)
        self._execute(self._engine.on_event(event, trio.current_time()))
        if isinstance(event, act.SnapshotWritten) and event.reply is not None:
            self._newest = event.digest
        if isinstance(event, act.SnapshotWritten | act.Loaded):
            self._start(self._keep_snapshots)

    async def take_data(self, epoch: int, height: int, start: int, end: int) -> bytes:
        """Wait for the data that FetchData asked for."""
        pending = self._data.pop((epoch, height), None)
        if pending is None:
            return await self._parts.data.get(start, end, epoch=epoch, height=height)
        await pending.done.wait()  # bounded by the provider's own retries
        if pending.error is not None:
            raise pending.error
        return pending.tokens

    def get_bodies(self, blobs: tuple[bytes, ...]) -> tuple[bytes, ...] | None:
        """Bodies that the engine knows to be held; None where one has expired."""
        found = [self._bodies.get(blob) for blob in blobs]
        return None if None in found else tuple(entry[2] for entry in found if entry is not None)

    # --- running ----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Take part until the run is finished, the client has to leave, or `stop` was called; the exit code."""
        self._parts.network.set_sync_handler(self._answer)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for task in (self._follow_states, self._follow_gossip, self._tick, self._tasks.run):
                nursery.start_soon(task)
            nursery.start_soon(self._report_statistics)
            await self._ended.wait()
            nursery.cancel_scope.cancel()
        self._log_statistics()
        return self._exit.code if self._exit is not None else 1

    def stop(self, reason: str) -> None:
        """Withdraw and end within the grace (F26)."""
        self._execute(self._engine.on_stop(reason))

    def _execute(self, actions: list[act.Action]) -> None:
        for action in actions:
            self._do(action)
        self._follow_addresses()
        self._next_tick.deadline = self._compute_next_tick()

    def _do(self, action: act.Action) -> None:  # noqa: PLR0912  # one line per action
        match action:
            case act.Log():
                self._write_log(action)
            case act.Publish():
                self._start(self._publish, action.raw)
            case act.Announce():
                self._keep_body(action.blob_id, action.epoch, action.height, action.body)  # an apply may follow at once
                self._start(self._announce, action)
            case act.FetchPayload():
                self._start(self._fetch_payload, action)
            case act.FetchData():
                self._data[action.epoch, action.height] = pending = _Pending()
                self._start(self._fetch_data, action, pending)
            case act.StoreReplay():
                self._replay_writes += 1
                self._start(self._store_replay, action.entry, self.get_bodies(action.entry.blobs))
            case act.CancelTrain():
                self._start(self._tasks.cancel, action)
            case act.AskAnnouncements():
                self._start(self._ask_announcements, action)
            case act.AskTable():
                self._start(self._ask_table, action)
            case act.AskWeights():
                self._start(self._ask_weights, action)
            case act.SetPeers():
                self._parts.network.set_allowed(action.keys)
            case act.SetPlan():
                self._parts.network.set_plan(action.run_uid, action.plan_hash)
            case act.Expire():
                self._expire(action)
            case act.Exit():
                self._start(self._leave, action)
            case _:
                self._do_elsewhere(action)

    def _do_elsewhere(self, action: act.Action) -> None:
        if isinstance(action, TRAINER_ACTIONS):
            queued: TrainerAction = action
            self._tasks.put(queued)
            return
        if isinstance(action, act.Withdraw):
            self._withdrawn = trio.Event()
        self._start(self._send, action)

    def _start(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        assert self._nursery is not None, "actions are executed while running"
        self._nursery.start_soon(self._guard, function, *args)

    async def _guard(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """A task of one action: what fails is an event, not the client's death."""
        try:
            await function(*args)
        except (PsycheError, OSError) as error:  # F16: a full disk ends no client either
            self.log("error", message=str(error), action=getattr(function, "__name__", "task"))

    def _write_log(self, action: act.Log) -> None:
        fields = dict(action.fields)
        until = fields.get("until")
        if isinstance(until, float):  # the engine's clock is monotonic, people's is not
            fields["until"] = self._parts.unix_now() + until - trio.current_time()
        self.log(action.kind, **fields)
        if action.kind == "evidence":
            self._start(write_evidence, self._settings.data_dir, self.state.progress.epoch, fields)

    # --- what comes in ----------------------------------------------------------------------------

    async def _follow_states(self) -> None:
        try:
            async for state in self._parts.backend.states():
                self._execute(self._engine.on_state(state, trio.current_time()))
        except BackendError as error:
            self.log("error", message=str(error))
            self._do(act.Exit(1, str(error)))

    async def _follow_gossip(self) -> None:
        """Whatever there is, together: to go on costs the more, the more members there are."""
        messages = self._parts.network.messages()
        async for _, raw in messages:
            raws = [raw, *_take_rest(messages)]
            self._execute(self._engine.on_messages(raws, trio.current_time()))
            if self._engine.is_crowded:
                await trio.sleep(TURN_S)

    def _feed_soon(self, event: act.PayloadArrived | act.PayloadFailed) -> None:
        """Tell the engine of a payload, in the next turn where there are very many."""
        if self._engine.is_crowded:
            if not self._arrived:
                self._turn_at = trio.current_time() + TURN_S
                self._next_tick.deadline = min(self._next_tick.deadline, self._turn_at)
            self._arrived.append(event)
        else:
            self.feed(event)

    async def _tick(self) -> None:
        while True:
            self._next_tick = trio.CancelScope(deadline=self._compute_next_tick())  # pyright: ignore[reportCallIssue]
            with self._next_tick:  # whatever the engine is told moves the deadline, and wakes nobody
                await trio.sleep_forever()
            now, arrived = trio.current_time(), self._arrived
            self._arrived, self._turn_at = [], math.inf
            self._execute(self._engine.on_events(arrived, now) if arrived else self._engine.on_tick(now))

    def _compute_next_tick(self) -> float:
        now = trio.current_time()
        deadline = self._engine.get_deadline(now)
        latest = min(now + IDLE_TICK_S, self._turn_at)
        return latest if deadline is None else min(deadline, latest)

    def _follow_addresses(self) -> None:
        """Whatever wakes the client, it looks whom the server has heard of: others may join at any time."""
        book = tuple(self._parts.backend.address_book())
        if book is not self._addresses and book != self._addresses:
            self._addresses = book
            self._parts.network.set_addresses(book)

    # --- messages out -----------------------------------------------------------------------------

    async def _send(self, action: act.Action) -> None:
        backend = self._parts.backend
        try:
            match action:
                case act.Join():
                    await backend.join(self._parts.network.address_record())
                    self.log("joined", epoch=action.epoch)
                case act.Withdraw():
                    await self._withdraw(action)
                case act.SendWarmupWitness():
                    await backend.warmup_witness(action.epoch, action.member, action.digest)
                    self.log("warmup_ready", epoch=action.epoch, digest=action.digest)
                case act.SendWitness():
                    self.log(
                        "witness_sent", epoch=action.message.epoch, height=action.message.height, reason=action.reason
                    )
                    await backend.witness(action.message)
                case act.SendHealthCheck():
                    await backend.health_check(action.epoch, action.height, action.member)
                case act.SendEquivocation():
                    await backend.report_equivocation(action.first, action.second)
                case act.ShareCheckpoint():
                    await self._share_checkpoint(action)
                case _:
                    raise AssertionError(f"no way to do {action}")
        except (WrongRound, InvalidRunState, Halted) as error:
            self.log("too_late", action=type(action).__name__, reason=str(error))  # T7: others were faster
        except CoordinatorError as error:
            self.log("refused_by_coordinator", action=type(action).__name__, code=error.code, reason=str(error))

    async def _withdraw(self, action: act.Withdraw) -> None:
        try:
            await self._parts.backend.withdraw(action.epoch, action.member)
        finally:
            self._withdrawn.set()
        self.log("withdrew", epoch=action.epoch, reason=action.reason)

    async def _share_checkpoint(self, action: act.ShareCheckpoint) -> None:
        settings, state = self._settings, self.state
        own = await self._loader.find_local(action.digest)
        if own is None or settings.checkpoint_dir is None:
            return  # another epoch has certified other weights meanwhile
        path = settings.checkpoint_dir / get_shared_name(state.run_id, action.epoch, action.step)
        place = await trio.to_thread.run_sync(share_snapshot, own.path, path, settings.local_root)
        await self._parts.backend.checkpoint(action.epoch, action.digest, place)
        self.log("checkpoint_shared", epoch=action.epoch, step=action.step, digest=action.digest, path=place.name)
        kept = get_names_on_record(self.state)
        await trio.to_thread.run_sync(
            remove_old_shared, settings.checkpoint_dir, state.run_id, settings.local_root, kept
        )  # fmt: skip

    async def _publish(self, raw: bytes) -> None:
        await self._parts.network.publish(raw)

    async def _announce(self, action: act.Announce) -> None:
        await self._parts.network.provide(action.body, expires=(action.epoch, action.height + 4))
        await self._parts.network.publish(action.raw)
        if self._settings.distro_dir is not None:
            await write_distro(self._settings.distro_dir, action.epoch, action.height, action.body)

    # --- payloads and data ------------------------------------------------------------------------

    async def _fetch_payload(self, action: act.FetchPayload) -> None:
        try:
            async with AtOnce(self._fetches):
                body = await self._parts.network.fetch(
                    action.blob_id, action.sources, size_bytes=action.size_bytes, deadline=action.deadline
                )
            if len(body) > SMALL_BODY_BYTES:
                await trio.to_thread.run_sync(self._parts.check_payload, body)
            else:
                self._parts.check_payload(body)
        except NetworkError as error:
            self._feed_soon(act.PayloadFailed(action.commitment, str(error), refused=False))
        except WireError as error:
            self._feed_soon(act.PayloadFailed(action.commitment, str(error), refused=True))
        else:
            self._keep_body(action.blob_id, action.epoch, action.height, body)
            self.log("payload_received", from_member=action.member, height=action.height, bytes=len(body))
            self._feed_soon(act.PayloadArrived(action.commitment))

    async def _fetch_data(self, action: act.FetchData, pending: _Pending) -> None:
        try:
            pending.tokens = await self._parts.data.get(
                action.start, action.end, epoch=action.epoch, height=action.height
            )
        except PsycheError as error:
            pending.error = error
        except OSError as error:
            pending.error = DataError(f"data: {error}")
        finally:
            pending.done.set()

    def _keep_body(self, blob_id: bytes, epoch: int, height: int, body: bytes) -> None:
        """Two rounds may carry the same bytes: they stay as long as the later one needs them."""
        known = self._bodies.get(blob_id, (epoch, height, body))
        self._bodies[blob_id] = (*max((epoch, height), known[:2]), body)

    async def _store_replay(self, entry: act.AppliedSet, bodies: tuple[bytes, ...] | None) -> None:
        try:
            if bodies is None:
                raise NetworkError(f"replay store: a payload applied at height {entry.height} is no longer here")
            await trio.to_thread.run_sync(self._replay.write, entry, bodies)
        finally:
            self._replay_writes -= 1
            self._replay_idle.set()
            self._replay_idle = trio.Event()

    async def wait_for_replay(self) -> None:
        """Until every set that was applied is in the replay store, or could not be written."""
        while self._replay_writes:
            await self._replay_idle.wait()  # bounded by the disk

    def _expire(self, action: act.Expire) -> None:
        key = (action.epoch, action.height)
        self._parts.network.expire(action.epoch, action.height)
        self._bodies = {b: entry for b, entry in self._bodies.items() if entry[:2] >= key}
        self._data = {k: pending for k, pending in self._data.items() if k >= key}

    # --- asking peers -----------------------------------------------------------------------------

    async def _ask_announcements(self, action: act.AskAnnouncements) -> None:
        peers = sorted(self._parts.network.connected())
        request = SyncRequest("announcements", epoch=action.epoch, height=action.height, have=action.have)
        # which peers are asked is no secret and needs no strong randomness, only spreading
        self._asked += 1
        spread = random.Random(f"{self._settings.node_name}{action}{self._asked}")  # noqa: S311
        chosen = spread.sample(peers, min(SYNC_PEERS, len(peers)))
        async with trio.open_nursery() as nursery:
            for peer in chosen:
                nursery.start_soon(self._ask_one, peer, request)

    async def _ask_one(self, peer: bytes, request: SyncRequest) -> None:
        try:
            reply = await self._parts.network.ask(peer, request, timeout_s=SYNC_TIMEOUT_S)
        except NetworkError:
            return  # others are asked the next time
        if reply.items:
            self._execute(self._engine.on_answer(reply.items, trio.current_time()))

    async def _ask_table(self, action: act.AskTable) -> None:
        items: tuple[bytes, ...] | None = None
        try:
            request = SyncRequest("table", epoch=action.epoch, height=action.height, key=action.root)
            reply = await self._parts.network.ask(action.key, request, timeout_s=SYNC_TIMEOUT_S)
            items = reply.items if reply.found else None
        except NetworkError as error:
            self.log("error", message=str(error))
        self.feed(act.TableArrived(action.epoch, action.height, action.member, action.root, items))

    async def _answer(self, peer: bytes, request: SyncRequest) -> SyncReply:
        """One question of a peer that has passed hello."""
        if request.kind != "manifest" or request.key:
            return await self._serving.answer(peer, request)
        promised, actions = self._engine.on_weights_wanted(peer, request.epoch, request.height)
        self._execute(actions)
        return SyncReply(found=promised)

    async def _ask_weights(self, action: act.AskWeights) -> None:
        request = SyncRequest("manifest", epoch=action.epoch, height=action.height)
        try:
            reply = await self._parts.network.ask(action.key, request, timeout_s=SYNC_TIMEOUT_S)
        except NetworkError:
            return  # another one is asked soon
        if reply.found:
            self.feed(act.WeightsPromised(action.epoch, action.height, action.member))

    # --- the rest ---------------------------------------------------------------------------------

    async def _keep_snapshots(self) -> None:
        async with self._keeping:
            await self._loader.keep(self.state.certified.digest, self._newest)
        epoch = self.state.progress.epoch
        await trio.to_thread.run_sync(self._replay.keep_epochs, max(0, epoch - 1), epoch)

    async def _leave(self, action: act.Exit) -> None:
        if self._exit is not None:
            self._hurry.set()
            return
        self._exit = action
        if action.serve_s > 0:
            await self._serve_last(action.serve_s)
        else:
            await trio.sleep(min(FAREWELL_S, self._settings.stop_grace_s))  # let Leave go out
            with trio.move_on_after(min(WITHDRAW_S, self._settings.stop_grace_s)):
                await self._withdrawn.wait()
        self.log("left", reason=action.reason, code=action.code)
        self._ended.set()

    async def _serve_last(self, seconds: float) -> None:
        """P8: serve the final weights for a while, and finish writing them; a second Exit ends that at once."""
        self.log("serving", seconds=seconds)
        with trio.move_on_after(seconds):
            await self._hurry.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_on_hurry, nursery.cancel_scope)
            with trio.move_on_after(LAST_WRITES_S):
                await self._tasks.wait_idle()
            nursery.cancel_scope.cancel()

    async def _cancel_on_hurry(self, scope: trio.CancelScope) -> None:
        await self._hurry.wait()
        scope.cancel()

    async def _report_statistics(self) -> None:
        while True:
            await trio.sleep(STATISTICS_EVERY_S)
            self._log_statistics()

    def _log_statistics(self) -> None:
        s = self._parts.network.statistics()
        self.log(
            "network", bytes_sent=s.bytes_sent, bytes_received=s.bytes_received, peers=s.peers,
            gossip_sent=s.gossip_sent, gossip_received=s.gossip_received, gossip_refused=s.gossip_refused,
        )  # fmt: skip


def _take_rest(messages: trio.MemoryReceiveChannel[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """What has come and is not read yet."""
    with suppress(trio.WouldBlock, trio.EndOfChannel):
        while True:
            yield messages.receive_nowait()[1]
