"""What has to be recomputed to judge a piece of a member's work, and what that member says of it (V8, V9)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from psyche.client.engine.actions import Case, Link
from psyche.client.engine.announcements import compute_step_lr
from psyche.client.engine.auditing.works import find_pieces, has_local_steps
from psyche.client.engine.context import EngineContext
from psyche.client.engine.records import KnownResult, PayloadStatus, RoundRecord
from psyche.core.committee.audits import AuditTask
from psyche.core.encoding.header import ResultHeader, ResultKind
from psyche.core.encoding.work import Values, compute_pieces
from psyche.core.state.roster import find_member
from psyche.core.state.state import ZERO32, AuditReason, Challenge, Coordinator
from psyche.wire.trainer import LocalTarget

_COMING: Final = (PayloadStatus.ANNOUNCED, PayloadStatus.FETCHING)


class Lack(Enum):
    """Why a piece cannot be recomputed."""

    COMING = auto()  # something of it is being fetched
    GONE = auto()  # for good


@dataclass(frozen=True, slots=True)
class Question:
    """Whether a member's claim about a piece, or about a row of its report, is right."""

    member: int
    piece: int
    seed: bytes  # of the round that the claim was made in
    result: KnownResult
    claim: Values
    case: Case  # the batch that the piece is of: the member's own, or of whom its report is about
    trail: tuple[KnownResult, ...] = ()  # from the claim's result to the one that has this batch


def find_task(x: EngineContext, record: RoundRecord, task: AuditTask) -> Question | Lack:
    """The question of an audit of this round."""
    audited = x.book.get(record.height - 1)
    known = None if audited is None else audited.find_audited(task)
    if audited is None or known is None:
        return Lack.GONE
    return _ask(x, audited, task.target, known, task.get_piece)


def find_accused(x: EngineContext, challenge: Challenge) -> Question | Lack:
    """The question of a challenge of the running epoch."""
    audited, member = x.book.get(challenge.height), find_member(x.state, challenge.target)
    if challenge.epoch != x.epoch or audited is None or member is None:
        return Lack.GONE
    known = audited.results.get(member, {}).get(challenge.target_commitment)
    if known is None:
        return Lack.GONE
    return _ask(x, audited, member, known, lambda rows: challenge.piece if challenge.piece in rows else None)


def ask_whole(question: Question, link: Link | None = None) -> Question:
    """The same of all pieces of its batch, and of what its member opens (V11)."""
    case = question.case
    pieces = range(compute_pieces(case.end - case.start + 1, case.piece_samples))
    return replace(question, case=case._replace(pieces=tuple(pieces), link=link))


def build_local(state: Coordinator, header: ResultHeader, last: ResultHeader | None) -> LocalTarget | None:
    """How the inner steps of a result were taken; None with another optimizer. It began from `last`, if that is given.

    Inner steps before it are counted by results, which its header names, whatever each of these had (LS8).
    """
    if not has_local_steps(state):
        return None
    optimizer, merges = state.model.optimizer, state.config.overlap and header.height > 0
    return LocalTarget(
        rates=(compute_step_lr(state, header.step), compute_step_lr(state, header.step + 1)),
        done=optimizer.inner_steps * max(0, header.train_count - 1),
        merge_step=optimizer.merge_step if merges else 0,
        in_flight=0 if last is None else last.inner_steps,
    )


def find_link(x: EngineContext, header: ResultHeader) -> Link | AuditReason | None:
    """What links a whole round to its payload (V11); MOMENTUM if its header contradicts the one before.

    None: it cannot be judged by what is opened, for it is not known what the momentum was before.
    """
    config = x.state.config
    after, before = x.book.get(header.height + 1), x.book.get(header.height - 1)
    if x.book.get(header.height) is None or after is None:
        return None
    known = None if before is None else before.results.get(header.member, {}).get(header.prev_commitment)
    if before is not None and not config.overlap and not before.is_decided:
        known = None  # whether its values were taken out
    applied = frozenset[bytes]().union(*(record.applied for record in x.book.all()))
    return build_link(x.state, header, None if known is None else known.header, after.seed, applied)


