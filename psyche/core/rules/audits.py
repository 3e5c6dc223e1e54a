"""Audits on record, challenges and their juries (V9, V12, V14, V15).

A verifier names the first member whose work it doubts. Where the run convicts, that opens a challenge, and the
witnesses of a later round judge it: a seed draws them that nobody knew when the accusation was made.
"""

from typing import Final

from psyche.core.committee.elections import compute_quorum, get_verifiers, get_witnesses
from psyche.core.rules.health import process_drop, process_strike
from psyche.core.rules.membership import process_expulsion
from psyche.core.state.errors import (
    DuplicateWitness,
    Halted,
    InvalidAudit,
    InvalidJudgement,
    InvalidRunState,
    WrongRound,
)
from psyche.core.state.limits import FALSE_CHALLENGE_LIMIT, NOBODY, STORED_ROUNDS, U8_MAX, U32_MAX
from psyche.core.state.messages import Context, JudgeChallenge, ReportAudit
from psyche.core.state.roster import find_member, get_member
from psyche.core.state.state import (
    ZERO32,
    Audit,
    AuditReason,
    AuditStatus,
    Challenge,
    ChallengeState,
    ClientState,
    Coordinator,
    Round,
    SlotState,
)
from psyche.core.state.timeline import get_round

JUDGED_AFTER_ROUNDS: Final = 3  # the audited round's jury are the witnesses of this later round
DOUBTED_ROUNDS: Final = 6  # a challenge that decided nothing is kept so long,
MOST_BUSY: Final = 4  # if no more entries than these are in use
REARMED_HEIGHT: Final = 1  # until the close of which the jury of a new epoch's first round judges
_REASONS: Final = frozenset(int(reason) for reason in AuditReason)


def process_audit(state: Coordinator, context: Context, message: ReportAudit) -> bool:
    """Put what a verifier found on record; open a challenge if it accuses somebody (V9, V12)."""
    round_ = check_audit(state, context, message)
    opened = message.reason > AuditReason.UNCLEAR and _process_challenge(state, message)
    named = AuditStatus.DOUBTED if message.target != NOBODY else AuditStatus.PASSED
    status = AuditStatus.CHALLENGED if opened else named
    reason, commitment = AuditReason(message.reason), message.commitment
    round_.audits.append(Audit(message.member, message.target, status, reason, message.piece, commitment))
    return True


def check_audit(state: Coordinator, context: Context, message: ReportAudit) -> Round:
    """Check a verifier's finding; return the round in which it was elected."""
    height = message.height
    _check_running(state)
    found = get_round(state, height)
    if message.epoch != state.progress.epoch or found is None or state.current.height not in (height, height + 1):
        raise WrongRound(f"audit in round ({message.epoch}, {height}): that round has passed or has not begun", "T7")
    client = get_member(state, context.now, context.sender, message.member)
    if client.state is not ClientState.HEALTHY or message.member not in get_verifiers(found, state.config):
        raise InvalidAudit(f"member {message.member} is no verifier of round {height}, or not Healthy", "V9")
    if any(audit.verifier == message.member for audit in found.audits):
        raise DuplicateWitness(f"member {message.member} has already reported its audits of round {height}", "V9, K3")
    audited = get_round(state, height - 1) if height else None
    if audited is None:
        raise InvalidAudit("there is no round before the verifier's", "V9")
    if problem := _find_slip(message, audited):
        raise InvalidAudit(problem, "V9")
    return found


def _check_running(state: Coordinator) -> None:
    if state.halted:
        raise Halted("no round is running: the run is halted")
    if not state.in_round:
        raise InvalidRunState(f"audits belong to rounds, not to {state.run_state.name}", "V9")


