"""Judging the accused: as a witness of the round that the challenge names (V12, V15)."""

from dataclasses import dataclass, field
from functools import partial

from psyche.client.engine.actions import AskOpening, Link, OpeningArrived, Submit
from psyche.client.engine.auditing.desk import Answer, Desk
from psyche.client.engine.auditing.evidence import Charge, keep_evidence
from psyche.client.engine.auditing.questions import Lack, Question, ask_whole, find_accused, find_link
from psyche.client.engine.auditing.tolerances import Tolerances
from psyche.client.engine.auditing.works import has_local_steps
from psyche.client.engine.context import EngineContext
from psyche.client.engine.weights import Weights
from psyche.core.committee.audits import is_opened
from psyche.core.committee.verdicts import compute_distance, judge_accused
from psyche.core.rules.audits import find_jury
from psyche.core.state.messages import JudgeChallenge
from psyche.core.state.roster import find_member
from psyche.core.state.state import ZERO32, AuditReason, Challenge, ChallengeState, RunState
from psyche.telemetry import types
from psyche.telemetry.challenges import ChallengeKey, get_key


@dataclass(slots=True)
class Jury:
    context: EngineContext
    weights: Weights
    desk: Desk
    tolerances: Tolerances
    _verdicts: dict[ChallengeKey, bool | None] = field(default_factory=dict)  # guilty; None: this client cannot tell
    _voted: dict[ChallengeKey, int] = field(default_factory=dict)  # the epoch in which the vote was sent
    _asked_at: tuple[int, int] = (-1, -1)  # the round in which a piece was recomputed last
    _links: dict[ChallengeKey, Link | AuditReason] = field(default_factory=dict)
    _openings: dict[ChallengeKey, OpeningArrived | int] = field(default_factory=dict)  # or the round of the question

    def act(self, *, is_idle: bool) -> None:
        """Judge what this client is in the jury for; `is_idle`: its own work of the round is done.

        In the last round for it a juror recomputes one piece before its own work; so no round is later by more.
        """
        x = self.context
        for number, challenge in self._find_open():
            key = get_key(challenge)
            self._note_link(challenge)
            if self._voted.get(key) == x.epoch or not self._is_juror(challenge):
                continue
            if key not in self._verdicts:
                is_urgent = x.height >= challenge.deadline_height and self._asked_at != (x.epoch, x.height)
                self._ask(challenge, may_ask=is_idle or is_urgent)
            guilty = self._verdicts.get(key)
            if guilty is not None:
                assert x.member is not None, "a juror"
                self._voted[key] = x.epoch
                x.do(Submit(JudgeChallenge(x.epoch, x.height, x.member, number, int(guilty))))

    def prepare(self) -> None:
        """In Cooldown: come to a verdict on what the next epoch's jury decides, while the weights are here (V15)."""
        x = self.context
        if x.state.run_state is not RunState.COOLDOWN or x.member is None:
            return
        for _, challenge in self._find_open():
            if challenge.epoch == x.epoch and get_key(challenge) not in self._verdicts:
                self._ask(challenge, may_ask=True)

    def is_urgent(self) -> bool:
        """Whether a piece is being recomputed for which the own work waits."""
        x = self.context
        if not self.desk.is_busy or self._asked_at != (x.epoch, x.height):
            return False
        return any(c.deadline_height <= x.height and self._is_juror(c) for _, c in self._find_open())

    def follow(self) -> None:
        """Forget what is decided."""
        known = {get_key(c) for c in self.context.state.challenges if c.state is not ChallengeState.FREE}
        self._verdicts = {key: guilty for key, guilty in self._verdicts.items() if key in known}
        self._voted = {key: epoch for key, epoch in self._voted.items() if key in known}
        self._links = {key: link for key, link in self._links.items() if key in known}
        self._openings = {key: opening for key, opening in self._openings.items() if key in known}

    def _find_open(self) -> list[tuple[int, Challenge]]:
        challenges = enumerate(self.context.state.challenges)
        return [(number, one) for number, one in challenges if one.state is ChallengeState.OPEN]

    def _is_juror(self, challenge: Challenge) -> bool:
        return self.context.member in (find_jury(self.context.state, challenge) or ())

    def _ask(self, challenge: Challenge, *, may_ask: bool) -> None:
        x = self.context
        question = find_accused(x, challenge)
        if question is Lack.GONE:
            self._verdicts[get_key(challenge)] = None
            if challenge.epoch == x.epoch and (member := find_member(x.state, challenge.target)) is not None:
                reason = "its work, or that of the round before, is not here"
                x.log(types.NotAudited(height=challenge.height, target=member, reason=reason))
            return
        if isinstance(question, Question) and challenge.reason >= AuditReason.SIGNS and not self._has_whole(question):
            self._conclude(challenge, question, False)
            return
        if isinstance(question, Question) and challenge.reason is AuditReason.SIGNS:
            question = ask_whole(question)
        elif isinstance(question, Question) and challenge.reason > AuditReason.SIGNS:
            question = self._find_opened(challenge, question)
        if isinstance(question, Question) and may_ask and not self.desk.is_busy and not self.weights.is_diverged:
            self._asked_at = (x.epoch, x.height)
            self.desk.ask([question], x.state.current.seed, partial(self._take, challenge))

    def _has_whole(self, question: Question) -> bool:
        """Whether what is accused is a round at which verifiers look as a whole.

        A report is none: the payload to judge would be that of whom it is about.
        """
        return len(question.trail) == 1 and not has_local_steps(self.context.state)

    def _note_link(self, challenge: Challenge) -> None:
        """What the accused work hangs on may be in rounds that are forgotten before its last juror votes."""
        x, key = self.context, get_key(challenge)
        member, audited = find_member(x.state, challenge.target), x.book.get(challenge.height)
        if key in self._links or audited is None or member is None or challenge.epoch != x.epoch:
            return
        known = audited.results.get(member, {}).get(challenge.target_commitment)
        link = None if known is None else find_link(x, known.header)
        if link is not None:
            self._links[key] = link

    def _find_opened(self, challenge: Challenge, question: Question) -> Question | None:
        """The question with what its member opens; None while that is not here, or where there is nothing to compute.

        Who withholds it, or opens what it has not committed to, does so to the jury too. A juror to whom it is opened
        does not vote on that: the member may have withheld it from its accuser alone (V12).
        """
        link = self._links.get(get_key(challenge))
        if challenge.reason is AuditReason.MOMENTUM:
            self._conclude(challenge, question, None if link is None else link is AuditReason.MOMENTUM)
            return None
        if not isinstance(link, Link):
            self._conclude(challenge, question, None)
            return None
        if challenge.reason is AuditReason.WITHHELD and self._owes_nothing(challenge, question):
            self._conclude(challenge, question, False)
            return None
        arrived = self._ask_opening(challenge, question, link)
        if arrived is None:
            return None
        is_here = arrived.opening != ZERO32
        if challenge.reason is AuditReason.WITHHELD:
            is_present = any(record.heard >> question.member & 1 for record in self.context.book.all()[-2:])
            self._conclude(challenge, question, True if not is_here and is_present else None)
        elif challenge.reason is AuditReason.PATHS:
            self._conclude(challenge, question, True if arrived.is_forged else None)
        elif is_here:
            return ask_whole(question, link._replace(opening=arrived.opening))
        else:
            self._conclude(challenge, question, None)
        return None

    def _owes_nothing(self, challenge: Challenge, question: Question) -> bool:
        """Whether no verifier may have asked the accused to open its momenta: then it has not opened them."""
        after = self.context.book.get(challenge.height + 1)
        return after is not None and bool(after.audits) and not is_opened(after.seed, after.audits, question.member)

    def _ask_opening(self, challenge: Challenge, question: Question, link: Link) -> OpeningArrived | None:
        """What the member opens; nothing, if it has not opened it within a round. The accuser may have it too."""
        x, key = self.context, get_key(challenge)
        known = self._openings.get(key)
        if isinstance(known, OpeningArrived):
            return known
        if known is None:
            self._openings[key] = x.height
            # what others have of it says nothing
            is_of_target = challenge.reason in (AuditReason.WITHHELD, AuditReason.PATHS)
            accuser = None if is_of_target else find_member(x.state, challenge.verifier)
            keys = tuple(x.get_key(member) for member in (question.member, accuser) if member is not None)
            limit = x.state_since + x.round_limit_s
            x.do(AskOpening(x.epoch, challenge.height, question.member, keys, link, limit))
        elif x.height > known:
            return OpeningArrived(x.epoch, challenge.height, question.member, ZERO32)
        return None

    def on_opening(self, event: OpeningArrived) -> None:
        for _, challenge in self._find_open():
            member = find_member(self.context.state, challenge.target)
            is_meant = (event.epoch, event.height, event.member) == (challenge.epoch, challenge.height, member)
            if is_meant and isinstance(self._openings.get(get_key(challenge)), int):
                self._openings[get_key(challenge)] = event

    def _take(self, challenge: Challenge, question: Question, answer: Answer | None) -> None:
        guilty = None if answer is None else self._judge(challenge, question, answer)
        self._conclude(challenge, question, guilty, answer)

    def _conclude(
        self, challenge: Challenge, question: Question, guilty: bool | None, answer: Answer | None = None
    ) -> None:
        """Come to a verdict; who computes otherwise than others has none, and judges nobody that left for it (V6)."""
        distance = -1.0
        if answer is not None:
            is_whole = challenge.reason >= AuditReason.SIGNS
            distance = answer.link_distance if is_whole else compute_distance(question.claim, answer.values)
        tolerances = self.tolerances
        if self.context.member in tolerances.odd or tolerances.excuses(question.result.header):
            guilty = None
        elif answer is not None or guilty is not None:
            keep_evidence(self.context, tolerances, Charge(question, challenge.reason, answer))
        self._verdicts[get_key(challenge)] = guilty
        self.context.log(
            types.Judged(
                height=challenge.height, target=question.member, piece=question.piece, reason=challenge.reason,
                distance=distance, guilty=guilty,
            )
        )  # fmt: skip

    def _judge(self, challenge: Challenge, question: Question, answer: Answer) -> bool | None:
        tolerance = self.tolerances.get(question.case.numeric_class, question.member)
        if challenge.reason >= AuditReason.SIGNS:
            return answer.judge_accused(tolerance)
        return judge_accused(challenge.reason, compute_distance(question.claim, answer.values), tolerance)
