"""A member's own work in a round: train, announce, finish, witness (sections 5 to 8 of the protocol)."""

import struct
from dataclasses import dataclass, field

from psyche.client.actions import (
    Announce,
    CancelTrain,
    FetchData,
    Publish,
    SendHealthCheck,
    SendWitness,
    Snapshot,
    SnapshotWritten,
    Train,
    Trained,
    TrainFailed,
)
from psyche.client.announcements import Announcements, compute_step_lr
from psyche.client.attest import (
    Report,
    Waiting,
    build_witness,
    compute_report,
    compute_waiting,
    find_followed,
    get_awaited,
    is_crowded,
)
from psyche.client.chain import Chain
from psyche.client.context import Context, describe_members
from psyche.client.records import RoundRecord, compute_pace
from psyche.core.bits import get_members
from psyche.core.header import NumericClass, ResultHeader, encode_header
from psyche.core.messages import Finished, GossipBody, Ready, ReadyFlag, Result
from psyche.core.schedule import get_lr_bits
from psyche.core.state import ZERO32, Coordinator, RoundFlag, RunState
from psyche.core.timeline import get_attested_height, get_round, is_last_drain
from psyche.wire.crypto import blob_id_of, compute_commitment
from psyche.wire.gossip import encode_gossip, sign_gossip
from psyche.wire.trainer import SentResult

PRESENCE_S = 1.0  # less than the slack that every member is granted (A3)


@dataclass(slots=True)
class OwnRound:
    """What this client did in the running round."""

    height: int = -1
    data_asked: bool = False
    presence_sent: bool = False  # some Ready, be it without D(h)
    train_started: bool = False
    train_running: bool = False
    work_done: bool = False
    ready_sent: bool = False  # with D(h)
    finished_sent: bool = False
    witness_sent: bool = False
    snapshot_asked: bool = False
    snapshot_done: bool = False
    witness_since: float | None = None  # when RoundWitness was first seen
    loss: float = float("nan")
    tokens_per_s: float = 0.0