def _find_slip(message: ReportAudit, audited: Round) -> str:
    """The rule that the message's fields break; empty if they break none."""
    if message.commitment == ZERO32 or message.reason not in _REASONS:
        return "commitment: is zero, or reason: is unknown"
    if message.target == NOBODY:
        clean = message.piece == NOBODY and message.reason == AuditReason.NONE
        return "" if clean else "target: is nobody, but there is a piece or a reason"
    if message.target == message.member or not audited.members >> message.target & 1:
        return f"target: member {message.target} is the verifier itself, or was not in the audited round"
    return "" if message.reason != AuditReason.NONE else "reason: is none, but a member is named"


def _process_challenge(state: Coordinator, message: ReportAudit) -> bool:
    """Open a challenge; return whether there is one. If not, the target stays first in the next lists (V7)."""
    entry = find_entry(state, message.member, message.target)
    if entry is None:
        return False
    audited = message.height - 1
    state.challenges[entry] = Challenge(
        target_commitment=message.commitment,
        height=audited,
        opened_height=state.current.height,
        deadline_height=min(audited + JUDGED_AFTER_ROUNDS + 1, U32_MAX),
        verifier=state.clients[message.member].slot,
        target=state.clients[message.target].slot,
        state=ChallengeState.OPEN,
        reason=AuditReason(message.reason),
        epoch=message.epoch,
        piece=message.piece,
    )
    return True


def find_entry(state: Coordinator, verifier: int, named: int) -> int | None:
    """The entry in which a member's accusation of another opens a challenge now (V12).

    There is none in a run that only shows, and while the accuser has one open, the target is accused already or
    banned, or the table is full.
    """
    accuser, target = (state.clients[member].slot for member in (verifier, named))
    is_banned = state.registry.slots[target].state is SlotState.BANNED
    if not state.config.convict or is_banned or _is_busy(state, accuser, target):
        return None
    return next((number for number, one in enumerate(state.challenges) if one.state is ChallengeState.FREE), None)


def _is_busy(state: Coordinator, accuser: int, target: int) -> bool:
    challenges = [one for one in state.challenges if one.state is ChallengeState.OPEN]
    return any(one.verifier == accuser or one.target == target for one in challenges)


def process_judgement(state: Coordinator, context: Context, message: JudgeChallenge) -> bool:
    """Count a juror's vote; the quorum of the jury decides (V12)."""
    jury = check_judgement(state, context, message)
    challenge = state.challenges[message.challenge]
    challenge.voters |= 1 << message.member
    challenge.guilty += message.guilty
    challenge.innocent += 1 - message.guilty
    quorum = compute_quorum(len(jury))
    if challenge.guilty >= quorum:
        _process_conviction(state, challenge)
        state.challenges[message.challenge] = Challenge()
    elif challenge.innocent >= quorum:
        _process_acquittal(state, challenge)
        state.challenges[message.challenge] = Challenge()
    return True


def check_judgement(state: Coordinator, context: Context, message: JudgeChallenge) -> list[int]:
    """Check a juror's vote; return the jury: the elected witnesses without target and accuser."""
    _check_running(state)
    running = state.current.height
    if (message.epoch, message.height) != (state.progress.epoch, running):
        raise WrongRound(f"vote in round ({message.epoch}, {message.height}): it has passed or has not begun", "T7")
    client = get_member(state, context.now, context.sender, message.member)
    challenge = state.challenges[message.challenge]
    jury = find_jury(state, challenge)
    if jury is None:
        raise InvalidJudgement(f"challenge {message.challenge} is not open, or its jury does not judge now", "V12")
    if client.state is not ClientState.HEALTHY or message.member not in jury:
        elected = challenge.deadline_height - 1
        raise InvalidJudgement(f"member {message.member} is not in the jury of round {elected}, or not Healthy", "V12")
    if challenge.voters >> message.member & 1:
        raise DuplicateWitness(f"member {message.member} has already judged challenge {message.challenge}", "V12, K3")
    return jury


