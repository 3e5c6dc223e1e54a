"""What two states of the record say about challenges between them, as events; and what members are accused of."""

from collections.abc import Iterator
from typing import Final

from psyche.core.committee.elections import compute_quorum
from psyche.core.rules.audits import get_jury
from psyche.core.state.state import AuditReason, Challenge, ChallengeState, Coordinator, SlotState
from psyche.core.state.timeline import get_round
from psyche.telemetry import types

ACCUSATIONS: Final = {
    AuditReason.NONE: "nothing",
    AuditReason.UNCLEAR: "a piece of its work is neither right nor clearly wrong",
    AuditReason.GRADIENT: "a piece of its work is not the gradient of its samples",
    AuditReason.REPEATED: "pieces of its work are unclear too often",
    AuditReason.SIGNS: "what it sent does not agree with its gradient",
    AuditReason.WITHHELD: "it did not open what it had committed to",
    AuditReason.PATHS: "what it opened is not what it had committed to",
    AuditReason.MOMENTUM: "its momentum is not that of its result before",
    AuditReason.SELECTION: "what it sent is not the largest part of its momentum",
    AuditReason.LINK: "its momentum grew by something else than its gradient",
}
UNDECIDED: Final = "no quorum of the jury decided in time"
ChallengeKey = tuple[int, int, int, bytes]  # epoch, height, slot and commitment of the accused work


def find_challenges(before: Coordinator, after: Coordinator) -> Iterator[types.Challenged | types.ChallengeEnded]:
    """The challenges opened and ended from one state to the other."""
    was, now = get_open_challenges(before), get_open_challenges(after)
    for key in now.keys() - was.keys():
        one = now[key]
        yield types.Challenged(
            epoch=one.epoch, height=one.height, target=_name(after, one.target), accuser=_name(after, one.verifier),
            piece=one.piece, reason=one.reason,
        )  # fmt: skip
    for key in was.keys() - now.keys():
        one = was[key]
        is_guilty, outcome = _find_end(before, after, one)
        guilty, innocent = _count_votes(before, after, one, is_guilty)
        yield types.ChallengeEnded(
            epoch=one.epoch, height=one.height, target=_name(before, one.target), accuser=_name(before, one.verifier),
            reason=one.reason, guilty=guilty, innocent=innocent, outcome=outcome,
        )  # fmt: skip


def get_open_challenges(state: Coordinator) -> dict[ChallengeKey, Challenge]:
    opened = [one for one in state.challenges if one.state is ChallengeState.OPEN]
    return {get_key(one): one for one in opened}


def get_key(one: Challenge) -> ChallengeKey:
    return one.epoch, one.height, one.target, one.target_commitment


def _find_end(before: Coordinator, after: Coordinator, one: Challenge) -> tuple[bool | None, str]:
    """Whether the target is guilty, None if nobody has decided that; and how the challenge has ended, in words."""
    if any(other.state is ChallengeState.UNDECIDED and get_key(other) == get_key(one) for other in after.challenges):
        return None, UNDECIDED  # whoever is put out is so for something else
    was, now = before.registry.slots, after.registry.slots
    if now[one.target].state is SlotState.BANNED:
        return True, f"put out: {ACCUSATIONS[one.reason]}"
    if now[one.verifier].false_challenges > was[one.verifier].false_challenges:
        is_out = now[one.verifier].state is SlotState.BANNED
        end = ", and the accuser is put out for" if is_out else ": the accuser is put out if it makes more"
        return False, f"not guilty{end} false accusations"
    if one.reason is AuditReason.WITHHELD and now[one.target].strikes > was[one.target].strikes:
        return True, f"dropped with a strike: {ACCUSATIONS[one.reason]}"
    return None, UNDECIDED


def _count_votes(before: Coordinator, after: Coordinator, one: Challenge, is_guilty: bool | None) -> tuple[int, int]:
    """The votes guilty and innocent; the entry is gone with the vote that decides, which is the quorum's last."""
    if is_guilty is None:
        return one.guilty, one.innocent
    elected = one.deadline_height - 1
    round_ = get_round(after, elected) or get_round(before, elected)
    votes = one.guilty if is_guilty else one.innocent
    quorum = votes + 1 if round_ is None else compute_quorum(len(get_jury(before, round_, one)))
    return (quorum, one.innocent) if is_guilty else (one.guilty, quorum)


def _name(state: Coordinator, slot: int) -> str:
    return state.registry.slots[slot].p2p.hex()[:16]