@dataclass(slots=True)
class Duty:
    """Does what the seed asks of this member, as soon as it can be done."""

    context: Context
    chain: Chain
    announcements: Announcements
    own: OwnRound = field(default_factory=OwnRound)
    prev_commitment: bytes = ZERO32
    in_flight: tuple[int, int] | None = None  # epoch and height of a training that still runs in the trainer
    _cancelling: bool = False  # it was told to end
    _waiting: Waiting | None = None  # as of the last `act`
    _told: tuple[SentResult, ...] = ()  # fates that the running training was told of

    def begin(self) -> None:
        """An epoch starts."""
        self.own = OwnRound()

    def enter_round(self) -> None:
        """A round was first seen; training of an older one ends now (A4)."""
        x = self.context
        self.cancel_training()
        self._leave_round()
        self.own = OwnRound(height=x.height)
        self._waiting = None
        record = x.current
        if record is not None and x.member is not None and self._is_in(record):
            self._ask_data(record)
        x.end_wait("work", "round over")
        x.end_wait("finished", "round over")
        x.end_wait("witness", "round over")
        self._accuse(x.state)

    def _leave_round(self) -> None:
        """Finished goes out on leaving RoundTrain at the latest: RoundWitness may take no time and stay unseen (A2)."""
        x = self.context
        record = x.book.get(self.own.height) if self.own.height >= 0 else None
        if record is None or x.member is None or not self._is_in(record) or self.own.finished_sent:
            return
        if x.state.config.overlap or x.member not in record.results:
            attested = x.book.get(get_attested_height(x.state.config, x.state.epoch, record.height))
            self._publish_finished(record, attested)

    def cancel_training(self) -> None:
        """End a training that still runs: its round is over (A4), or the weights are wrong (S4)."""
        if self.in_flight is not None and not self._cancelling:
            self._cancelling = True
            self.context.do(CancelTrain(*self.in_flight))

    def finish_epoch(self) -> None:
        """Cooldown: no round needs a training any more, but weights may just have become the certified ones (P6)."""
        x = self.context
        self.cancel_training()
        record = x.book.get(x.height)
        if record is not None and self._is_in(record):
            self._take_snapshot(record)

    def act(self, now: float) -> None:
        """Do everything that has become possible in the running round."""
        x = self.context
        record = x.current
        if record is None or x.member is None or not self._is_in(record) or not x.is_healthy(x.member):
            return
        attested = x.book.get(get_attested_height(x.state.config, x.state.epoch, record.height))
        self._send_ready(record, now)
        self._start_training(record)
        self._settle_work(record)
        self._take_snapshot(record)
        self._waiting = None
        if self._may_report(record):
            waiting = compute_waiting(x.state, record, attested)
            if self._send_finished(record, attested, waiting, now):
                waiting = compute_waiting(x.state, record, attested)
            self._send_witness(record, attested, waiting, now)
            self._waiting = waiting

    def _may_report(self, record: RoundRecord) -> bool:
        """Whether the others' progress matters now: not before the own work is done, nor after all is said."""
        x = self.context
        done = self.own.finished_sent and (self.own.witness_sent or x.member not in record.witnesses)
        if done:
            return False
        if self.own.work_done or x.state.run_state is RunState.ROUND_WITNESS:
            x.end_wait("work", "done" if self.own.work_done else "time is up")
            return True
        x.wait("work", f"the own work of round {record.height}", self._round_end(record), "report without")
        return False

    def _is_in(self, record: RoundRecord) -> bool:
        return self.context.member is not None and bool(record.members >> self.context.member & 1)

    def _publish(self, record: RoundRecord, body: GossipBody) -> bytes:
        x = self.context
        assert x.member is not None, "only members publish"
        message = sign_gossip(x.identity, x.state.run_uid, record.epoch, record.height, x.member, body)
        raw = encode_gossip(message)
        record.heard |= 1 << x.member  # its own messages count like others' (W1)
        x.do(Publish(raw))
        return raw

    # --- training --------------------------------------------------------------------------------

    def _ask_data(self, record: RoundRecord) -> None:
        batch = record.assignments.get(self.context.member if self.context.member is not None else -1)
        if batch is not None and not self.own.data_asked:
            self.own.data_asked = True
            self.context.do(FetchData(record.epoch, record.height, *batch))

    def _send_ready(self, record: RoundRecord, now: float) -> None:
        """Show D(h) (S6); who does not have it soon says so: silence ends others' waiting, lateness does not (A1)."""
        ready = self._make_ready(record)
        if ready is not None:
            if not self.own.ready_sent and not self._rides(record):
                self.own.ready_sent = self.own.presence_sent = True
                self._publish_ready(record, ready)
        elif not self.own.presence_sent and (self.chain.behind_rounds or now >= record.started_at + PRESENCE_S):
            self.own.presence_sent = True
            flags = ReadyFlag.BEHIND | (ReadyFlag.DIVERGED if self.chain.diverged else ReadyFlag(0))
            self._publish_ready(record, Ready(ZERO32, flags))

    def _make_ready(self, record: RoundRecord) -> Ready | None:
        """What there is to say of the own D(h), once it is known."""
        digest = self.chain.digests.get(record.height)
        if digest is None:
            return None
        return Ready(digest, ReadyFlag.DIVERGED if self.chain.diverged else ReadyFlag(0))

    def _rides(self, record: RoundRecord) -> bool:
        """Whether Ready waits for Finished, where messages are many.

        Not if anything is wrong (S6), nor when a quorum of those awaited have finished: from then on only who was
        heard is waited for, and not for long (A1, A3).
        """
        x = self.context
        if not x.state.config.overlap or self.chain.diverged or self.own.finished_sent or not is_crowded(x.state):
            return False
        return compute_pace(get_awaited(x.state, record), record.finished_at, record.started_at) is None

    def _publish_ready(self, record: RoundRecord, body: Ready) -> None:
        assert self.context.member is not None, "checked by act"
        record.ready[self.context.member] = body
        self._publish(record, body)

    def _start_training(self, record: RoundRecord) -> None:
        x = self.context
        assert x.member is not None, "checked by act"
        batch = record.assignments.get(x.member)
        if batch is None or self.own.train_started or self.in_flight is not None:
            return
        if self.chain.diverged or self.chain.healing or record.height not in self.chain.digests:
            return
        self.own.train_started = self.own.train_running = True
        self.in_flight, self._cancelling = (record.epoch, record.height), False
        overlap = x.state.config.overlap
        self._told, self.chain.own_fates = tuple(self.chain.own_fates), []
        x.do(
            Train(
                epoch=record.epoch,
                height=record.height,
                step=record.step,
                start=batch[0],
                end=batch[1],
                lr=compute_step_lr(x.state, record.step),
                lookahead_lr=compute_step_lr(x.state, record.step - 1) if overlap and record.height else 0.0,
                decided=self._told,
                in_flight=overlap,
            )
        )

    def _settle_work(self, record: RoundRecord) -> None:
        """Members without a batch, behind or diverged have nothing to announce; who is about to be right again may."""
        x = self.context
        assert x.member is not None, "checked by act"
        if self.chain.fetching:
            return
        idle = x.member not in record.assignments or self.chain.diverged or self.chain.healing
        done = record.height in self.chain.digests or self.chain.behind_rounds > 0 or self.chain.healing
        if idle and done and not self.own.train_running:
            self.own.work_done = True

    def on_trained(self, event: Trained, now: float) -> None:
        """The batch is done: header, signature, announcement; or a reason why there is none."""
        x = self.context
        self.in_flight = None
        reply = event.reply
        if reply.cancelled or reply.refused:
            self._retell()
        if event.epoch == x.epoch and event.height == self.own.height:
            self.own.train_running = False
        timely = event.epoch == x.epoch and event.height == self.own.height and x.state.in_round
        if reply.cancelled or reply.refused or not reply.payload:
            x.log("not_sent", height=event.height, reason=reply.refused or "cancelled")
        elif not timely:
            # trained to the end, but the next round is already on record: it counts as not applied
            self.chain.own_fates.append(_fate(event.height))
            x.log("not_sent", height=event.height, reason="the round was over")
        elif self.chain.diverged or self.chain.healing:
            self.chain.own_fates.append(_fate(event.height))
            x.log("not_sent", height=event.height, reason="the own digest is not the agreed one")  # S4
        else:
            self._announce(event, now)
        if timely:
            self.own.work_done = True
            self.own.loss = reply.loss
            self.own.tokens_per_s = reply.tokens / reply.seconds if reply.seconds > 0 else 0.0

    def _retell(self) -> None:
        """A training that changed nothing has not used what it was told: the next one hears it again."""
        self.chain.own_fates[:0] = self._told
        self._told = ()

    def _announce(self, event: Trained, now: float) -> None:
        x = self.context
        record = x.current
        assert record is not None, "checked by on_trained"
        if x.member is None or not x.is_healthy(x.member):
            self.chain.own_fates.append(_fate(event.height))
            return
        header = self._make_header(record, event)
        raw_header = encode_header(header)
        body = Result(compute_commitment(raw_header), raw_header)
        message = sign_gossip(x.identity, x.state.run_uid, record.epoch, record.height, x.member, body)
        self.announcements.add_own(message, header, record, now=now)
        self.chain.own_sent[record.height] = body.commitment
        self.prev_commitment = body.commitment
        x.log("result_sent", epoch=record.epoch, height=record.height, step=record.step, bytes=len(event.reply.payload),
              loss=event.reply.loss, commitment=body.commitment)  # fmt: skip
        x.do(Announce(encode_gossip(message), event.reply.payload, header.body_hash, record.epoch, record.height))

    def _make_header(self, record: RoundRecord, event: Trained) -> ResultHeader:
        x = self.context
        assert x.member is not None, "checked by _announce"
        start, end = record.assignments[x.member]
        return ResultHeader(
            run_uid=x.state.run_uid,
            epoch=record.epoch,
            member=x.member,
            height=record.height,
            step=record.step,
            lr_bits=get_lr_bits(compute_step_lr(x.state, record.step)),
            batch_start=start,
            batch_end=end,
            plan_hash=x.facts.plan_hash,
            config_hash=x.facts.config_hash,
            base_digest=self.chain.digests[record.height],
            data_hash=event.data_hash,
            prev_commitment=self.prev_commitment,
            body_hash=blob_id_of(event.reply.payload),
            body_len=len(event.reply.payload),
            train_count=event.reply.train_count,
            numeric_class=NumericClass(x.facts.numeric_class),
            trainer_key=x.identity.public,
        )

    def on_train_failed(self, event: TrainFailed) -> None:
        """Nothing to announce this round; the others go on."""
        self.in_flight = None
        if not event.trainer_lost:
            self._retell()
        if event.epoch == self.context.epoch and event.height == self.own.height:
            self.own.train_running = False
            self.own.work_done = True
        self.context.log("not_sent", height=event.height, reason=event.reason)

    # --- snapshot, finished, witness -------------------------------------------------------------

    def _take_snapshot(self, record: RoundRecord) -> None:
        x = self.context
        if self.own.snapshot_asked or self.chain.diverged or record.height not in self.chain.digests:
            return
        if not is_last_drain(x.state.config, x.state.epoch, record.height):
            return
        self.own.snapshot_asked = True  # P6
        x.do(
            Snapshot(
                epoch=record.epoch,
                height=record.height,
                step=record.step,
                data_index=record.data_index,
                chain=self.chain.chains[record.height],
                digest=self.chain.digests[record.height],
                prev_commitment=self.prev_commitment,
                decided=tuple(self.chain.own_fates),
            )
        )

    def on_snapshot(self, event: SnapshotWritten) -> None:
        """The snapshot is on disk; one that could not be written keeps the round incomplete, until half time (P6)."""
        if event.epoch == self.context.epoch and event.height == self.own.height:
            self.own.snapshot_done = event.reply is not None

    def _send_finished(self, record: RoundRecord, attested: RoundRecord | None, waiting: Waiting, now: float) -> bool:
        x = self.context
        if self.own.finished_sent:
            return False
        assert x.member is not None, "checked by act"
        if not x.state.config.overlap and x.member in record.results:
            self.own.finished_sent = True  # A2: its Result stands for it
            return False
        patient = waiting.fetch_patience_s is None or now - record.started_at < waiting.fetch_patience_s
        due_in = waiting.fetched_all or not patient
        leaving = x.state.run_state is RunState.ROUND_WITNESS
        if not leaving and not (self.own.work_done and due_in):
            x.wait(
                "finished", f"own work and payloads of round {record.height}", self._round_end(record), "finish without"
            )
            return False
        x.end_wait("finished", "sent")
        record.finished_at.setdefault(x.member, now)
        self._publish_finished(record, attested)
        return True

    def _publish_finished(self, record: RoundRecord, attested: RoundRecord | None) -> None:
        x = self.context
        assert x.member is not None, "only members finish"
        self.own.finished_sent = True
        report = compute_report(attested if x.state.config.overlap else None)
        ready = None if self.own.ready_sent else self._make_ready(record)
        if ready is not None and is_crowded(x.state):
            self.own.ready_sent = self.own.presence_sent = True
            record.ready[x.member] = ready
        else:
            ready = None
        body = Finished(report.held, report.root, record.get_seen(), ready)
        record.finished[x.member] = body
        record.finished_raw[x.member] = self._publish(record, body)

    def _send_witness(self, record: RoundRecord, attested: RoundRecord | None, waiting: Waiting, now: float) -> None:
        x = self.context
        if x.member not in record.witnesses or self.own.witness_sent:
            return
        if x.state.run_state is RunState.ROUND_WITNESS and self.own.witness_since is None:
            self.own.witness_since = now
        elapsed = now - record.started_at
        patience_over = waiting.patience_s is not None and elapsed >= waiting.patience_s
        complete = self._is_complete(record) and (waiting.all_in or patience_over)  # A3
        report, reason = self._choose_report(attested, waiting, complete=complete, now=now)
        if report is None:
            self._name_witness_wait(record, waiting)
            return
        self.own.witness_sent = True
        if attested is not None and report.held:
            attested.keep_table(report.root, report.commitments)  # W7
        x.end_wait("witness", reason)
        digest = None if self.chain.diverged else self.chain.digests.get(record.height)
        x.do(
            SendWitness(
                build_witness(
                    record, x.member or 0, report, digest=digest, is_full=self.chain.full.get(record.height, False),
                    is_complete=complete, now=now, metadata=self._make_metadata(record),
                ),
                reason,
            )
        )  # fmt: skip

    def _is_complete(self, record: RoundRecord) -> bool:
        known = record.height in self.chain.digests
        kept = not is_last_drain(self.context.state.config, self.context.state.epoch, record.height)
        return self.own.work_done and known and (kept or self.own.snapshot_done)  # A3, P6

    def _choose_report(
        self, attested: RoundRecord | None, waiting: Waiting, *, complete: bool, now: float
    ) -> tuple[Report | None, str]:
        """W6: (a) complete; in RoundWitness (b) follow or everything is in; (c) half time."""
        x = self.context
        if complete:
            return compute_report(attested), "complete"
        since = self.own.witness_since
        if since is None or x.state.run_state is not RunState.ROUND_WITNESS:
            return None, ""
        if now - since >= x.state.config.round_witness_time / 2:
            return compute_report(attested), "half_time"
        if self.context.height not in self.chain.digests or not self._has_kept():
            return None, ""  # a record without its digest would be spent for nothing before half time
        followed = find_followed(x.state.current.witnesses, attested, now) if x.state.current.witnesses else None
        if followed is not None:
            return followed, "follow"
        return (compute_report(attested), "fetched") if waiting.fetched_all else (None, "")

    def _has_kept(self) -> bool:
        x = self.context
        return not is_last_drain(x.state.config, x.state.epoch, x.height) or self.own.snapshot_done

    def _name_witness_wait(self, record: RoundRecord, waiting: Waiting) -> None:
        who = describe_members(get_members(waiting.missing)) if waiting.missing else "own work"
        self.context.wait(
            "witness", f"{who} to finish round {record.height}", self._round_end(record), "report without"
        )

    def _round_end(self, record: RoundRecord) -> float:
        config = self.context.state.config
        return record.started_at + config.max_round_train_time + config.round_witness_time

    def _make_metadata(self, record: RoundRecord) -> bytes:
        """step u32, loss f32, tokens per second f32: for people, never stored on record."""
        return struct.pack("<Iff", record.step, self.own.loss, self.own.tokens_per_s)

    def _accuse(self, state: Coordinator) -> None:
        """H4: a witness of a round that closed by time-out, heard by others, left no record."""
        x = self.context
        last = get_round(state, x.height - 1) if x.height else None
        if last is None or not last.flags & RoundFlag.BY_TIMEOUT or x.member is None:
            return
        record = x.book.get(last.height)
        if record is None or x.member not in record.witnesses:
            return
        reported = {w.member for w in last.witnesses}
        for member in record.witnesses:
            heard = sum(w.heard >> member & 1 for w in last.witnesses)
            silent = member not in reported and member != x.member
            if silent and x.is_healthy(member) and heard > last.witnesses_expected - last.quorum:
                x.do(SendHealthCheck(x.epoch, x.height, member))

    def get_deadlines(self, record: RoundRecord) -> list[float]:
        """When `act` may have something new to do although nothing happened."""
        waiting = self._waiting
        patience = (waiting.patience_s, waiting.fetch_patience_s) if waiting is not None else ()
        times = [record.started_at + p for p in (*patience, PRESENCE_S) if p is not None]
        if self.own.witness_since is not None:
            times.append(self.own.witness_since + self.context.state.config.round_witness_time / 2)
        return times


def _fate(height: int) -> SentResult:
    return SentResult(height=height, applied=False)