def find_jury(state: Coordinator, challenge: Challenge) -> list[int] | None:
    """Who judges a challenge in the running round; None if it is not open, or not judged now (V12)."""
    elected = challenge.deadline_height - 1
    is_due = challenge.state is ChallengeState.OPEN and state.current.height in (elected, elected + 1)
    round_ = get_round(state, elected) if is_due else None
    return None if round_ is None else get_jury(state, round_, challenge)


def get_jury(state: Coordinator, round_: Round, challenge: Challenge) -> list[int]:
    """The witnesses of a round without the challenge's target and accuser (V12)."""
    parties = {challenge.target, challenge.verifier}
    return [member for member in get_witnesses(round_) if state.clients[member].slot not in parties]


def _process_conviction(state: Coordinator, challenge: Challenge) -> None:
    """Eject the target; whoever withheld what it owed is dropped with a strike, for silence."""
    if challenge.reason is not AuditReason.WITHHELD:
        process_expulsion(state, challenge.target)
        return
    member = find_member(state, challenge.target)
    if member is not None and state.clients[member].state is ClientState.HEALTHY:
        process_drop(state, member, strike=True)
    else:
        process_strike(state.registry.slots[challenge.target], state.registry.next_active)


def _process_acquittal(state: Coordinator, challenge: Challenge) -> None:
    """Count a false accusation; the second one of a run ejects the accuser."""
    slot = state.registry.slots[challenge.verifier]
    slot.false_challenges = min(slot.false_challenges + 1, U8_MAX)
    if slot.false_challenges >= FALSE_CHALLENGE_LIMIT:
        process_expulsion(state, challenge.verifier)


def process_deadlines(state: Coordinator) -> None:
    """At close: what no quorum decided in time decides nothing (V12).

    It is kept for a while as a doubt, unless others need its entry.
    """
    height = state.current.height
    is_kept = sum(one.state is not ChallengeState.FREE for one in state.challenges) <= MOST_BUSY
    for number, challenge in enumerate(state.challenges):
        if challenge.state is ChallengeState.FREE or height < challenge.deadline_height:
            continue
        if challenge.state is ChallengeState.OPEN and is_kept:
            challenge.state, challenge.deadline_height = ChallengeState.UNDECIDED, min(height + DOUBTED_ROUNDS, U32_MAX)
        else:
            state.challenges[number] = Challenge()


def process_adjournment(state: Coordinator) -> None:
    """At the start of Cooldown: an open challenge costs its target a credit, and goes on in the next epoch (V15)."""
    for number, challenge in enumerate(state.challenges):
        if challenge.state is ChallengeState.UNDECIDED:
            state.challenges[number] = Challenge()
        elif challenge.state is ChallengeState.OPEN:
            if challenge.epoch == state.progress.epoch:
                _process_lost_credit(state, challenge.target)
            # members have other numbers in the next epoch, and its first jury is drawn by a seed that nobody knows
            challenge.deadline_height = REARMED_HEIGHT
            challenge.voters = challenge.guilty = challenge.innocent = 0


def _process_lost_credit(state: Coordinator, number: int) -> None:
    member = find_member(state, number)
    if member is not None and state.clients[member].credits:
        state.clients[member].credits -= 1
        state.epoch.credit_total -= 1


def get_doubted(state: Coordinator, height: int) -> list[int]:
    """The members that are first in the list of the running round, or of the one before it (V7).

    They were named two rounds before, and no challenge was opened, or theirs decided nothing in the last four rounds.
    Nothing that this looks at changes while the list is used.
    """
    before = get_round(state, height - 2) if height >= 2 else None
    named = [a.target for a in before.audits if a.status is AuditStatus.DOUBTED] if before is not None else []
    for challenge in state.challenges:
        ended = challenge.deadline_height - DOUBTED_ROUNDS
        if challenge.state is ChallengeState.UNDECIDED and ended < height <= ended + STORED_ROUNDS:
            member = find_member(state, challenge.target)
            named += [] if member is None else [member]
    return sorted(set(named))
