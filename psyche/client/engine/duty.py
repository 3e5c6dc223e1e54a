"""The messages of a member in a round: Ready, Finished and the witness report (sections 6 to 8)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from psyche.client.engine.actions import Publish, SnapshotWritten, Submit
from psyche.client.engine.auditing.audits import Audits
from psyche.client.engine.chain import Chain
from psyche.client.engine.context import EngineContext, describe_awaited
from psyche.client.engine.records import RoundRecord, compute_pace
from psyche.client.engine.training import Training
from psyche.client.engine.weights import Weights
from psyche.client.engine.witness_report import (
    Report,
    RoundStanding,
    build_witness,
    compute_report,
    compute_standing,
    compute_work_deadline,
    find_followed,
    get_awaited,
    get_pacing,
    is_over_gossip_budget,
)
from psyche.core.state.bits import get_members
from psyche.core.state.gossip import Finished, GossipBody, Ready, ReadyFlag
from psyche.core.state.messages import HealthCheck
from psyche.core.state.state import ZERO32, Coordinator, RoundFlag, RunState
from psyche.core.state.timeline import get_round
from psyche.telemetry import types
from psyche.telemetry.types import Wait, WaitOutcome, describe_finish
from psyche.wire.gossip import encode_gossip, sign_gossip
from psyche.wire.history import Claim, encode_claim

PRESENCE_S = 1.0  # less than the slack that every member is granted (A3)


@dataclass(slots=True)
class OwnRound:
    height: int = -1
    presence_sent: bool = False  # any Ready, even one without D(h)
    ready_sent: bool = False  # a Ready with D(h)
    finished_sent: bool = False
    witness_sent: bool = False
    snapshot_asked: bool = False
    snapshot_done: bool = False
    witness_since: float | None = None  # when RoundWitness was first seen


@dataclass(slots=True)
class Duty:
    context: EngineContext
    chain: Chain
    training: Training
    weights: Weights
    audits: Audits
    own: OwnRound = field(default_factory=OwnRound)
    _standing: RoundStanding | None = None  # as of the last `act`

    def begin(self) -> None:
        self.own = OwnRound()
        self.training.begin()

    def enter_round(self) -> None:
        """Begin a newly seen round; a training of an older one is cancelled (A4)."""
        x = self.context
        # A4: only the next round cuts training; a batch that ends in RoundWitness still counts
        self.training.cancel()
        self._leave_round()
        self.own = OwnRound(height=x.height)
        self._standing = None
        record = x.current
        joined = record if record is not None and self._is_in(record) else None
        self.training.enter_round(joined, x.height)
        self.audits.enter_round(joined)
        x.end_wait("work", WaitOutcome.ROUND_OVER)
        x.end_wait("finished", WaitOutcome.ROUND_OVER)
        x.end_wait("witness", WaitOutcome.ROUND_OVER)
        self._accuse(x.state)

    def _leave_round(self) -> None:
        """Send Finished at the latest on leaving the round: RoundWitness may be too short to be seen (A2)."""
        x = self.context
        record = x.book.get(self.own.height) if self.own.height >= 0 else None
        if record is None or x.member is None or not self._is_in(record) or self.own.finished_sent:
            return
        # A2: without overlap its Result has said it already
        if x.state.config.overlap or x.member not in record.results:
            attested = x.get_attested(record.height)
            self._publish_finished(record, attested)

    def finish_epoch(self) -> None:
        x = self.context
        self.training.cancel()
        record = x.book.get(x.height)
        if record is not None and self._is_in(record):
            self._take_snapshot(record)
        self.audits.finish_epoch()

    def act(self, now: float) -> None:
        x = self.context
        record = x.current
        if record is None or x.member is None or not self._is_in(record) or not x.is_healthy(x.member):
            return
        attested = x.get_attested(record.height)
        self._send_ready(record, now)
        self.audits.act(record, now, is_idle=self.training.work.is_done, is_time_up=self._is_time_up(record, now))
        if not self.audits.holds_training:
            self.training.act(record, has_other_work=self.audits.is_verifying(record.height))
        if self.training.is_shortenable:
            self.training.shorten(compute_work_deadline(x.state, record, now))
        self._take_snapshot(record)
        self._standing = None
        if self._may_report(record):
            # looks at every member, and `act` runs at every event: so not before something may be due
            standing = compute_standing(x.state, record, attested)
            if self._send_finished(record, attested, standing, now):
                standing = compute_standing(x.state, record, attested)
            self._send_witness(record, attested, standing, now)
            self._standing = standing

    def _is_time_up(self, record: RoundRecord, now: float) -> bool:
        """Whether others wait for this verifier alone, or will soon wait no longer; or the round's training is over."""
        x = self.context
        if x.state.run_state is RunState.ROUND_WITNESS or not self.audits.is_verifying(record.height):
            return True
        done = record.finished_at.keys() | record.reporters
        is_last = all(member in done for member in get_awaited(x.state, record))
        return is_last or now >= compute_work_deadline(x.state, record, now)

    def _may_report(self, record: RoundRecord) -> bool:
        """Whether a message may be due: its own work is done (or time is up), and not everything has been sent."""
        x = self.context
        done = self.own.finished_sent and (self.own.witness_sent or x.member not in record.witnesses)
        if done:
            return False
        if self.training.work.is_done or x.state.run_state is RunState.ROUND_WITNESS:
            x.end_wait("work", WaitOutcome.DONE if self.training.work.is_done else WaitOutcome.TIME_IS_UP)
            return True
        what = f"this client to train its part of round {record.height}"
        self._wait("work", Wait.OWN_WORK, what, record, "report without it")
        return False

    def _is_in(self, record: RoundRecord) -> bool:
        return self.context.member is not None and bool(record.members >> self.context.member & 1)

    def _publish(self, record: RoundRecord, body: GossipBody) -> bytes:
        x = self.context
        assert x.member is not None, "only members publish"
        message = sign_gossip(x.identity, x.state.run_uid, record.epoch, record.height, x.member, body)
        raw = encode_gossip(message)
        record.heard |= 1 << x.member  # its own messages count as heard too (W1)
        x.do(Publish(raw))
        return raw

    # --- ready -----------------------------------------------------------------------------------

    def _send_ready(self, record: RoundRecord, now: float) -> None:
        """Send Ready with D(h) (S6), or soon one flagged BEHIND: others stop waiting for silent members (A1)."""
        ready = self._make_ready(record)
        if ready is not None:
            if not self.own.ready_sent and not self._rides(record):
                self.own.ready_sent = self.own.presence_sent = True
                self._publish_ready(record, ready)
        # any signed message counts as heard: until D(h) is there, this one keeps the client from an absence (H1),
        # and others go on waiting for its payload (A1)
        elif not self.own.presence_sent and (self.chain.behind_rounds or now >= record.started_at + PRESENCE_S):
            self.own.presence_sent = True
            flags = ReadyFlag.BEHIND | (ReadyFlag.DIVERGED if self.weights.is_diverged else ReadyFlag(0))
            self._publish_ready(record, Ready(ZERO32, flags))

    def _make_ready(self, record: RoundRecord) -> Ready | None:
        digest = self.weights.digests.get(record.height)
        if digest is None:
            return None
        return Ready(digest, ReadyFlag.DIVERGED if self.weights.is_diverged else ReadyFlag(0))

    def _rides(self, record: RoundRecord) -> bool:
        """Whether Ready is held back and sent inside Finished, because many members send messages.

        Not if this client has diverged (S6), nor once a quorum of the awaited members has finished: from then on
        members wait only for those they have heard, and not for long (A1, A3).
        """
        x = self.context
        if not x.state.config.overlap or not is_over_gossip_budget(x.state):
            return False
        if self.weights.is_diverged or self.own.finished_sent:
            return False
        pacing = get_pacing(record, get_awaited(x.state, record))
        return compute_pace(pacing, record.finished_at, record.started_at) is None

    def _publish_ready(self, record: RoundRecord, body: Ready) -> None:
        assert self.context.member is not None, "checked by act"
        record.ready[self.context.member] = body
        self._publish(record, body)

    # --- snapshot, finished, witness -------------------------------------------------------------

    def _take_snapshot(self, record: RoundRecord) -> None:
        x = self.context
        # weights that the record contradicts must not be on the disks that a quorum relies on (P6)
        if self.own.snapshot_asked or self.weights.is_diverged or record.height not in self.weights.digests:
            return
        if not x.is_last_drain(record.height):
            return
        # asked for again in each repetition of the last drain round (P2), which is another round with its own digest
        self.own.snapshot_asked = True  # P6
        x.do(self.training.make_snapshot(record))

    def on_snapshot(self, event: SnapshotWritten) -> None:
        """The snapshot is written. If that failed, the round stays incomplete until half time (P6)."""
        if event.epoch == self.context.epoch and event.height == self.own.height:
            self.own.snapshot_done = event.reply is not None

    def _send_finished(
        self, record: RoundRecord, attested: RoundRecord | None, standing: RoundStanding, now: float
    ) -> bool:
        x = self.context
        if self.own.finished_sent:
            return False
        assert x.member is not None, "checked by act"
        if not x.state.config.overlap and x.member in record.results:
            self.own.finished_sent = True  # A2: its Result counts as Finished
            return False
        patient = standing.fetch_patience_s is None or now - record.started_at < standing.fetch_patience_s
        due_in = standing.due_in or not patient  # A2: only electors' payloads, because Finished sets the pace
        # A2: now at the latest; others pace themselves by it, so waiting longer would only make them wait
        leaving = x.state.run_state is RunState.ROUND_WITNESS
        if not leaving and not (self.training.work.is_done and due_in):
            what = f"this client's work and payloads in round {record.height}"
            self._wait("finished", Wait.OWN_WORK_AND_PAYLOADS, what, record, "finish anyway")
            return False
        x.end_wait("finished", WaitOutcome.SENT)
        record.finished_at.setdefault(x.member, now)
        self._publish_finished(record, attested)
        return True

    def _publish_finished(self, record: RoundRecord, attested: RoundRecord | None) -> None:
        x = self.context
        assert x.member is not None, "only members finish"
        self.own.finished_sent = True
        report = compute_report(attested if x.state.config.overlap else None)
        ready = None if self.own.ready_sent else self._make_ready(record)
        # S6: Ready rides inside only where messages are many; a Ready that was held back goes out here
        if ready is not None and is_over_gossip_budget(x.state):
            self.own.ready_sent = self.own.presence_sent = True
            record.ready[x.member] = ready
        else:
            ready = None
        body = Finished(report.held, report.root, record.get_seen(), ready)
        record.finished[x.member] = body
        record.finished_raw[x.member] = self._publish(record, body)

    def _send_witness(
        self, record: RoundRecord, attested: RoundRecord | None, standing: RoundStanding, now: float
    ) -> None:
        x = self.context
        if x.member not in record.witnesses or self.own.witness_sent:
            return
        if x.state.run_state is RunState.ROUND_WITNESS and self.own.witness_since is None:
            self.own.witness_since = now
        elapsed = now - record.started_at
        patience_over = standing.patience_s is not None and elapsed >= standing.patience_s
        # own work is needed in both cases: patience ends the wait for others, never for oneself
        ready = record.height in self.weights.digests and self._has_kept(record)
        complete = ready and self.training.work.is_done and (standing.all_in or patience_over)  # A3
        report, reason = self._choose_report(attested, standing, complete=complete, ready=ready, now=now)
        if report is None or reason is None:
            self._wait_for_others(record, standing)
            return
        self.own.witness_sent = True
        if attested is not None and report.held:
            attested.keep_table(report.root, report.held, report.commitments, attested.get_signed())  # W7
        x.end_wait("witness", reason)
        # S4: a minority vouches for no digest; what it holds and heard counts, since that does not depend on weights
        digest = self.weights.get_trusted_digest(record.height)
        message = build_witness(
            record, x.member or 0, report, digest=digest, is_full=self.weights.full.get(record.height, False),
            is_complete=complete, now=now, metadata=self._make_metadata(record),
        )  # fmt: skip
        sent = types.WitnessSent(epoch=message.epoch, height=message.height, reason=reason)
        x.do(Submit(message, before=sent))

    def _has_kept(self, record: RoundRecord) -> bool:
        """P6: the last drain round is only done once its weights are on disk."""
        return self.own.snapshot_done or not self.context.is_last_drain(record.height)

    def _choose_report(
        self, attested: RoundRecord | None, standing: RoundStanding, *, complete: bool, ready: bool, now: float
    ) -> tuple[Report | None, WaitOutcome | None]:
        """W6: report when (a) complete; in RoundWitness, (b) by following or once all is fetched, (c) at half time."""
        x = self.context
        if complete:
            return compute_report(attested), WaitOutcome.COMPLETE
        since = self.own.witness_since
        if since is None or x.state.run_state is not RunState.ROUND_WITNESS:
            return None, None
        if now - since >= x.state.config.round_witness_time / 2:
            return compute_report(attested), WaitOutcome.HALF_TIME
        if not ready:
            return None, None  # before half time, a report without its digest would be wasted
        # W6 b: it takes f + 1 reports of a list, so liars that report first cannot make others leave somebody out
        followed = find_followed(x.state.current, attested, now)
        if followed is not None:
            return followed, WaitOutcome.FOLLOW
        return (compute_report(attested), WaitOutcome.FETCHED) if standing.fetched_all else (None, None)

    def _wait_for_others(self, record: RoundRecord, standing: RoundStanding) -> None:
        missing = get_members(standing.missing)
        who = describe_awaited(missing) if missing else "this client"
        wait = Wait.OTHERS_FINISHED if missing else Wait.OWN_FINISHED
        self._wait("witness", wait, describe_finish(who, record.height), record, "report anyway", missing)

    def _wait(
        self, key: str, wait: Wait, what: str, record: RoundRecord, then: str, members: Sequence[int] = ()
    ) -> None:
        until = record.started_at + self.context.round_limit_s
        self.context.wait(key, wait, what, until=until, then=then, height=record.height, members=members)

    def _make_metadata(self, record: RoundRecord) -> bytes:
        """For people; never stored on record."""
        return encode_claim(Claim(record.step, self.training.work.loss, self.training.work.tokens_per_s))

    def _accuse(self, state: Coordinator) -> None:
        """H4: report witnesses that others heard but that sent no report in a round closed by time-out."""
        x = self.context
        last = get_round(state, x.height - 1) if x.height else None
        if last is None or not last.flags & RoundFlag.BY_TIMEOUT or x.member is None:
            return
        record = x.book.get(last.height)
        if record is None or x.member not in record.witnesses:
            return
        # H4: heard by more than n - q, as the coordinator counts too; without that it would refuse the accusation
        reported = {w.member for w in last.witnesses}
        for member in record.witnesses:
            heard = sum(w.heard >> member & 1 for w in last.witnesses)
            silent = member not in reported and member != x.member
            if silent and x.is_healthy(member) and heard > last.witnesses_expected - last.quorum:
                x.do(Submit(HealthCheck(x.epoch, x.height, member)))

    def get_deadlines(self, record: RoundRecord) -> list[float]:
        """The times at which `act` may have something to do without any event."""
        standing = self._standing
        patience = (standing.patience_s, standing.fetch_patience_s) if standing is not None else ()
        times = [record.started_at + p for p in (*patience, PRESENCE_S) if p is not None]
        if (waiting := self.audits.get_deadline()) is not None:
            times.append(waiting)
        if self.audits.is_verifying(record.height):
            limit = compute_work_deadline(self.context.state, record, math.inf)
            times += [limit] if limit < math.inf else []
        if self.own.witness_since is not None:
            times.append(self.own.witness_since + self.context.state.config.round_witness_time / 2)
        return times
