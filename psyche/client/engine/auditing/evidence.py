"""What a member is accused of, and the file by which anybody can judge it again (V13)."""

from dataclasses import replace
from typing import NamedTuple

from psyche.client.engine.actions import KeepEvidence
from psyche.client.engine.auditing.desk import Answer
from psyche.client.engine.auditing.questions import Question
from psyche.client.engine.auditing.tolerances import Tolerances
from psyche.client.engine.context import EngineContext
from psyche.client.engine.records import KnownResult
from psyche.core.encoding.account import encode_state
from psyche.core.encoding.evidence import NEEDED, Evidence, SignedResult
from psyche.core.encoding.header import ResultHeader, ResultKind, encode_header
from psyche.core.encoding.work import encode_report
from psyche.core.state.gossip import Result
from psyche.core.state.state import ZERO32, AuditReason
from psyche.core.state.timeline import get_round
from psyche.wire.gossip import decode_gossip


class Charge(NamedTuple):
    """What a member is accused of, or doubted for, and what was computed to see it, if anything was."""

    question: Question
    reason: AuditReason
    answer: Answer | None = None


def keep_evidence(x: EngineContext, tolerances: Tolerances, charge: Charge) -> None:
    """Have a file written, unless nothing was computed, or the record of those rounds was not seen in time."""
    question, reason, answer = charge
    accused, after = question.result, x.book.get(question.result.header.height + 1)
    seen = None if after is None else after.seen
    needed = NEEDED[reason]
    if (needed and answer is None) or seen is None or get_round(seen, accused.header.height) is None:
        return
    kept = Evidence(
        reason=reason,
        piece=question.piece,
        tolerance=tolerances.get_of_class(question.case.numeric_class),
        calibration=tolerances.odd.get(question.member, 0.0),
        record=encode_state(seen),
        results=tuple(_sign(one) for one in question.trail),
        last_result=_find_last(x, question.trail[-1].header),
    )
    if "table" in needed and answer is not None and accused.work is not None:
        kept = replace(kept, table=accused.work.raw, values=answer.values)
    x.do(KeepEvidence(x.epoch, accused.header.member, accused.header.height, question.case, kept))


def _sign(known: KnownResult) -> SignedResult:
    message, work = decode_gossip(known.raw), known.work
    assert isinstance(message.body, Result), "evidence is of results"
    report = encode_report(work.report) if work is not None and work.report else b""
    return SignedResult(message.body.header, message.signature, report)


def _find_last(x: EngineContext, header: ResultHeader) -> bytes:
    """The header of the result that this one names as its member's last; or what its member has signed instead in the
    round before, which shows that it names none of that round.
    """
    if not header.height or header.prev_commitment == ZERO32:
        return b""
    known = (record.results.get(header.member, {}).get(header.prev_commitment) for record in x.book.all())
    named = next((one for one in known if one is not None), None)
    if named is not None:
        return encode_header(named.header)
    before = x.book.get(header.height - 1)
    sent = () if before is None else before.results.get(header.member, {}).values()
    other = next((_sign(one) for one in sent if one.header.result_kind is ResultKind.TRAINED), None)
    return b"" if other is None else other.header + other.signature
