"""Whether a request that was refused had taken effect before, exactly as sent: then a repeat is a success (K3).

The same rules serve a resend over TCP and a transaction that lands after its retry.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from psyche.core.state import messages as msg
from psyche.core.state.messages import Message, WitnessMessage
from psyche.core.state.state import (
    Checkpoint,
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


def get_member(state: Coordinator, epoch: int, member: int, sender: bytes) -> Client | None:
    """Member `member` of the running epoch if `epoch` is that and `sender` is one of its keys."""
    if epoch != state.progress.epoch or member >= len(state.clients):
        return None
    client = state.clients[member]
    return client if sender in (client.signer, client.p2p) else None


def is_joined(state: Coordinator, signer: bytes, p2p: bytes) -> bool:
    """Whether this signer has joined with this key for the epoch to come."""
    return any(
        slot.signer == signer
        and slot.p2p == p2p
        and slot.state is SlotState.JOINED
        and slot.active >= state.registry.next_active
        for slot in state.registry.slots
    )


def is_warm(state: Coordinator, sender: bytes, epoch: int, member: int, digest: bytes) -> bool:
    """Whether this member is on record as ready with this digest (S8)."""
    client = get_member(state, epoch, member, sender)
    if client is None or not client.flags & ClientFlag.READY:
        return False
    candidates = state.epoch.start_candidates
    if not candidates:
        return digest == state.certified.digest
    low, high = (bool(client.flags & flag) for flag in (ClientFlag.CANDIDATE_LOW, ClientFlag.CANDIDATE_HIGH))
    number = low + 2 * high
    return number < len(candidates) and digest == candidates[number].digest


def is_witnessed(state: Coordinator, sender: bytes, message: WitnessMessage) -> bool:
    """Whether this very record of this member stands in its round."""
    found = get_round(state, message.height)
    if get_member(state, message.epoch, message.member, sender) is None or found is None:
        return False
    return any(_is_record_of(record, message) for record in found.witnesses)


def _is_record_of(record: WitnessRecord, message: WitnessMessage) -> bool:
    plain = replace(message, metadata=b"")  # never stored
    names = ("member", "flags", "at_s", "held", "heard", "missing", "broadcast_bloom", "results_root", "state_digest")
    return all(getattr(record, name) == getattr(plain, name) for name in names)


def is_withdrawn(state: Coordinator, sender: bytes, epoch: int, member: int) -> bool:
    """Whether the sender has left this epoch, or the epoch is over; or has no join that formation would take."""
    if epoch < state.progress.epoch or state.halted:
        return True
    if state.run_state is RunState.WAITING_FOR_MEMBERS:
        return not any(is_joined(state, slot.signer, slot.p2p) for slot in _get_slots(state, sender))
    client = get_member(state, epoch, member, sender)
    return client is not None and client.state is not ClientState.HEALTHY


def _get_slots(state: Coordinator, sender: bytes) -> list[Slot]:
    return [slot for slot in state.registry.slots if sender in (slot.signer, slot.p2p)]


def is_accused(state: Coordinator, epoch: int, height: int, member: int) -> bool:
    """Whether the accusation made in round `height` is counted already (H4)."""
    found = epoch == state.progress.epoch and member < len(state.clients)
    return found and height > 0 and state.clients[member].witness_checked_height == height


def is_ejected(state: Coordinator, epoch: int, member: int) -> bool:
    """Whether the member was ejected already."""
    found = epoch == state.progress.epoch and member < len(state.clients)
    return found and state.clients[member].state is ClientState.EJECTED


def is_source(state: Coordinator, digest: bytes, source: Checkpoint) -> bool:
    """Whether the source stands among those of the checkpoint with this digest."""
    sources = [state.model.checkpoint, *state.model.extra_checkpoints]
    return state.checkpoint.digest == digest and source in sources


_Rule = Callable[[Coordinator, bytes, Any], bool]
_RULES: Final[dict[type[Message], _Rule]] = {
    msg.Join: lambda state, sender, m: is_joined(state, sender, m.p2p),
    msg.Withdraw: lambda state, sender, m: is_withdrawn(state, sender, m.epoch, m.member),
    msg.WarmupWitness: lambda state, sender, m: is_warm(state, sender, m.epoch, m.member, m.digest),
    WitnessMessage: is_witnessed,
    msg.HealthCheck: lambda state, _, m: is_accused(state, m.epoch, m.height, m.member),
    msg.NameCheckpoint: lambda state, _, m: is_source(state, m.digest, m.source),
    msg.ReportEquivocation: lambda state, _, m: is_ejected(state, m.epoch, m.member),
}


def is_on_record(state: Coordinator, sender: bytes, message: Message) -> bool:
    """Whether a message that was refused had taken effect before, exactly as sent; of other kinds none has."""
    rule = _RULES.get(type(message))
    return rule is not None and rule(state, sender, message)
