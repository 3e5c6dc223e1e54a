"""Incoming gossip: who was heard, which results are accepted (R3) and fetched, who equivocates (R2, R7)."""

from bisect import bisect_left
from collections.abc import Iterator
from enum import Enum
from functools import partial
from typing import Any

from psyche.client.engine.actions import Announce, FetchPayload, PayloadArrived, PayloadFailed, ReconnectSoon, Submit
from psyche.client.engine.auditing.works import (
    Work,
    find_pieces,
    find_slip,
    get_table_bytes,
    read_work,
)
from psyche.client.engine.context import EngineContext
from psyche.client.engine.records import KnownResult, PayloadStatus, RoundRecord
from psyche.client.engine.weights import Weights
from psyche.core.committee.audits import AuditTask
from psyche.core.committee.schedule import compute_learning_rate, get_cold_start, get_lr_bits, round_f32
from psyche.core.encoding.header import NumericClass, ResultHeader, ResultKind, decode_header, encode_header
from psyche.core.state.gossip import Evidence, Finished, Gossip, Leave, Ready, ReadyFlag, Result
from psyche.core.state.messages import ReportEquivocation
from psyche.core.state.state import ZERO32, Coordinator, OptimizerKind, RoundFlag, RunState
from psyche.core.state.timeline import get_round
from psyche.errors import WireError
from psyche.telemetry import types
from psyche.telemetry.types import Refusable
from psyche.wire.crypto import blob_id_of, compute_commitment
from psyche.wire.gossip import decode_gossip, encode_gossip, is_signed_by, sign_gossip

MAX_COMMITMENTS = 2  # per member and round: two are evidence, a third adds nothing
MAX_EARLY = 6  # messages per member and round: two each of Ready and Result, one of each other kind
RETRY_S = 0.5
MAX_RETRY_S = 4.0


class Verdict(Enum):
    ACCEPT = "accept"
    DEFER = "defer"  # this client cannot judge the base digest yet
    REFUSE = "refuse"


def compute_step_lr(state: Coordinator, step: int) -> float:
    """The learning rate of a step, rounded to float32 as in headers and digests (S1)."""
    return round_f32(compute_learning_rate(state.model.lr_schedule, step, get_cold_start(state.epoch, state.model)))