def build_link(
    state: Coordinator, header: ResultHeader, last: ResultHeader | None, seed: bytes, applied: Collection[bytes]
) -> Link | AuditReason | None:
    """The same of two headers of a member; `last` is of the round before, `applied` are results that were."""
    if not state.config.opened_chunks or header.momentum_after == ZERO32:
        return None
    taken_out: bytes | None = ZERO32
    if header.train_count != 1 or header.momentum_before != ZERO32:  # it is not the first one with this momentum
        if last is None or last.height != header.height - 1 or header.train_count != last.train_count + 1:
            return None
        if header.momentum_before != last.momentum_after:
            return AuditReason.MOMENTUM
        taken_out = _find_taken_out(last, header.prev_commitment, applied, overlap=state.config.overlap)
    if taken_out is None:
        return None
    lr = compute_step_lr(state, header.step)
    return Link(header.momentum_before, header.momentum_after, seed, lr, taken_out)


def _find_taken_out(
    last: ResultHeader, commitment: bytes, applied: Collection[bytes], *, overlap: bool
) -> bytes | None:
    """The payload whose values left the momentum before the next training; None if others may have come back (R8)."""
    if not overlap:
        return last.body_hash if commitment in applied else ZERO32
    sooner = last.prev_commitment
    # what the epoch before did not apply is given back in this one's first training
    return last.body_hash if not last.height or sooner == ZERO32 or sooner in applied else None


def _ask(
    x: EngineContext, record: RoundRecord, member: int, known: KnownResult, choose: Callable[[range], int | None]
) -> Question | Lack:
    if known.work is None:
        return Lack.COMING if known.status in _COMING else Lack.GONE
    piece = choose(find_pieces(known.header, x.state))
    if piece is None:
        return Lack.GONE
    trail = _find_trail(x, record, known, piece)
    if isinstance(trail, Lack):
        return trail
    trained, results, row = trail
    case = _find_case(x, trained, results[-1].header.member, results[-1], row)
    if isinstance(case, Lack):
        return case
    return Question(member, piece, record.seed, known, known.work.get_claim(piece), case, results)


_Trail = tuple[RoundRecord, tuple[KnownResult, ...], int]  # the last one's round, and which of its pieces it is


def _find_trail(x: EngineContext, record: RoundRecord, known: KnownResult, row: int) -> _Trail | Lack:
    """The results from this one to the trained one that its row is about, as far as rounds are kept."""
    results = [known]
    while known.work is not None and known.work.report:
        if row >= len(known.work.report):
            return Lack.GONE
        audit = known.work.report[row]
        before = x.book.get(record.height - 1)
        target = None if before is None else before.get_single(audit.target)
        if before is None or target is None:
            return Lack.GONE
        record, known, row = before, target, audit.piece
        results.append(target)
        if known.work is not None and audit.is_report != bool(known.work.report):
            return Lack.GONE
    if known.work is None:
        return Lack.COMING if known.status in _COMING else Lack.GONE
    return record, tuple(results), row


def _find_case(x: EngineContext, record: RoundRecord, member: int, known: KnownResult, piece: int) -> Case | Lack:
    header = known.header
    if known.work is None:
        return Lack.COMING if known.status in _COMING else Lack.GONE
    if header.result_kind is ResultKind.AUDIT or piece not in find_pieces(header, x.state):
        return Lack.GONE
    last = _find_last(x, record, member, header)
    if isinstance(last, Lack):
        return last
    local = build_local(x.state, header, last)
    return Case(
        member=member,
        height=record.height,
        start=header.batch_start,
        end=header.batch_end,
        piece_samples=header.piece_samples,
        pieces=(piece,),
        numeric_class=header.numeric_class,
        payload=header.body_hash if local is None else ZERO32,
        last=ZERO32 if last is None else last.body_hash,
        lookahead_lr=0.0 if last is None or local is not None else compute_step_lr(x.state, record.step - 1),
        local=local,
    )


def _find_last(x: EngineContext, record: RoundRecord, member: int, header: ResultHeader) -> ResultHeader | Lack | None:
    """The result that the member looked ahead with (V4), or began from (LS5): its last one, if of the round before."""
    if not x.state.config.overlap or not record.height:
        return None
    before = x.book.get(record.height - 1)
    if before is None:
        return Lack.GONE
    sent = before.results.get(member, {})
    known = sent.get(header.prev_commitment)
    if known is None:  # without any result of that round nobody can tell whether it had one
        return Lack.GONE if member in before.assignments and not sent else None
    if known.header.result_kind is ResultKind.AUDIT:
        return None
    if known.status is PayloadStatus.HELD:
        return known.header
    return Lack.COMING if known.status in _COMING else Lack.GONE
