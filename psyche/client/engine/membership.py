"""This client's membership: join, warm up, restart, cool down, finish (M1 to M9, S8, P3 to P8)."""

from dataclasses import dataclass

from psyche.client.engine import actions
from psyche.client.engine.chain import Chain
from psyche.client.engine.context import EngineContext, RunFacts
from psyche.client.engine.training import Training
from psyche.client.engine.weights import Weights
from psyche.core.committee.elections import compute_quorum
from psyche.core.encoding.account import get_config_preimage
from psyche.core.encoding.plan import decode_plan, get_payload_bytes
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.limits import WITNESS_SILENCE_LIMIT
from psyche.core.state.messages import Join, WarmupWitness, Withdraw
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import ZERO32, Client, ClientState, Config, RunState, Slot, SlotState
from psyche.errors import WireError
from psyche.telemetry import types
from psyche.telemetry.types import LeaveCause, Wait, WaitOutcome, WeightSource
from psyche.wire.crypto import blake3_hash

LOAD_AGAIN_S = 1.0
JOIN_AGAIN_S = 5.0


def explain_drop(client: Client, config: Config) -> str:
    """Explain to a dropped client's user what the record holds against it, and what helps (H2, H4, T8)."""
    if client.state is not ClientState.DROPPED:
        return ""
    if client.late >= config.late_limit:
        return (
            f"too slow: its results of {config.late_limit} rounds came after the others had gone on; give it more of "
            "the machine (--threads, --device), a faster line, or ask the run's owner for longer rounds "
            f"(max_round_train_time is {config.max_round_train_time} s)"
        )
    if client.missed >= config.evict_after:
        return (
            f"not heard: {config.evict_after} rounds went by without a sign of it; check its line, and whether the "
            "machine slept or was overloaded"
        )
    if client.witness_missed >= WITNESS_SILENCE_LIMIT:
        return "its reports on the rounds were missing; check its line, and whether the machine was overloaded"
    return "the epoch began without it: its weights were not ready in time, or not those of the others"


