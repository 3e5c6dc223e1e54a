"""One request to the trainer at a time: pieces to recompute, and what was found of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from psyche.client.engine.actions import Audit, Audited, CancelAudit, Case
from psyche.client.engine.context import EngineContext
from psyche.core.committee.verdicts import judge_round
from psyche.core.encoding.work import MAX_MAGNITUDE, Values
from psyche.core.state.state import AuditReason
from psyche.telemetry import types
from psyche.wire.trainer import AuditedTarget


class Asked(Protocol):
    """What has to be recomputed, at which round's claims."""

    @property
    def seed(self) -> bytes: ...
    @property
    def case(self) -> Case: ...


Q = TypeVar("Q", bound=Asked)


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece recomputed: its loss, and its values under the seed of the claim and under that of this round."""

    loss: float
    values: Values
    resketched: Values
    agreement: float  # of the payload's signs with the pieces recomputed (V11); negative: not known
    link_reason: AuditReason = AuditReason.NONE  # what the opened momentum shows for certain
    link_distance: float = -1.0  # of its growth from the gradient; negative: not known

    def judge_round(self, tolerance: float) -> AuditReason | None:
        return judge_round(self.agreement, self.link_reason, self.link_distance, tolerance)

    def judge_accused(self, tolerance: float) -> bool | None:
        """Whether the whole round shows that its member is guilty; None if that cannot be said (V12)."""
        found = self.judge_round(tolerance)
        return None if found is None else found is not AuditReason.NONE


@dataclass(slots=True)
class Desk:
    context: EngineContext
    _running: tuple[Audit, tuple[Any, ...], Callable[[Any, Answer | None], None]] | None = None
    _is_cancelled: bool = False

    @property
    def is_busy(self) -> bool:
        return self._running is not None

    @property
    def running(self) -> Audit | None:
        return None if self._running is None else self._running[0]

    def ask(self, questions: Sequence[Q], seed: bytes, on_answer: Callable[[Q, Answer | None], None]) -> None:
        """Have these pieces recomputed; all must be of one round's weights and of one round's claims.

        `on_answer` gets each that was recomputed, or None for one that cannot be; one that was only cut short gets no
        answer. `seed` is that of the running round.
        """
        assert self._running is None, "one request at a time"
        first = questions[0]
        audit = Audit(self.context.epoch, first.case.height, (first.seed, seed), tuple(q.case for q in questions))
        self._running = audit, tuple(questions), on_answer
        self._is_cancelled = False
        self.context.do(audit)

    def cancel(self) -> None:
        """End it soon; what is done by then counts."""
        if self._running is not None and not self._is_cancelled:
            self._is_cancelled = True
            self.context.do(CancelAudit())

    def on_audited(self, event: Audited) -> None:
        if self._running is None or event.audit is not self._running[0]:
            return
        (_, questions, on_answer), self._running = self._running, None
        reply = event.reply
        if reply is None or reply.refused:
            for question in questions:
                self._note_failure(question, event.reason if reply is None else reply.refused)
                on_answer(question, None)
            return
        for question, target in zip(questions, reply.targets, strict=False):
            answer = None
            if target.refused:
                self._note_failure(question, target.refused)
            elif len(target.pieces) != len(question.case.pieces):
                continue
            elif (answer := read_answer(target)) is None:
                self._note_failure(question, "a number is beyond what a table can hold")
            on_answer(question, answer)

    def _note_failure(self, question: Asked, reason: str) -> None:
        self.context.log(types.NotAudited(height=question.case.height, target=question.case.member, reason=reason))


def read_answer(target: AuditedTarget) -> Answer | None:
    """The answer about the last piece; None where numbers are beyond what a table can hold."""
    piece = target.pieces[-1]
    own, resketched = piece.values
    if not all(abs(value) <= MAX_MAGNITUDE for value in (piece.loss, *own, *resketched)):
        return None
    reason = AuditReason(target.link_reason)
    return Answer(piece.loss, own, resketched, target.agreement, reason, target.link_distance)
