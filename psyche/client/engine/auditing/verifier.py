"""This member's audits as an elected verifier, its report of them, and what it puts on record (V7, V9 to V11)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from psyche.client.engine.actions import AskOpening, Link, OpeningArrived, Submit
from psyche.client.engine.announcements import Announcements
from psyche.client.engine.auditing.desk import Answer, Desk
from psyche.client.engine.auditing.evidence import Charge, keep_evidence
from psyche.client.engine.auditing.questions import Lack, Question, ask_whole, find_link, find_task
from psyche.client.engine.auditing.tolerances import Tolerances
from psyche.client.engine.auditing.works import find_pieces, has_local_steps
from psyche.client.engine.context import EngineContext
from psyche.client.engine.records import PayloadStatus, RoundRecord
from psyche.client.engine.weights import Weights
from psyche.core.committee.audits import AuditTask, looks_at_whole
from psyche.core.committee.schedule import round_f32
from psyche.core.committee.verdicts import (
    Verdict,
    compute_distance,
    find_suspect,
    is_repeated,
    judge_piece,
)
from psyche.core.encoding.header import ResultKind
from psyche.core.encoding.work import SKETCH_VALUES, AuditRow, WorkRow, encode_report, encode_table
from psyche.core.rules.audits import find_entry
from psyche.core.state.bits import compute_bits
from psyche.core.state.limits import NOBODY
from psyche.core.state.messages import ReportAudit
from psyche.core.state.state import ZERO32, AuditReason, RunState
from psyche.core.state.timeline import is_last_drain
from psyche.telemetry import types

PATIENCE_S: Final = 2.0  # for work to audit that is on its way
OPENING_LIMIT_S: Final = 10.0  # in which a member opens its momenta, if nobody waits for the report
SUSPECTED_ROUNDS: Final = 4  # agreements of so many rounds count


@dataclass(frozen=True, slots=True)
class Finding:
    question: Question
    answer: Answer
    distance: float
    reason: AuditReason  # NONE: the piece is right


@dataclass(slots=True)
class Opening:
    """What a member was asked to open of its round, and what came of it."""

    question: Question  # about a piece of that round
    link: Link
    asked_at: float
    arrived: OpeningArrived | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """What a report found, of which one charge goes on record."""

    height: int
    commitment: bytes
    charges: Sequence[Charge]  # accusations before doubts
    audits: int
    failed: int


@dataclass(slots=True)
class OwnAudits:
    """The audits of one round: `left` are to be done, in the list's order."""

    height: int = -1
    left: list[AuditTask] = field(default_factory=list)
    asked: dict[int, AuditTask] = field(default_factory=dict)  # by the identity of a question out at the trainer
    found: dict[AuditTask, Finding] = field(default_factory=dict)
    whole: Charge | None = None  # of a whole round (V11)
    opening: Opening | None = None
    is_whole_due: bool = False
    at_whole: Question | None = None  # what is being recomputed of it, or was
    waiting_since: float | None = None
    is_over: bool = True