class Announcements:
    def __init__(self, context: EngineContext, weights: Weights) -> None:
        self._x = context
        self._weights = weights
        self._early: dict[int, list[bytes]] = {}  # by member: messages of a round not seen yet
        self._failed: dict[tuple[int, int, bytes], KnownResult] = {}  # height, member, commitment
        self.refused = 0

    def clear(self) -> None:
        self._failed.clear()
        self._early.clear()

    def on_gossip(self, raw: bytes, now: float) -> None:
        """Process one message from any peer; a message that breaks a rule is counted and dropped (I9)."""
        try:
            message = decode_gossip(raw)
        except WireError as error:
            self._refuse(Refusable.MALFORMED, str(error))
            return
        x = self._x
        if message.run_uid != x.state.run_uid or message.epoch != x.epoch:
            return
        record = x.book.get(message.height)
        if record is None:
            if self._is_next(message):
                self._keep_early(message, raw)
            return
        if not record.members >> message.member & 1 or not is_signed_by(message, x.get_key(message.member)):
            self._refuse(Refusable.UNSIGNED, f"member {message.member} did not sign this")
            return
        self._take(message, record, now)

    def _is_next(self, message: Gossip) -> bool:
        state = self._x.state
        if state.in_round:
            return message.height == self._x.height + 1
        return state.run_state is RunState.WARMUP and message.height == 0

    def _keep_early(self, message: Gossip, raw: bytes) -> None:
        """Keep an early message if its member signed it; each member has its own limit (I6)."""
        clients = self._x.state.clients
        kept = self._early.get(message.member, [])
        if message.member >= len(clients) or len(kept) >= MAX_EARLY or raw in kept:
            return
        if is_signed_by(message, clients[message.member].p2p):
            if not self._early:
                self._x.do(ReconnectSoon())  # once for each round: what was lost is there again (H1)
            self._early[message.member] = [*kept, raw]

    def replay_early(self, now: float) -> None:
        early, self._early = self._early, {}
        for raw in (raw for kept in early.values() for raw in kept):
            self.on_gossip(raw, now)

    def _take(self, message: Gossip, record: RoundRecord, now: float) -> None:
        member = message.member
        record.heard |= 1 << member
        match message.body:
            case Ready():
                self._take_ready(member, message.body, record)
            case Finished():
                record.finished.setdefault(member, message.body)
                record.finished_raw.setdefault(member, encode_gossip(message))
                record.finished_at.setdefault(member, now)
                if message.body.ready is not None:
                    self._take_ready(member, message.body.ready, record)
            case Leave():
                record.left |= 1 << member
            case Result():
                self._take_result(message, record, now)

    def _take_ready(self, member: int, ready: Ready, record: RoundRecord) -> None:
        """S6: log a digest that differs from this client's own; the record confirms divergence later."""
        known = record.ready.get(member)
        if known is not None and not (known.flags & ReadyFlag.BEHIND and not ready.flags & ReadyFlag.BEHIND):
            return  # a second Ready counts only if the first said the member was behind
        record.ready[member] = ready
        own = self._weights.digests.get(record.height)
        if own is not None and not ready.flags and ready.digest != own:
            differs = types.ReadyDiffers(member=member, height=record.height, digest=ready.digest, own=own)
            self._x.log(differs)

    def _take_result(self, message: Gossip, record: RoundRecord, now: float) -> None:
        assert isinstance(message.body, Result), "dispatched by kind"
        commitment = message.body.commitment
        known = record.results.get(message.member, {})
        if commitment in known or commitment in record.deferred:
            return
        self.note_signed(message, record)
        if len(known) >= MAX_COMMITMENTS:
            return
        verdict, header = self._judge(message, record, self._weights.get_trusted_digest(record.height))
        if header is not None and verdict is Verdict.ACCEPT:
            self.add(message, header, record, now=now)
        elif verdict is Verdict.DEFER:
            others = sum(g.member == message.member for g in record.deferred.values())
            if others < MAX_COMMITMENTS:
                record.deferred[commitment] = message

    def note_signed(self, message: Gossip, record: RoundRecord) -> None:
        """Note a signed commitment. Two from one member are evidence of equivocation, whatever the headers say (R7)."""
        assert isinstance(message.body, Result), "dispatched by kind"
        signed = record.signed.setdefault(message.member, {})
        if len(signed) >= MAX_COMMITMENTS or message.body.commitment in signed:
            return
        signed[message.body.commitment] = encode_gossip(message)
        if record.height == self._x.height:  # R5: the next round has not been seen yet
            record.timely.add(message.body.commitment)
        if len(signed) == MAX_COMMITMENTS:
            first, second = signed.values()
            self._x.log(types.Equivocation(member=message.member, height=record.height))
            report = ReportEquivocation(message.epoch, message.height, message.member)
            self._x.do(Submit(report, evidence=Evidence(first, second)))

    def _judge(self, message: Gossip, record: RoundRecord, base: bytes | None) -> tuple[Verdict, ResultHeader | None]:
        """Judge a signed result (R3), of weights with digest `base`, or the agreed one; say why one is refused."""
        assert isinstance(message.body, Result), "only results have headers"
        round_ = get_round(self._x.state, record.height)
        if base is None and round_ is not None and round_.flags & RoundFlag.DIGEST:
            base = round_.agreed_digest  # a client that is behind or diverged still fetches what others agree on (S4)
        try:
            header = decode_header(message.body.header)
        except WireError as error:
            self._refuse(Refusable.RESULT, str(error), member=message.member, height=record.height)
            return Verdict.REFUSE, None
        if not self._x.facts.is_known:
            return Verdict.DEFER, header
        problem = self._find_problem(header, message, record)
        if problem:
            self._refuse(Refusable.RESULT, problem, member=message.member, height=record.height)
            return Verdict.REFUSE, header
        # deferred ones are kept but not fetched: the agreed D(h) may still turn out to be this one
        return (Verdict.ACCEPT if header.base_digest == base else Verdict.DEFER), header

    def _find_problem(self, header: ResultHeader, message: Gossip, record: RoundRecord) -> str:
        state, facts = self._x.state, self._x.facts
        is_report = header.result_kind is ResultKind.AUDIT
        batch = record.assignments.get(message.member)
        if is_report:
            batch = (0, 0) if message.member in record.reporters else None
        if batch is None:
            owed = "report" if is_report else "batch"
            return f"member {message.member} owes no {owed} in round {record.height}"
        wanted = (
            ("run_uid", header.run_uid, state.run_uid),
            ("epoch", header.epoch, record.epoch),
            ("height", header.height, record.height),
            ("member", header.member, message.member),
            ("step", header.step, record.step),
            ("lr", header.lr_bits, get_lr_bits(compute_step_lr(state, record.step))),
            ("batch", (header.batch_start, header.batch_end), batch),
            ("plan_hash", header.plan_hash, facts.plan_hash),
            ("config_hash", header.config_hash, facts.config_hash),
            ("trainer_key", header.trainer_key, self._x.get_key(message.member)),
        )
        for name, is_value, should in wanted:
            if is_value != should:
                return f"header field {name} is not what this round asks for"
        if slip := find_slip(header, len(record.tasks.get(message.member, ())), state):
            return f"header field {slip}"
        if not is_report and not 0 < header.body_len <= facts.max_body_bytes:
            return f"header field body_len {header.body_len} is not in 1..{facts.max_body_bytes}"
        least, most = (0, 0) if is_report else self._get_inner_steps(batch)
        if not least <= header.inner_steps <= most:
            return f"header field inner_steps {header.inner_steps} is not in {least}..{most}"
        return ""

    def _get_inner_steps(self, batch: tuple[int, int]) -> tuple[int, int]:
        """The least and most inner steps of a trained result (LS1, LS7)."""
        optimizer = self._x.state.model.optimizer
        if optimizer.kind is not OptimizerKind.LOCAL_STEPS:
            return 0, 0
        return 1, min(optimizer.inner_steps, batch[1] - batch[0] + 1)

    def review_deferred(self, now: float) -> None:
        """Judge deferred results again: new own or agreed digests are known."""
        for record in self._x.book.all():
            deferred, record.deferred = record.deferred, {}
            for message in deferred.values():
                self._take_result(message, record, now)

    def take_listed(self, message: Gossip, record: RoundRecord, *, now: float) -> None:
        """Accept a result that the record decided, whatever weights it was trained on (C1, C2)."""
        assert isinstance(message.body, Result), "only results are listed"
        commitment = message.body.commitment
        self.note_signed(message, record)
        if commitment in record.results.get(message.member, {}):
            return
        verdict, header = self._judge(message, record, None)
        if header is None or verdict is Verdict.REFUSE:
            return
        if not self._x.facts.is_known:
            record.deferred[commitment] = message
        else:
            # whatever its base: the record has decided for it, so it is not for this client to doubt its weights
            record.deferred.pop(commitment, None)
            self.add(message, header, record, now=now)

    def add(self, message: Gossip, header: ResultHeader, record: RoundRecord, *, now: float) -> None:
        """Add an accepted result (by R3, or because the record decided it, C1) and fetch its payload."""
        assert isinstance(message.body, Result), "only results are added"
        result = KnownResult(encode_gossip(message), header, message.body.commitment)
        self._note_result(result, record, message.member, now)
        self._fetch(result, record, message.member, now)

    def announce(
        self, record: RoundRecord, fields: dict[str, Any], body: bytes, *, now: float, table: bytes = b""
    ) -> bytes:
        """Sign and announce an own result, and hold it; return its commitment. `fields` are the header's own ones."""
        x = self._x
        assert x.member is not None, "only members announce"
        header = self._build_header(record, x.member, fields, body, table)
        raw = encode_header(header)
        commitment = compute_commitment(raw)
        message = sign_gossip(
            x.identity, x.state.run_uid, record.epoch, record.height, x.member, Result(commitment, raw)
        )
        result = KnownResult(encode_gossip(message), header, commitment, PayloadStatus.HELD, held_at=now)
        if table:
            result.work = self._read_work(result, record, x.member, table, body)
        self._note_result(result, record, x.member, now)
        record.signed.setdefault(x.member, {})[commitment] = result.raw
        record.timely.add(commitment)
        record.heard |= 1 << x.member
        x.do(Announce(result.raw, body, header.body_hash, record.epoch, record.height, table))
        return commitment

    def _build_header(
        self, record: RoundRecord, member: int, fields: dict[str, Any], body: bytes, table: bytes
    ) -> ResultHeader:
        x = self._x
        return ResultHeader(
            run_uid=x.state.run_uid,
            epoch=record.epoch,
            member=member,
            height=record.height,
            step=record.step,
            lr_bits=get_lr_bits(compute_step_lr(x.state, record.step)),
            plan_hash=x.facts.plan_hash,
            config_hash=x.facts.config_hash,
            base_digest=self._weights.digests[record.height],
            body_hash=blob_id_of(body),
            body_len=len(body),
            work_root=blob_id_of(table) if table else ZERO32,
            numeric_class=NumericClass(x.facts.numeric_class),
            trainer_key=x.identity.public,
            **fields,
        )

    def _note_result(self, result: KnownResult, record: RoundRecord, member: int, now: float) -> None:
        record.results.setdefault(member, {})[result.commitment] = result
        record.trainers[result.commitment] = member
        if not self._x.state.config.overlap:
            record.finished_at.setdefault(member, now)  # A2: without overlap the Result counts as Finished

    def _fetch(self, result: KnownResult, record: RoundRecord, member: int, now: float) -> None:
        x = self._x
        result.status = PayloadStatus.FETCHING
        result.attempts += 1
        x.do(
            FetchPayload(
                epoch=record.epoch,
                height=record.height,
                member=member,
                commitment=result.commitment,
                blob_id=result.header.body_hash,
                size_bytes=result.header.body_len,
                sources=self._order_sources(record, member, result.attempts - 1),
                deadline=now + x.round_limit_s,
                is_report=result.header.result_kind is ResultKind.AUDIT,
                table=result.header.work_root,
                table_bytes=get_table_bytes(result.header, x.state),
            )
        )

    def _order_sources(self, record: RoundRecord, member: int, turn: int) -> tuple[bytes, ...]:
        """Sources in the order to try them: the author first, then the others, rotated with each attempt."""
        members, keys = self._x.get_sources(record.members)
        own = bisect_left(members, member)
        if own < len(members) and members[own] == member:
            keys = keys[:own] + keys[own + 1 :]
        first = turn % len(keys) if keys else 0
        return (self._x.get_key(member), *keys[first:], *keys[:first])

    def on_payload(self, event: PayloadArrived | PayloadFailed, now: float) -> None:
        for record in self._x.book.all():
            member = record.trainers.get(event.commitment)
            if member is None:
                continue
            result = record.results[member][event.commitment]
            if result.status is PayloadStatus.HELD:
                continue
            if isinstance(event, PayloadArrived):
                self._hold(result, record, member, event, now)
            elif event.refused:
                result.status = PayloadStatus.REFUSED
                self._refuse(Refusable.PAYLOAD, event.reason, height=record.height)
            else:
                result.status = PayloadStatus.ANNOUNCED
                result.retry_at = now + min(RETRY_S * 2 ** min(result.attempts - 1, 16), MAX_RETRY_S)
                self._failed[record.height, member, result.commitment] = result

    def _hold(self, result: KnownResult, record: RoundRecord, member: int, event: PayloadArrived, now: float) -> None:
        """Count a payload as held; where its work is shown, only with a table, and a report, that keep the rules."""
        if result.header.work_root != ZERO32:
            try:
                result.work = self._read_work(result, record, member, event.table, event.report)
            except WireError as error:
                result.status = PayloadStatus.REFUSED
                self._refuse(Refusable.WORK, str(error), member=member, height=record.height)
                return
        result.status, result.held_at = PayloadStatus.HELD, now

    def _read_work(self, result: KnownResult, record: RoundRecord, member: int, table: bytes, report: bytes) -> Work:
        """Read a table or report; raises WireError."""
        audited = self._x.book.get(record.height - 1)
        tasks = record.tasks.get(member, [])
        return read_work(result.header, self._x.state, table, report, tasks, partial(self._find_pieces, audited))

    def _find_pieces(self, audited: RoundRecord | None, task: AuditTask) -> range | None:
        """The pieces or rows of a task's target; None if this client knows no single result of it."""
        known = None if audited is None else audited.find_audited(task)
        return None if known is None else find_pieces(known.header, self._x.state)

    def _iter_failed(self) -> Iterator[tuple[RoundRecord, int, KnownResult]]:
        for (height, member, commitment), result in list(self._failed.items()):
            record = self._x.book.get(height)
            if record is None or result.status is not PayloadStatus.ANNOUNCED:
                del self._failed[height, member, commitment]
            else:
                yield record, member, result

    def retry(self, now: float) -> None:
        """Fetch failed payloads again once they are due; a decided payload is never given up (C6)."""
        for record, member, result in self._iter_failed():
            if now >= result.retry_at:
                self._fetch(result, record, member, now)

    def retry_soon(self, now: float) -> None:
        for _, _, result in self._iter_failed():
            result.retry_at = min(result.retry_at, now)

    def get_next_retry(self) -> float | None:
        return min((result.retry_at for _, _, result in self._iter_failed()), default=None)

    def _refuse(self, what: Refusable, reason: str, *, member: int | None = None, height: int | None = None) -> None:
        self.refused += 1
        self._x.log(types.Refused(what=what, reason=reason, member=member, height=height))