@dataclass(slots=True)
class Membership:
    context: EngineContext
    chain: Chain
    training: Training
    weights: Weights
    export: actions.ExportTime = actions.ExportTime.NEVER
    share: bool = False
    weights_digest: bytes | None = None  # full digest of the trainer's weights between epochs
    passed_warmup: int | None = None  # the epoch whose Warmup this process saw as a member (M9)
    synchronised: tuple[int, bytes] | None = None  # epoch and digest of the last load that suits the epoch's start
    loading: bool = False
    loading_for: tuple[bool, bytes] = (False, b"")  # whether the running load drops the momentum, and its settings
    load_at: float = 0.0
    lacks_source: bool = False  # nothing is certified yet, and this client could not load the configured source
    warm_digest: bytes | None = None  # digest of the last warmup_witness
    joined: tuple[int, int] | None = None
    join_at: float = 0.0
    withdrawn_epoch: int | None = None
    exported: bytes = ZERO32
    kept: bytes = ZERO32  # digest of the newest own snapshot
    unwritten: actions.WriteSnapshot | None = None  # the last request, if writing it failed
    write_at: float = 0.0
    shared: bytes = ZERO32
    ahead: bytes = ZERO32  # digest of the weights that are fetched, or being fetched, before their Warmup
    ahead_at: float = 0.0
    fetching: bool = False
    fetch_at: float = 0.0
    done: bool = False
    _peers: tuple[frozenset[bytes], frozenset[bytes]] = (frozenset(), frozenset())

    def follow_registry(self) -> None:
        live = (SlotState.JOINED, SlotState.LEAVING)
        keys = frozenset(s.p2p for s in self.context.state.registry.slots if s.state in live)
        peers = keys, keys & {c.p2p for c in self.context.state.clients}
        if peers != self._peers:
            self._peers = peers
            self.context.do(actions.SetPeers(*peers))

    def get_slot(self) -> Slot | None:
        own = self.context.identity.public
        return next(
            (s for s in self.context.state.registry.slots if s.p2p == own and s.state is not SlotState.FREE), None
        )

    def enter_epoch(self) -> None:
        self.warm_digest = None
        self.load_at = 0.0
        self.lacks_source = False
        self.withdrawn_epoch = None  # a running load goes on: a second one might last into a round

    def act(self, now: float) -> None:
        state = self.context.state
        if state.certified.epoch < state.progress.epoch:
            self._share_checkpoint()
        match state.run_state:
            case RunState.WAITING_FOR_MEMBERS:
                self._wait_for_members(now)
            case RunState.WARMUP:
                self._warm_up(now)
            case RunState.ROUND_TRAIN | RunState.ROUND_WITNESS:
                self._take_part(now)
            case RunState.COOLDOWN:
                self._cool_down(now)
            case RunState.FINISHED:
                self._finish(now)
            case RunState.PAUSED | RunState.UNINITIALIZED:
                self.synchronised = None  # P4: load everything anew, since the owner may change the settings
                self.context.wait("paused", Wait.OWNER, "the owner to resume the run", then="join again")

    # --- WaitingForMembers -----------------------------------------------------------------------

    def _wait_for_members(self, now: float) -> None:
        x = self.context
        x.end_wait("paused", WaitOutcome.RESUMED)
        self._share_checkpoint()
        registry, slot = x.state.registry, self.get_slot()
        if slot is not None and slot.state is SlotState.BANNED:
            if not self.done:
                self.done = True
                x.do(actions.Exit(1, "this key is banned from the run", LeaveCause.BANNED))
            return
        if slot is not None and self._has_joined(slot):
            if slot.active == registry.next_active:
                self._fetch_ahead(now)
            joined = sum(map(self._has_joined, registry.slots))
            missing = max(0, x.state.config.init_min_clients - joined)
            who = f"{missing} more member{'s' if missing > 1 else ''}" if missing else "the epoch to form"
            wait = Wait.MORE_MEMBERS if missing else Wait.FORMATION
            x.wait("members", wait, who, then="warm up")
            return
        # M2: a join counts for one formation, so each is joined anew; repeated, because an answer may be lost
        key = (x.epoch, registry.next_active)
        if self.joined != key or now >= self.join_at:
            self.joined, self.join_at = key, now + JOIN_AGAIN_S
            x.do(actions.Submit(Join(x.identity.public), after=types.Joined(epoch=x.epoch)))  # M2

    def _fetch_ahead(self, now: float) -> None:
        """Begin to fetch the weights of the next epoch before its Warmup, half of which a slow line may outlast (T8).

        In full-value mode the weights are chosen among the members that the Warmup has (S2).
        """
        x = self.context
        certified = x.state.certified.digest
        if certified in (ZERO32, self.weights_digest, self.ahead) or now < self.ahead_at:
            return
        if x.state.model.optimizer.is_exact:
            self.ahead = certified
            x.do(actions.FetchAhead(certified))

    def on_fetched_ahead(self, event: actions.FetchedAhead, now: float) -> None:
        if not event.ok and self.ahead == event.digest:
            self.ahead, self.ahead_at = ZERO32, now + LOAD_AGAIN_S

    # --- Warmup ----------------------------------------------------------------------------------

    def _warm_up(self, now: float) -> None:
        x = self.context
        x.end_wait("members", WaitOutcome.EPOCH_FORMED)
        index = x.find_self()
        if index is None or not x.is_healthy(index):
            self._wait_for_next_epoch()
            x.member = None
            return
        if self.passed_warmup != x.epoch or x.member != index:
            x.member = index
            self.passed_warmup = x.epoch
            x.log(types.Member(index=index, members=get_healthy(x.state).bit_count()))
        self._ensure_weights(now)
        if self.weights.is_loaded and self.weights_digest is not None and self.warm_digest != self.weights_digest:
            self.warm_digest = self.weights_digest
            ready = types.WarmupReady(epoch=x.epoch, digest=self.weights_digest)
            x.do(actions.Submit(WarmupWitness(x.epoch, index, self.weights_digest), after=ready))

    def _ensure_weights(self, now: float) -> None:
        """Make sure that the trainer has exactly the certified weights (S8); load them if not."""
        x = self.context
        wanted = self._find_wanted()
        fits = self.weights_digest is not None and wanted in (None, self.weights_digest)
        cold = x.state.epoch.cold_start
        if cold or not x.state.model.optimizer.is_exact:
            # P4: a cold start zeroes the momentum; S2: full values drift, so every Warmup loads one copy again
            fits = fits and self.synchronised == (x.epoch, self.weights_digest)
        if fits:
            self._start_chain()
            self._write_again(now)
            return
        # Absent until the load has ended, so that no digest of other weights is shown meanwhile
        self.weights.lose()
        if self.loading or now < self.load_at:
            return
        self.loading, self.loading_for = True, (cold, get_config_preimage(x.state))
        self.weights_digest = None  # even if they are the right ones: a failed load loses them
        until = x.state_since + x.state.config.warmup_time
        x.wait("weights", Wait.WEIGHTS, "the weights of this epoch", until=until, then="be dropped from the epoch")
        x.do(actions.Load(x.epoch, wanted, x.state.checkpoint.digest, keep_momentum=not cold))

    def _find_wanted(self) -> bytes | None:
        """The digest to load: what is certified; None before that, for the configured source, whatever it gives.

        A client that lacks the configured source takes the weights that a quorum of the Healthy members show in this
        Warmup: no other weights can win then (S8), so it need not trust the peer that serves them (S11).
        """
        state = self.context.state
        if state.certified.digest != ZERO32:
            return state.certified.digest
        if not self.lacks_source:
            return None
        quorum = compute_quorum(get_healthy(state).bit_count())
        return next((c.digest for c in state.epoch.start_candidates if c.count >= quorum), None)

    def _start_chain(self) -> None:
        assert self.weights_digest is not None, "weights are there"
        if not self.weights.is_loaded:
            self.chain.begin(self.weights_digest)  # S1: c(-1) is the certified digest

    def on_loaded(self, event: actions.Loaded) -> None:
        x = self.context
        self.loading = self.lacks_source = False
        try:
            plan = decode_plan(event.reply.plan)
        except (WireError, CoordinatorError) as error:
            self.end(LeaveCause.UNUSABLE_MODEL, f"the model's transform plan cannot be used: {error}")
            return
        settings = get_config_preimage(x.state)
        x.facts = RunFacts(
            plan_hash=blake3_hash(event.reply.plan),
            config_hash=blake3_hash(settings),
            max_body_bytes=get_payload_bytes(plan),
            numeric_class=event.reply.numeric_class,
            parameters=event.reply.parameters,
        )
        self.weights_digest = event.digest
        if event.source is WeightSource.OWN_SNAPSHOT:
            self.kept = event.digest  # S10: a client that was started again goes on sharing them
        # P4, P9: the owner may have changed the settings while it loaded; then Warmup loads once more
        fitting = self.loading_for == (x.state.epoch.cold_start, settings)
        self.synchronised = (event.epoch, event.digest) if fitting else None
        self.training.prev_commitment = event.reply.prev_commitment
        # R8: the momentum is the snapshot's, which includes nothing that this process has sent since
        self.chain.own.clear()
        x.do(actions.SetPlan(x.state.run_uid, x.facts.plan_hash))
        x.end_wait("weights", WaitOutcome.LOADED)
        x.log(types.ModelLoaded(source=event.source, digest=event.digest, parameters=x.facts.parameters))

    def on_load_failed(self, event: actions.LoadFailed, now: float) -> None:
        self.loading = False
        self.load_at = now + LOAD_AGAIN_S
        # S11: from now on the digest that a quorum shows is wanted, as soon as there is one
        self.lacks_source = True
        self.context.log(types.LoadFailed(reason=event.reason))
        if event.for_good:
            self.end(LeaveCause.UNUSABLE_MODEL, event.reason)

    def on_trainer_lost(self) -> None:
        """Weights and momentum died with the trainer: leave this epoch and load again in the next Warmup."""
        self.weights_digest = None
        self.weights.lose()
        x = self.context
        # in Warmup it loads again in time; in a round others would wait for a member that cannot train
        if x.member is not None and x.state.run_state in (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS):
            why = "the trainer was lost; its weights are loaded again in the next Warmup"
            self.withdraw(LeaveCause.TRAINER_LOST, why)

    # --- rounds ----------------------------------------------------------------------------------

    def find_member(self) -> None:
        x = self.context
        index = x.find_self()
        there = index is not None and x.is_healthy(index)
        if x.member is not None and index is not None and not there:
            client = x.state.clients[index]
            x.log(types.Dropped(state=client.state, reason=explain_drop(client, x.state.config)))
        # Healthy on record is not enough: this process must have seen the epoch's Warmup (M9), and a withdrawal counts
        # from when it is sent, not from when the record shows it
        taking_part = there and self.passed_warmup == x.epoch and self.withdrawn_epoch != x.epoch
        x.member = index if taking_part else None

    def _take_part(self, now: float) -> None:
        x = self.context
        x.end_wait("members", WaitOutcome.EPOCH_FORMED)
        self.find_member()
        index = x.find_self()
        if index is None or not x.is_healthy(index):
            self._wait_for_next_epoch()
        elif x.epoch not in (self.passed_warmup, self.withdrawn_epoch):
            # M9: an earlier process may have signed a result of this epoch; a second one would be equivocation
            self.withdrawn_epoch = x.epoch
            self._send_withdrawal(index, LeaveCause.RESTARTED, "restarted in mid-epoch")
        # its load outlasted Warmup, or a former process was the one that was ready: it may still catch up (C6)
        elif x.member is not None and not self.weights.is_loaded:
            self._ensure_weights(now)

    def _wait_for_next_epoch(self) -> None:
        what = "the next epoch: this client is not a member of the running one"
        self.context.wait("next epoch", Wait.NEXT_EPOCH, what, then="join")

    def withdraw(self, cause: LeaveCause, reason: str) -> None:
        """Leave the running epoch, once (M4)."""
        x = self.context
        if x.member is None or self.withdrawn_epoch == x.epoch:
            return
        self.withdrawn_epoch = x.epoch
        x.log(types.LeftEpoch(reason=reason, cause=cause))
        self._send_withdrawal(x.member, cause, reason)
        # at once: whatever it signed from here on could contradict the withdrawal
        x.member = None
        self.weights_digest = None

    def end(self, cause: LeaveCause, reason: str) -> None:
        """End this client for good, with exit code 1; others must not wait for it (M4)."""
        x = self.context
        if x.has_exited:
            return
        self.withdraw(cause, reason)
        self.take_join_back(cause, reason)
        x.do(actions.Exit(1, reason, cause))
        x.has_exited = True

    def take_join_back(self, cause: LeaveCause, reason: str) -> None:
        """Stop waiting for an epoch to form (M4); otherwise the epoch would include a client that is gone."""
        slot = self.get_slot()
        if self.context.state.run_state is RunState.WAITING_FOR_MEMBERS and slot is not None and self._has_joined(slot):
            self._send_withdrawal(0, cause, reason)

    def _send_withdrawal(self, member: int, cause: LeaveCause, reason: str) -> None:
        x = self.context
        withdrew = types.Withdrew(epoch=x.epoch, reason=reason, cause=cause)
        x.do(actions.Submit(Withdraw(x.epoch, member), after=withdrew))

    def _has_joined(self, slot: Slot) -> bool:
        return slot.state is SlotState.JOINED and slot.active >= self.context.state.registry.next_active

    # --- Cooldown and the end --------------------------------------------------------------------

    def _cool_down(self, now: float) -> None:
        x = self.context
        x.end_wait("next epoch", WaitOutcome.EPOCH_ENDS)
        self.find_member()
        certified = x.state.certified
        if certified.digest == ZERO32:
            return
        self._share_checkpoint()
        self._settle_weights()
        if self.export is actions.ExportTime.EVERY_EPOCH:
            self._export()
        slot = self.get_slot()
        # H5: not while it sits out epochs: when its turn comes, later weights are certified
        if x.member is None and slot is not None and slot.until <= x.state.registry.next_active:
            self._fetch_ahead(now)

    def _export(self) -> None:
        x, mark = self.context, self.context.state.certified
        if mark.digest not in (ZERO32, self.exported) and self.weights_digest == mark.digest:
            self.exported = mark.digest
            x.do(actions.Export(mark.epoch, mark.step, mark.data_index, mark.digest, x.facts.parameters))

    def on_snapshot(self, event: actions.SnapshotWritten) -> None:
        self.unwritten = event.failed
        if event.reply is not None:
            self.kept = event.digest

    def _write_again(self, now: float) -> None:
        """Write a failed snapshot again while the trainer has its weights: nobody else may have them (P6, S9)."""
        snapshot = self.unwritten
        if snapshot is None or now < self.write_at:
            return
        self.unwritten, self.write_at = None, now + LOAD_AGAIN_S
        if snapshot.digest == self.weights_digest:
            self.context.do(snapshot)

    def _share_checkpoint(self) -> None:
        """From Cooldown on, share this member's snapshot of the certified weights and name the place (S10)."""
        x = self.context
        certified = x.state.certified
        if not self.share or self.kept != certified.digest or self.shared == certified.digest:
            return
        # S10: only members of the epoch may name a place, and only of what lies on their own disks
        own = x.identity.public
        if any(c.p2p == own and c.state is not ClientState.EJECTED for c in x.state.clients):
            self.shared = certified.digest
            x.do(actions.ShareCheckpoint(certified.epoch, certified.step, certified.digest))

    def _settle_weights(self) -> None:
        if self.weights.can_apply and self.chain.applying is None and self.weights.digests:
            self.weights_digest = self.weights.get_last_full_digest()

    def leave_epoch(self) -> None:
        self._settle_weights()
        self.weights.lose()
        self.context.member = None

    def _finish(self, now: float) -> None:
        """P8: fetch the certified weights if they are not here, serve for a while, then exit 0."""
        x = self.context
        if self.done:
            return
        certified = x.state.certified.digest
        if certified not in (ZERO32, self.weights_digest):
            if not self.fetching and now >= self.fetch_at:
                self.fetching = True
                until = x.state_since + x.state.config.cooldown_time
                what = "the final weights, from peers"
                x.wait("certified", Wait.FINAL_WEIGHTS, what, until=until, then="exit without them")
                x.do(actions.FetchSnapshot(certified))
            # P8: peers serve them for about as long; after that it exits without them
            if now < x.state_since + max(x.state.config.cooldown_time, 2 * JOIN_AGAIN_S):
                return
        if self.export is not actions.ExportTime.NEVER:
            self._export()
        self._share_checkpoint()
        self.done = True
        is_held = self.weights_digest == certified
        x.log(types.Finished(digest=certified, step=x.state.progress.step, held=is_held))
        serve_s = float(x.state.config.cooldown_time)
        x.do(actions.Exit(0, "the run is finished", LeaveCause.FINISHED, serve_s=serve_s))

    def on_snapshot_fetched(self, event: actions.SnapshotFetched, now: float) -> None:
        self.fetching = False
        if event.ok:
            self.weights_digest = event.digest
            self.context.end_wait("certified", WaitOutcome.FETCHED)
        else:
            self.fetch_at = now + LOAD_AGAIN_S
