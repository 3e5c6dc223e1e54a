"""This member's batch of a round: fetching, training, announcing (sections 5 and 6 of the protocol)."""

import math
from dataclasses import dataclass, field
from typing import Any, Final

from psyche.client.engine.actions import (
    CancelTrain,
    FetchData,
    Held,
    Open,
    ShortenTrain,
    Train,
    Trained,
    TrainFailed,
    WriteSnapshot,
)
from psyche.client.engine.announcements import Announcements, compute_step_lr
from psyche.client.engine.auditing.works import is_verified
from psyche.client.engine.chain import Chain
from psyche.client.engine.context import EngineContext
from psyche.client.engine.records import RoundRecord
from psyche.client.engine.weights import Weights
from psyche.core.committee.audits import is_opened
from psyche.core.encoding.header import ResultKind
from psyche.core.encoding.work import choose_piece_samples
from psyche.core.state.bits import get_members, to_bytes32
from psyche.core.state.state import ZERO32, Lookahead, OptimizerKind
from psyche.telemetry import types
from psyche.wire.trainer import SentResult

TRAIN_SHARE: Final = 0.9  # of max_round_train_time; the rest is for payload and messages (LS9)


@dataclass(slots=True)
class Work:
    height: int = -1
    is_started: bool = False
    is_running: bool = False
    is_done: bool = False  # announced, given up, or no batch is due
    loss: float = float("nan")
    tokens_per_s: float = 0.0