@dataclass(slots=True)
class Verifier:
    context: EngineContext
    announcements: Announcements
    weights: Weights
    desk: Desk
    tolerances: Tolerances
    own: OwnAudits = field(default_factory=OwnAudits)
    _verdicts: dict[int, list[Verdict]] = field(default_factory=lambda: defaultdict(list))  # of each member's audits
    _read: set[bytes] = field(default_factory=set)  # commitments of reports whose verdicts are counted
    _agreements: dict[int, tuple[int, float]] = field(default_factory=dict)  # member -> round, agreement of signs
    _suspected: dict[int, int] = field(default_factory=dict)  # member -> the round in which it was suspected last
    _due: Due | None = None
    _newest: tuple[int, int] = (-1, -1)  # epoch and height of the last report ever: a second one would be evidence (M9)

    def clear(self) -> None:
        """A new epoch begins: its members have other numbers."""
        self.own, self._due = OwnAudits(), None
        for known in (self._verdicts, self._read, self._agreements, self._suspected):
            known.clear()

    def is_at_work(self, height: int) -> bool:
        return self.own.height == height and not self.own.is_over

    def get_deadline(self) -> float | None:
        since = self.own.waiting_since
        return None if since is None or self.own.is_over else since + PATIENCE_S

    # --- reports of others -------------------------------------------------------------------------

    def follow(self) -> None:
        """Count what reports say of members, and see which verifiers can have nothing to audit."""
        for record in self.context.book.all():
            if record.reporters and record.height >= self.context.height - 1:
                self._excuse(record)
            for member in record.reporters:
                known = record.get_single(member)
                if known is not None and known.work is not None and known.commitment not in self._read:
                    self._read.add(known.commitment)
                    for row in known.work.report:
                        self._verdicts[row.target].append(self._judge(record, row))

    def _judge(self, record: RoundRecord, row: AuditRow) -> Verdict:
        before = self.context.book.get(record.height - 1)
        known = None if before is None else before.get_single(row.target)
        numeric_class = 0 if known is None else known.header.numeric_class
        return judge_piece(row.distance, self.tolerances.get(numeric_class, row.target))

    def _excuse(self, record: RoundRecord) -> None:
        audited = self.context.book.get(record.height - 1)
        record.excused = compute_bits(
            member
            for member in record.reporters
            if audited is None or not any(self._is_auditable(audited, task) for task in record.tasks[member])
        )

    def _is_auditable(self, audited: RoundRecord, task: AuditTask) -> bool:
        """Whether the target's work is here, and has a piece that another machine can judge."""
        known = audited.get_single(task.target)
        if known is None or known.status is not PayloadStatus.HELD:
            return False
        return len(find_pieces(known.header, self.context.state)) > 0

    # --- own audits --------------------------------------------------------------------------------

    def enter_round(self, record: RoundRecord | None) -> None:
        """Begin the audits of a newly seen round; those of the one before are over."""
        if not self.own.is_over:
            self.desk.cancel()
            self.context.log(
                types.NotSent(height=self.own.height, reason="its round ended before this client had audited others")
            )
        member = self.context.member
        is_new = record is not None and (record.epoch, record.height) > self._newest
        tasks = [] if record is None or member is None or not is_new else record.tasks.get(member, [])
        self.own = OwnAudits(height=-1 if record is None else record.height, left=list(tasks), is_over=not tasks)
        if record is not None and tasks:
            may_look = not has_local_steps(self.context.state)
            self.own.is_whole_due = may_look and looks_at_whole(record.seed, member or 0)

    def act(self, record: RoundRecord, now: float, *, is_idle: bool, is_time_up: bool) -> None:
        """Have the next audits done, or report; `is_time_up`: with those that are done."""
        self._put_on_record(may_wait=not is_idle)
        own = self.own
        if own.height != record.height or own.is_over or record.height not in self.weights.digests:
            return
        if self.weights.is_diverged:
            own.is_over = True
            self.context.log(types.NotSent(height=record.height, reason="this client's digest is not the agreed one"))
            return
        # a whole round takes as long as a batch: if it were cut, none would ever come to its end
        if is_time_up and own.found and own.at_whole is None:
            self.desk.cancel()
        if self.desk.is_busy:
            return
        if not (is_time_up and own.found) and self._ask(record, now):
            return
        self._report(record, now)

    def _ask(self, record: RoundRecord, now: float) -> bool:
        """Ask for what can be recomputed now; return whether there is something to wait for."""
        own = self.own
        questions = {task: find_task(self.context, record, task) for task in own.left}
        own.left = [task for task in own.left if questions[task] is not Lack.GONE]
        ready = [(task, q) for task, q in questions.items() if isinstance(q, Question)]
        if self._ask_whole(record, [q for task, q in ready if not task.is_report], now):
            return True
        is_opening = own.opening is not None and own.opening.arrived is None
        # the first one alone: a verifier that is slow must have something to report when time is up
        if own.found:
            ready.sort(key=lambda asked: not asked[0].is_report)  # they are at the list's end, to which few come
        if ready:
            height = ready[0][1].case.height
            most = len(ready) if own.found and not is_opening else 1
            chosen = [(task, q) for task, q in ready if q.case.height == height][:most]
            own.waiting_since = None
            own.asked = {id(q): task for task, q in chosen}
            self.desk.ask([q for _, q in chosen], record.seed, self._take)
            return True
        if own.left:
            own.waiting_since = now if own.waiting_since is None else own.waiting_since
            return now < own.waiting_since + PATIENCE_S
        return is_opening and own.opening is not None and now < own.opening.asked_at + OPENING_LIMIT_S

    def _ask_whole(self, record: RoundRecord, ready: Sequence[Question], now: float) -> bool:
        """Look at one member's whole round, after the first piece; return whether it is being recomputed now (V11)."""
        x, own = self.context, self.own
        if own.opening is not None:
            return self._ask_opened(record, own.opening)
        trained = [f.question for task, f in own.found.items() if not task.is_report]
        chosen = self._choose_whole(record, [*trained, *ready]) if own.is_whole_due else None
        if chosen is None:
            return False
        link = find_link(x, chosen.result.header)
        if link is None and not own.found:
            return False
        own.is_whole_due = False
        if isinstance(link, Link):
            own.opening = Opening(chosen, link, now)
            header, keys = chosen.result.header, (x.get_key(chosen.member),)
            x.do(AskOpening(x.epoch, header.height, header.member, keys, link, now + OPENING_LIMIT_S))
        elif link is None:  # the signs alone
            own.at_whole = ask_whole(chosen)
            self.desk.ask([own.at_whole], record.seed, self._take_whole)
        else:
            own.whole = Charge(chosen, link)
        return own.at_whole is not None

    def _ask_opened(self, record: RoundRecord, opening: Opening) -> bool:
        arrived, own = opening.arrived, self.own
        if own.at_whole is not None or not own.found or arrived is None or arrived.opening == ZERO32:
            return False
        own.at_whole = ask_whole(opening.question, opening.link._replace(opening=arrived.opening))
        self.desk.ask([own.at_whole], record.seed, self._take_whole)
        return True

    def _choose_whole(self, record: RoundRecord, questions: Sequence[Question]) -> Question | None:
        """That of the member whom the signs make suspect, or the first of the list."""
        oldest = record.height - SUSPECTED_ROUNDS
        recent = {m: agreement for m, (height, agreement) in self._agreements.items() if height >= oldest}
        suspect = find_suspect(recent, self._suspected, record.height) if record.seed[2] & 1 else None
        chosen = next((q for q in questions if q.member == suspect), None)
        if chosen is not None:
            self._suspected[chosen.member] = record.height
        return chosen or next(iter(questions), None)

    def on_opening(self, event: OpeningArrived) -> None:
        opening = self.own.opening
        if opening is None or opening.arrived is not None:
            return
        header = opening.question.result.header
        if (event.epoch, event.height, event.member) == (self.context.epoch, header.height, header.member):
            opening.arrived = event

    def _take_whole(self, question: Question, answer: Answer | None) -> None:
        tolerance = self.tolerances.get(question.case.numeric_class, question.member)
        reason = None if answer is None else answer.judge_round(tolerance)
        if reason and question is self.own.at_whole:  # else its round is over
            self.own.whole = Charge(question, reason, answer)
        self.context.log(
            types.RoundAudited(
                height=question.result.header.height, target=question.member,
                agreement=-1.0 if answer is None else answer.agreement,
                link_distance=-1.0 if answer is None else answer.link_distance, reason=reason,
            )
        )  # fmt: skip

    def _find_withheld(self, record: RoundRecord, now: float) -> None:
        """Whoever is there and has not opened what it was asked for, for a while, withholds it."""
        opening = self.own.opening
        if opening is None or now < opening.asked_at + PATIENCE_S or self.own.whole is not None:
            return
        arrived = opening.arrived
        if arrived is not None and arrived.is_forged:
            self.own.whole = Charge(opening.question, AuditReason.PATHS)
        elif (arrived is None or arrived.opening == ZERO32) and record.heard >> opening.question.member & 1:
            self.own.whole = Charge(opening.question, AuditReason.WITHHELD)

    def _take(self, question: Question, answer: Answer | None) -> None:
        task = self.own.asked.pop(id(question), None)
        if task is None:
            return
        self.own.left.remove(task)
        if answer is None:
            return
        tolerance = self.tolerances.get(question.case.numeric_class, question.member)
        distance = compute_distance(question.claim, answer.values)
        verdict = judge_piece(distance, tolerance)
        if answer.agreement >= 0 and not task.is_report:
            self._agreements[question.member] = self.own.height, answer.agreement
        self.own.found[task] = Finding(question, answer, distance, self._get_reason(question.member, verdict))
        self.context.log(
            types.Audited(
                height=question.result.header.height, target=question.member, piece=question.piece,
                report=task.is_report, distance=distance, tolerance=tolerance, verdict=verdict,
                key=self.context.get_key(question.member).hex()[:16],
            )
        )  # fmt: skip

    def _get_reason(self, member: int, verdict: Verdict) -> AuditReason:
        self._verdicts[member].append(verdict)
        if verdict is Verdict.UNCLEAR and is_repeated(self._verdicts[member]):
            return AuditReason.REPEATED
        return (AuditReason.NONE, AuditReason.UNCLEAR, AuditReason.GRADIENT)[verdict]

    # --- the report --------------------------------------------------------------------------------

    def _report(self, record: RoundRecord, now: float) -> None:
        own, x = self.own, self.context
        self._find_withheld(record, now)
        own.is_over = True
        self._newest = record.epoch, record.height
        findings = [(task, own.found[task]) for task in record.audits if task in own.found]
        if not findings or x.member is None or not x.is_healthy(x.member):
            x.log(types.NotSent(height=record.height, reason="there is nothing that this client could audit"))
            return
        rows = [
            AuditRow(f.question.member, f.question.piece, task.is_report, f.distance, f.answer.values)
            for task, f in findings
        ]
        fields: dict[str, Any] = {
            "batch_start": 0, "batch_end": 0, "data_hash": ZERO32, "prev_commitment": ZERO32, "train_count": 0,
            "result_kind": ResultKind.AUDIT,
        }  # fmt: skip
        table = encode_table(_accumulate([f.answer for _, f in findings]))
        commitment = self.announcements.announce(record, fields, encode_report(rows), now=now, table=table)
        self._read.add(commitment)
        charges = self._order([f for _, f in findings])
        failed = sum(f.reason > AuditReason.UNCLEAR for _, f in findings) + (self.own.whole is not None)
        self._due = Due(record.height, commitment, charges, len(findings), failed)
        self._put_on_record(may_wait=True)

    def _put_on_record(self, *, may_wait: bool) -> None:
        """Name the first member against whom a challenge opens; where none opens yet, wait while there is time (V9)."""
        x, due = self.context, self._due
        if due is None or x.member is None:
            return
        accusations = [charge for charge in due.charges if charge.reason > AuditReason.UNCLEAR]
        opening = (c for c in accusations if find_entry(x.state, x.member, c.question.member) is not None)
        worst = next(opening, None)
        if worst is None and accusations and self._may_wait(due.height, may_wait=may_wait):
            return
        self._due = None
        if due.height < x.height - 1:
            return
        named = ReportAudit(x.epoch, due.height, x.member, NOBODY, NOBODY, AuditReason.NONE, due.commitment)
        worst = worst or next(iter(due.charges), None)
        if worst is not None:
            question = worst.question
            named = ReportAudit(
                x.epoch, due.height, x.member, question.member, question.piece, worst.reason,
                question.result.commitment,
            )  # fmt: skip
            keep_evidence(x, self.tolerances, worst)
        sent = types.AuditsReported(
            epoch=x.epoch, height=due.height, audits=due.audits, failed=due.failed,
            target=None if worst is None else worst.question.member, reason=AuditReason(named.reason),
        )  # fmt: skip
        x.do(Submit(named, before=sent))

    def _may_wait(self, height: int, *, may_wait: bool) -> bool:
        """Whether a challenge may open later; `may_wait`: the running round, if it is the next one, is not over yet."""
        x = self.context
        if not x.state.config.convict or is_last_drain(x.state.config, x.state.epoch, height):
            return False
        is_early = may_wait and x.state.run_state is RunState.ROUND_TRAIN
        return x.height == height or (x.height == height + 1 and is_early)

    def _order(self, findings: Sequence[Finding]) -> list[Charge]:
        """Accusations in the list's order, then doubts; who computes otherwise than others accuses nobody (V6)."""
        if self.context.member in self.tolerances.odd:
            return []
        named = [Charge(f.question, f.reason, f.answer) for f in findings if f.reason > AuditReason.NONE]
        named += [] if self.own.whole is None else [self.own.whole]
        excused = [self.tolerances.excuses(charge.question.result.header) for charge in named]
        doubt = AuditReason.UNCLEAR, None  # without an answer nobody keeps evidence of it
        named = [Charge(c.question, *doubt) if e else c for c, e in zip(named, excused, strict=True)]
        return sorted(named, key=lambda charge: charge.reason == AuditReason.UNCLEAR)


def _accumulate(answers: Sequence[Answer]) -> list[WorkRow]:
    """The rows of a report's table: as those of a batch, each has the values of all before it (V9)."""
    rows: list[WorkRow] = []
    total = (0.0,) * SKETCH_VALUES
    for answer in answers:
        total = tuple(round_f32(before + more) for before, more in zip(total, answer.resketched, strict=True))
        rows.append(WorkRow(answer.loss, total))
    return rows
