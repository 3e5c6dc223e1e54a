"""The round engine: events in, actions out. It reads no clock and does no I/O; the shell executes its actions.

`now` is the caller's monotonic clock in seconds. Every method returns the actions to execute, in order.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from psyche.client.engine import actions as act
from psyche.client.engine.actions import ExportTime
from psyche.client.engine.announcements import Announcements
from psyche.client.engine.auditing.audits import Audits
from psyche.client.engine.auditing.works import is_verified
from psyche.client.engine.chain import APPLY_STATES, Chain
from psyche.client.engine.context import ACTIVE_STATES, EngineContext
from psyche.client.engine.duty import Duty
from psyche.client.engine.gossip_repair import GossipRepair
from psyche.client.engine.healing import Healing
from psyche.client.engine.membership import Membership
from psyche.client.engine.records import AUDITED_ROUNDS
from psyche.client.engine.tables import Tables
from psyche.client.engine.training import Training
from psyche.client.engine.weights import Weights
from psyche.core.state.gossip import Leave
from psyche.core.state.limits import STORED_ROUNDS, U32_MAX
from psyche.core.state.roster import get_healthy, is_in_epoch
from psyche.core.state.state import ZERO32, Coordinator, RunState
from psyche.telemetry import types
from psyche.telemetry.challenges import find_challenges
from psyche.wire.crypto import Identity
from psyche.wire.gossip import encode_gossip, sign_gossip

MANY_MEMBERS: Final = 32


class RoundEngine:
    def __init__(self, identity: Identity, *, export: ExportTime = ExportTime.NEVER, share: bool = False) -> None:
        self._x = EngineContext(identity)
        self.weights = Weights(self._x)
        self.announcements = Announcements(self._x, self.weights)
        self.tables = Tables(self._x, self.announcements)
        self.chain = Chain(self._x, self.announcements, self.tables, self.weights)
        self.training = Training(self._x, self.chain, self.announcements, self.weights)
        self.audits = Audits(self._x, self.announcements, self.weights)
        self.duty = Duty(self._x, self.chain, self.training, self.weights, self.audits)
        self.membership = Membership(self._x, self.chain, self.training, self.weights, export=export, share=share)
        self.healing = Healing(self._x, self.weights, self.chain, self.training, self.membership)
        self.gossip_repair = GossipRepair(self._x)
        self._seen_state: tuple[RunState, int, int] | None = None
        self._epoch_key: tuple[int, int] | None = None
        self._round_key: tuple[int, int] | None = None

    # --- queries ----------------------------------------------------------------------------------

    @property
    def state(self) -> Coordinator:
        return self._x.state

    @property
    def has_many_members(self) -> bool:
        """Whether there are so many members that messages and payloads are better processed together, in turns."""
        return len(self._x.state.clients) > MANY_MEMBERS

    @property
    def member(self) -> int | None:
        return self._x.member

    @property
    def identity(self) -> Identity:
        return self._x.identity

    @property
    def numeric_class(self) -> int:
        return self._x.facts.numeric_class

    def waits(self) -> Sequence[types.WaitStarted]:
        return tuple(self._x.waits.values())

    def get_announcements(self, epoch: int, height: int, have: int) -> tuple[bytes, ...]:
        """Signed messages of a round by members not in `have`, for a peer that lacks them."""
        record = self._x.book.get(height) if epoch == self._x.epoch else None
        if record is None:
            return ()
        results = [k.raw for m, known in record.results.items() if not have >> m & 1 for k in known.values()]
        return (*results, *(raw for m, raw in record.finished_raw.items() if not have >> m & 1))

    def find_mergeable(self, epoch: int, height: int) -> Sequence[act.Held]:
        return self.training.find_mergeable(epoch, height)

    def get_deadline(self, now: float) -> float | None:
        """When to call `on_events` next, at the latest."""
        x = self._x
        times = [self.announcements.get_next_retry(), self.gossip_repair.get_deadline(), self.healing.get_deadline()]
        membership = self.membership
        times += [
            t for t in (membership.load_at, membership.join_at, membership.fetch_at, membership.ahead_at) if t > now
        ]
        record = x.current
        if record is not None and x.member is not None:
            times += self.duty.get_deadlines(record)
        if x.state.run_state is RunState.FINISHED and not membership.done:
            times.append(now + 1.0)
        ahead = [t for t in times if t is not None and t > now]
        return min(ahead, default=None)

    # --- events -----------------------------------------------------------------------------------

    def on_state(self, state: Coordinator, now: float) -> list[act.Action]:
        x = self._x
        before, x.state = x.state, state
        self._note_state(state, now)
        if before.run_uid == state.run_uid and state.nonce < before.nonce:
            self._go_back(before, state)
        else:
            self._note_loss(before, state)
            self._note_challenges(before, state)
        if before.run_uid != state.run_uid:
            x.do(act.SetPlan(state.run_uid, x.facts.plan_hash))  # zero until a model is loaded; peers accept that
        self.membership.follow_registry()
        if before.progress.epoch != state.progress.epoch:
            x.book.clear()  # from now on heights count the rounds of the next epoch
        if state.run_state in ACTIVE_STATES and self._is_new_epoch(state):
            self._enter_epoch()
        elif state.run_state not in ACTIVE_STATES and self._epoch_key is not None:
            self._epoch_key = None
            self.membership.leave_epoch()
        if state.run_state in (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.COOLDOWN):
            self._follow_rounds(now)
        return self._go_on(now)

    def on_messages(self, raws: Iterable[bytes], now: float) -> list[act.Action]:
        for raw in raws:
            self.announcements.on_gossip(raw, now)
        return self._go_on(now)

    def on_answer(self, items: Sequence[bytes], now: float) -> list[act.Action]:
        known = self.gossip_repair.count_known()
        for raw in items:
            self.announcements.on_gossip(raw, now)
        if self.gossip_repair.count_known() > known:
            self.gossip_repair.on_news()
        return self._go_on(now)

    def on_events(self, events: Iterable[act.EngineEvent], now: float) -> list[act.Action]:
        """Take in what happened, or nothing: time alone may make something due (`get_deadline`)."""
        for event in events:
            self._take(event, now)
        return self._go_on(now)

    def _take(self, event: act.EngineEvent, now: float) -> None:  # noqa: PLR0912  # one line per event
        match event:
            case act.PayloadArrived() | act.PayloadFailed():
                self.announcements.on_payload(event, now)
            case act.Trained():
                self.training.on_trained(event, now)
            case act.Audited():
                self.audits.on_audited(event)
            case act.OpeningArrived():
                self.audits.on_opening(event)
            case act.TrainFailed():
                self.training.on_train_failed(event)
                if event.trainer_lost:
                    self.membership.on_trainer_lost()
                if event.for_good:
                    self.membership.end(types.LeaveCause.UNUSABLE_DATA, event.reason)
            case act.TrainerLost():
                self._x.log(types.TrainerLost(reason=event.reason))
                self.membership.on_trainer_lost()
            case act.Applied():
                self._on_applied(event, now)
            case act.Loaded():
                self.membership.on_loaded(event)
            case act.LoadFailed():
                self.membership.on_load_failed(event, now)
            case act.Healed():
                self.healing.on_healed(event)
            case act.HealFailed():
                self.healing.on_failed(event)
            case act.WeightsPromised():
                self.healing.on_promised(event)
            case act.SnapshotWritten():
                self.duty.on_snapshot(event)
                self.membership.on_snapshot(event)
            case act.TableArrived():
                self.tables.on_table(event)
                self.chain.follow(now)
            case act.SnapshotFetched():
                self.membership.on_snapshot_fetched(event, now)
            case act.FetchedAhead():
                self.membership.on_fetched_ahead(event, now)

    def on_weights_wanted(self, key: bytes, epoch: int, height: int) -> tuple[bool, list[act.Action]]:
        """A peer asks this client to keep a copy of its weights of a round; also return whether it will (S7)."""
        promised = self.healing.help(key, epoch, height)
        return promised, self._x.drain()

    def on_stop(self, reason: str) -> list[act.Action]:
        """The user stops the client: send Leave, withdraw and exit (F26)."""
        x = self._x
        if x.member is not None and x.state.run_state in ACTIVE_STATES:
            message = sign_gossip(x.identity, x.state.run_uid, x.epoch, x.height, x.member, Leave())
            x.do(act.Publish(encode_gossip(message)))
        self.membership.withdraw(types.LeaveCause.STOPPED, reason)
        self.membership.take_join_back(types.LeaveCause.STOPPED, reason)
        x.do(act.Exit(0, reason, types.LeaveCause.STOPPED))
        x.has_exited = True
        return x.drain()

    # --- steps of the engine ----------------------------------------------------------------------

    def _note_state(self, state: Coordinator, now: float) -> None:
        seen = (state.run_state, state.progress.epoch, state.current.height)
        if seen == self._seen_state:
            return
        if self._seen_state is None or seen[:2] != self._seen_state[:2]:
            self._x.end_all_waits(types.WaitOutcome.STATE_CHANGED)
        self._seen_state = seen
        self._x.state_since = now
        members = get_healthy(state).bit_count() if is_in_epoch(state) else 0
        self._x.log(
            types.StateChanged(
                epoch=seen[1], height=seen[2], run_state=state.run_state, step=state.progress.step, members=members
            )
        )

    def _go_back(self, before: Coordinator, state: Coordinator) -> None:
        """The chain went back (M9): say again what the record has lost, and sign nothing of a round twice."""
        self.membership.warm_digest = None
        key = (state.progress.epoch, state.epoch.start_timestamp)
        if key != self._epoch_key or {before.run_state, state.run_state} - set(APPLY_STATES):
            self._epoch_key = self.membership.passed_warmup = None
            if state.certified.digest == ZERO32:  # S8: the run begins with its source again, not with what came since
                self.weights.lose()
                self.membership.weights_digest = None
            return
        self._x.book.go_back(state)
        self.chain.go_back()
        if (state.current.height, state.current.seed) == (before.current.height, before.current.seed):
            self.duty.own.witness_sent = False
        else:
            self._round_key = None
            self.duty.begin()

    def _note_loss(self, before: Coordinator, state: Coordinator) -> None:
        """P3, P5: log steps that were rolled back, and Warmups that failed."""
        if before.run_uid != state.run_uid:
            return
        lost = before.progress.step - state.progress.step
        if lost > 0:
            self._x.log(types.Rollback(step=state.progress.step, data_index=state.progress.epoch_start_data_index))
        failed = before.run_state is RunState.WARMUP and state.run_state is RunState.WAITING_FOR_MEMBERS
        if lost > 0 or failed:
            reason = "Warmup abandoned" if failed else before.epoch.stop_reason.name.lower()
            self._x.log(types.EpochFailed(epoch=before.progress.epoch, reason=reason, steps_lost=max(0, lost)))

    def _note_challenges(self, before: Coordinator, state: Coordinator) -> None:
        if before.run_uid == state.run_uid and before.challenges != state.challenges:
            for event in find_challenges(before, state):
                self._x.log(event)
            self.audits.jury.follow()

    def _is_new_epoch(self, state: Coordinator) -> bool:
        """Whether this epoch, or this attempt to form it, is seen for the first time.

        A failed Warmup is followed by another one of the same epoch. After the first round has begun, the epoch
        cannot form again: then a changed start time comes from the server's recovery (K2).
        """
        known = self._epoch_key
        self._epoch_key = (state.progress.epoch, state.epoch.start_timestamp)
        if known is None or known[0] != state.progress.epoch:
            return True
        return state.run_state is RunState.WARMUP and known != self._epoch_key

    def _enter_epoch(self) -> None:
        x = self._x
        self.membership.leave_epoch()  # this client may have missed its end
        x.book.clear()
        self._round_key = None
        self.announcements.clear()
        self.audits.clear()
        self.chain.clear()
        if x.epoch:
            x.do(act.Expire(x.epoch - 1, U32_MAX))
        self.duty.begin()
        self.membership.enter_epoch()

    def _follow_rounds(self, now: float) -> None:
        x = self._x
        new = x.book.follow(x.state, now, self.chain.needed_height)
        self.chain.follow(now)
        key = (x.epoch, x.height)
        if key == self._round_key or not x.state.in_round:
            self.announcements.review_deferred(now)
            return
        self._round_key = key
        self.membership.find_member()
        if new:
            step = x.state.current.step
            x.log(types.RoundStarted(epoch=x.epoch, height=x.height, step=step, drain=new[-1].drain))
        # lag and gaps come before the duties of the round: they may end this client's part in the epoch
        too_long = self.chain.count_behind()
        if self.chain.behind_rounds:
            x.log(types.Behind(rounds=self.chain.behind_rounds, next_height=self.weights.next_height))
        gap = self.chain.find_gap() if x.member is not None else ""
        if gap:
            why = f"this client can no longer learn the sets of this epoch: {gap}"
            self.healing.give_up(types.LeaveCause.UNSEEN, why)
        elif too_long:
            is_loaded = self.weights.is_loaded
            what = "decided payloads could not be fetched" if is_loaded else "the weights did not arrive in time"
            self.healing.give_up(types.LeaveCause.BEHIND, what)
        self.duty.enter_round()
        self.announcements.retry_soon(now)
        self.announcements.replay_early(now)
        self.announcements.review_deferred(now)
        needed = self.chain.needed_height
        oldest = x.height - STORED_ROUNDS - AUDITED_ROUNDS * is_verified(x.state)
        oldest = oldest if needed is None else min(oldest, needed)  # C6: keep what is not applied yet
        if oldest >= 0:
            x.do(act.Expire(x.epoch, oldest))
        self.gossip_repair.begin_round(now)

    def _go_on(self, now: float) -> list[act.Action]:
        if self._x.has_exited or self._seen_state is None:  # nothing is known of the run before its first state
            return self._x.drain()
        # in this order: healing may give the epoch up, and who is no member has no duties below
        self.healing.act(now)
        self.membership.act(now)
        if self._x.state.in_round or self._x.state.run_state is RunState.COOLDOWN:
            self._go_on_in_epoch(now)
        return self._x.drain()

    def _go_on_in_epoch(self, now: float) -> None:
        x = self._x
        if x.member is not None and (reason := self.audits.find_reason_to_leave()):
            self.healing.give_up(types.LeaveCause.UNFIT, reason)
        if x.member is not None:
            self.announcements.retry(now)
        if self.chain.is_open:
            self.chain.decide(now)  # missing tables or results may have arrived
        if self.chain.advance(now):
            self.membership.weights_digest = None  # they are no longer those of the epoch's start
        if x.state.in_round:
            self.duty.act(now)
            is_over = x.state.run_state is RunState.ROUND_WITNESS
            self.gossip_repair.act(now, is_waiting=self.training.work.is_done or is_over)
        else:
            self.duty.finish_epoch()

    def _on_applied(self, event: act.Applied, now: float) -> None:
        done = self.chain.on_applied(event)
        if done is None:
            return
        members, digest = tuple(m for m, _ in done.applied), self.weights.digests[done.height]
        self._x.log(
            types.Applied(
                epoch=done.epoch, height=done.height, step=done.step, members=members, count=len(members),
                update=done.run_update, digest=digest,
            )
        )  # fmt: skip
        self.announcements.review_deferred(now)