@dataclass(slots=True)
class Training:
    context: EngineContext
    chain: Chain
    announcements: Announcements
    weights: Weights
    work: Work = field(default_factory=Work)
    prev_commitment: bytes = ZERO32  # of the last announced result
    in_flight: tuple[int, int] | None = None  # epoch and height of the training that runs in the trainer
    newest: tuple[int, int] = (-1, -1)  # epoch and height of the last training ever
    _cancelling: bool = False  # CancelTrain was sent for it
    _deadline: float = math.inf  # of that training (LS9)
    _told: tuple[SentResult, ...] = ()  # outcomes passed with the running training

    def begin(self) -> None:
        self.work = Work()

    def cancel(self) -> None:
        """Cancel the running training, if any: its round is over (A4), or the weights are wrong (S4)."""
        if self.in_flight is not None and not self._cancelling:
            self._cancelling = True
            self.context.do(CancelTrain(*self.in_flight))

    @property
    def is_shortenable(self) -> bool:
        """Whether local steps are trained that might end sooner (LS9)."""
        return self.work.is_running and self._is_local

    def shorten(self, deadline: float) -> None:
        if self.in_flight is not None and not self._cancelling and deadline < self._deadline:
            self._deadline = deadline
            self.context.do(ShortenTrain(*self.in_flight, deadline))

    @property
    def _is_local(self) -> bool:
        return self.context.state.model.optimizer.kind is OptimizerKind.LOCAL_STEPS

    def enter_round(self, record: RoundRecord | None, height: int) -> None:
        """Begin a newly seen round and fetch its data; `record` is None if this client does not take part in it."""
        self.work = Work(height)
        if record is None:
            return
        self._open(record)
        batch = self._get_batch(record)
        if batch is not None:
            self.context.do(FetchData(record.epoch, record.height, *batch))

    def _open(self, record: RoundRecord) -> None:
        """Have the momenta of the result of the round before opened, if a verifier may ask for them (V11).

        Now, for the next training changes them.
        """
        x = self.context
        before = x.book.get(record.height - 1)
        if before is None or x.member is None or not is_verified(x.state) or not x.state.config.opened_chunks:
            return
        if self._is_local:
            return  # nobody looks at whole rounds of them
        if not is_opened(record.seed, record.audits, x.member):
            return
        if self.prev_commitment in before.results.get(x.member, {}):
            x.do(Open(record.epoch, before.height, x.member, record.seed))

    def _get_batch(self, record: RoundRecord) -> tuple[int, int] | None:
        return record.assignments.get(self.context.member if self.context.member is not None else -1)

    def act(self, record: RoundRecord, *, has_other_work: bool = False) -> None:
        """Train the batch, if there is one; `has_other_work`: this member verifies others and is not done."""
        self._start(record)
        if not has_other_work:
            self._settle(record)

    def _start(self, record: RoundRecord) -> None:
        x = self.context
        batch = self._get_batch(record)
        if batch is None or self.work.is_started or self.in_flight is not None or self._is_repeated(record):
            return
        if self.weights.is_diverged or record.height not in self.weights.digests:
            return
        self.work.is_started = self.work.is_running = True
        self.in_flight = self.newest = (record.epoch, record.height)
        self._cancelling = False
        overlap = x.state.config.overlap
        self._told = self.chain.own.take()
        is_local, is_shown = self._is_local, is_verified(x.state)
        own = self._find_own_in_flight(record)
        limit_s = TRAIN_SHARE * x.state.config.max_round_train_time if is_local else math.inf
        self._deadline = record.started_at + limit_s
        x.do(
            Train(
                epoch=record.epoch,
                height=record.height,
                step=record.step,
                start=batch[0],
                end=batch[1],
                lr=compute_step_lr(x.state, record.step),
                lookahead_lr=self._get_lookahead_lr(record, own),
                decided=self._told,
                in_flight=overlap,
                next_lr=compute_step_lr(x.state, record.step + 1) if is_local else 0.0,
                blobs=tuple(one.blob for one in own),
                inner_steps=tuple(one.inner_steps for one in own),
                deadline=self._deadline,
                seed=record.seed if is_shown else b"",
                first_sample=record.data_index if is_shown and not record.height else None,
            )
        )

    def _get_lookahead_lr(self, record: RoundRecord, own: list[Held]) -> float:
        x = self.context
        has_none = self._is_local or (self._looks_at_own and not own)
        if has_none or not x.state.config.overlap or not record.height:
            return 0.0
        return compute_step_lr(x.state, record.step - 1)

    @property
    def _looks_at_own(self) -> bool:
        return self.context.state.model.optimizer.lookahead is Lookahead.OWN

    def _find_own_in_flight(self, record: RoundRecord) -> list[Held]:
        """The own result in flight, for trainers that begin from it: of local steps (LS5), or to look ahead (V4)."""
        before = self.context.book.get(record.height - 1)
        named = {} if before is None else before.results.get(self.context.member or 0, {})
        if self.prev_commitment not in named or not (self._is_local or self._looks_at_own):
            return []
        return [one for one in self._find_in_flight(record) if one.member == self.context.member]

    def _find_in_flight(self, record: RoundRecord) -> list[Held]:
        """The results of the round before this one that are here, while none of them has been applied (LS5)."""
        before = self.context.book.get(record.height - 1)
        if before is None or not self.context.state.config.overlap:
            return []
        held = [(m, r.header) for m, r in sorted(before.iter_held()) if r.header.result_kind is ResultKind.TRAINED]
        return [Held(member, header.body_hash, header.inner_steps) for member, header in held]

    def find_mergeable(self, epoch: int, height: int) -> list[Held]:
        """What a training of local steps merges: those in flight whose members' results may count (M8)."""
        record = self.context.book.get(height) if epoch == self.context.epoch else None
        found = [] if record is None else self._find_in_flight(record)
        return [one for one in found if not self.chain.is_newcomer(one.member, height - 1)]

    def _is_repeated(self, record: RoundRecord) -> bool:
        """Whether the record went back to this round: a second signed result of it would be evidence (M9)."""
        return not self.work.is_started and (record.epoch, record.height) <= self.newest

    def _settle(self, record: RoundRecord) -> None:
        """Mark the work as done if this member has no batch or diverged; not while it fetches the agreed weights."""
        x = self.context
        assert x.member is not None, "checked by the caller"
        if self.weights.is_fetching:
            return
        # S4: a diverged member trains nothing, but others need not wait for that: its work counts as done
        idle = x.member not in record.assignments or self.weights.is_diverged or self._is_repeated(record)
        done = record.height in self.weights.digests or self.chain.behind_rounds > 0 or self.weights.is_healing
        if idle and done and not self.work.is_running:
            self.work.is_done = True

    def on_trained(self, event: Trained, now: float) -> None:
        x = self.context
        self.in_flight = None
        reply = event.reply
        if reply.cancelled or reply.refused:
            self._retell()
        if event.epoch == x.epoch and event.height == self.work.height:
            self.work.is_running = False
        timely = event.epoch == x.epoch and event.height == self.work.height and x.state.in_round
        if reply.cancelled or reply.refused or not reply.payload:
            cut = "cancelled" if timely else "its round ended before this client had trained its samples"
            x.log(types.NotSent(height=event.height, reason=reply.refused or cut))
        elif not timely:
            # trained to the end, but its round is over: it counts as not applied
            self.chain.own.note_unsent(event.height)
            x.log(types.NotSent(height=event.height, reason="trained too late: the round was over"))
        elif self.weights.is_diverged:
            self.chain.own.note_unsent(event.height)
            reason = "this client's digest is not the agreed one"  # S4
            x.log(types.NotSent(height=event.height, reason=reason))
        else:
            self._announce(event, now)
        if timely:
            self.work.is_done = True
            self.work.loss = reply.loss
            self.work.tokens_per_s = reply.tokens / reply.seconds if reply.seconds > 0 else 0.0

    def _retell(self) -> None:
        """The training changed nothing, so it did not use the outcomes passed to it: pass them again next time."""
        self.chain.own.put_back(self._told)
        self._told = ()

    def _announce(self, event: Trained, now: float) -> None:
        x = self.context
        record = x.current
        assert record is not None, "checked by on_trained"
        if x.member is None or not x.is_healthy(x.member):
            self.chain.own.note_unsent(event.height)
            return
        reply = event.reply
        fields, table = self._get_fields(record, event), reply.work.table if reply.work else b""
        commitment = self.announcements.announce(record, fields, reply.payload, now=now, table=table)
        self.chain.own.note_sent(record.height, commitment)
        self.prev_commitment = commitment
        x.log(
            types.ResultSent(
                epoch=record.epoch, height=record.height, step=record.step, bytes=len(reply.payload), loss=reply.loss,
                commitment=commitment,
            )
        )  # fmt: skip
        if reply.inner_steps:
            merged = tuple(get_members(event.merged))
            x.log(types.InnerStepsDone(height=record.height, inner_steps=reply.inner_steps, merged=merged))

    def _get_fields(self, record: RoundRecord, event: Trained) -> dict[str, Any]:
        """The fields of a header that say what was trained."""
        assert self.context.member is not None, "checked by _announce"
        start, end = record.assignments[self.context.member]
        fields: dict[str, Any] = {
            "batch_start": start, "batch_end": end, "data_hash": event.data_hash,
            "prev_commitment": self.prev_commitment, "train_count": event.reply.train_count,
            "lookahead_root": to_bytes32(event.merged), "inner_steps": event.reply.inner_steps,
        }  # fmt: skip
        work = event.reply.work
        if work is not None:
            fields |= {"momentum_before": work.momentum_before, "momentum_after": work.momentum_after}
            has_pieces = work.table and not self._is_local  # of local steps these are the inner steps
            fields["piece_samples"] = choose_piece_samples(end - start + 1) if has_pieces else 0
        return fields

    def make_snapshot(self, record: RoundRecord) -> WriteSnapshot:
        return WriteSnapshot(
            record.epoch, record.height, record.step, record.data_index, chain=self.weights.chains[record.height],
            digest=self.weights.digests[record.height], prev_commitment=self.prev_commitment,
            decided=tuple(self.chain.own.outcomes),
        )  # fmt: skip

    def on_train_failed(self, event: TrainFailed) -> None:
        self.in_flight = None
        if not event.trainer_lost:
            self._retell()
        if event.epoch == self.context.epoch and event.height == self.work.height:
            self.work.is_running = False
            self.work.is_done = True
        self.context.log(types.NotSent(height=event.height, reason=event.reason, failed=True))
