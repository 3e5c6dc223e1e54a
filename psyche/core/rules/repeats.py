"""Repeats: a refused message that has already taken effect, exactly as sent, counts as a success (K3).

This covers a resend over TCP as well as a transaction that lands after its retry. `core.rules.apply.KINDS` assigns
these functions to kinds of messages; messages of other kinds are never repeats.
"""

from dataclasses import fields

from psyche.core.state.messages import (
    HealthCheck,
    Join,
    JudgeChallenge,
    NameCheckpoint,
    ReportAudit,
    ReportEquivocation,
    WarmupWitness,
    Withdraw,
    WitnessMessage,
)
from psyche.core.state.state import (
    Client,
    ClientFlag,
    ClientState,
    Coordinator,
    RunState,
    Slot,
    SlotState,
    WitnessRecord,
)
from psyche.core.state.timeline import get_round

# What a record keeps of a witness's message; metadata is never stored.
RECORDED = tuple(field.name for field in fields(WitnessRecord))


def is_joined(state: Coordinator, sender: bytes, message: Join) -> bool:
    slots = state.registry.slots
    return any(s.signer == sender and s.p2p == message.p2p and _is_waiting(state, s) for s in slots)


def is_withdrawn(state: Coordinator, sender: bytes, message: Withdraw) -> bool:
    """Whether the sender has left the epoch, the epoch is over, or the sender's join is taken back."""
    if message.epoch < state.progress.epoch or state.halted:
        return True
    if state.run_state is RunState.WAITING_FOR_MEMBERS:
        return not any(sender in (s.signer, s.p2p) and _is_waiting(state, s) for s in state.registry.slots)
    client = _get_member(state, message.epoch, message.member, sender)
    return client is not None and client.state is not ClientState.HEALTHY


def is_warm(state: Coordinator, sender: bytes, message: WarmupWitness) -> bool:
    """Whether the record says that this member is ready with this digest (S8)."""
    client = _get_member(state, message.epoch, message.member, sender)
    if client is None or not client.flags & ClientFlag.READY:
        return False
    candidates = state.epoch.start_candidates
    if not candidates:
        return message.digest == state.certified.digest
    low, high = (bool(client.flags & flag) for flag in (ClientFlag.CANDIDATE_LOW, ClientFlag.CANDIDATE_HIGH))
    number = low + 2 * high
    return number < len(candidates) and message.digest == candidates[number].digest


def is_witnessed(state: Coordinator, sender: bytes, message: WitnessMessage) -> bool:
    found = get_round(state, message.height)
    if _get_member(state, message.epoch, message.member, sender) is None or found is None:
        return False
    return any(all(getattr(record, n) == getattr(message, n) for n in RECORDED) for record in found.witnesses)


def is_accused(state: Coordinator, sender: bytes, message: HealthCheck) -> bool:  # noqa: ARG001 - whoever accuses
    """Whether the accusation made in round `message.height` is counted already (H4)."""
    found = _is_member(state, message.epoch, message.member)
    return found and 0 < message.height == state.clients[message.member].witness_checked_height


def is_audited(state: Coordinator, sender: bytes, message: ReportAudit) -> bool:
    """Whether the record has what this verifier found (V9)."""
    found = get_round(state, message.height)
    if _get_member(state, message.epoch, message.member, sender) is None or found is None:
        return False
    said = (message.member, message.target, message.reason, message.piece, message.commitment)
    return any((a.verifier, a.target, a.reason, a.piece, a.commit) == said for a in found.audits)


def is_judged(state: Coordinator, sender: bytes, message: JudgeChallenge) -> bool:
    """Whether this juror's vote is counted; who has voted cannot vote otherwise (V12)."""
    known = _get_member(state, message.epoch, message.member, sender) is not None
    return known and bool(state.challenges[message.challenge].voters >> message.member & 1)


def is_named(state: Coordinator, sender: bytes, message: NameCheckpoint) -> bool:  # noqa: ARG001 - whoever names it
    sources = [state.model.checkpoint, *state.model.extra_checkpoints]
    return state.checkpoint.digest == message.digest and message.source in sources


def is_ejected(state: Coordinator, sender: bytes, message: ReportEquivocation) -> bool:  # noqa: ARG001 - whoever reports
    found = _is_member(state, message.epoch, message.member)
    return found and state.clients[message.member].state is ClientState.EJECTED


def _is_member(state: Coordinator, epoch: int, member: int) -> bool:
    return epoch == state.progress.epoch and member < len(state.clients)


def _get_member(state: Coordinator, epoch: int, member: int, sender: bytes) -> Client | None:
    """The member, if `epoch` is the running epoch and `sender` is one of the member's keys; otherwise None."""
    if not _is_member(state, epoch, member):
        return None
    client = state.clients[member]
    return client if sender in (client.signer, client.p2p) else None


def _is_waiting(state: Coordinator, slot: Slot) -> bool:
    """Whether the slot has a join for the next formation or a later one."""
    return slot.state is SlotState.JOINED and slot.active >= state.registry.next_active
