"""Look-ups of members and slots by index, state and key (M1)."""

from typing import Final

from psyche.core.state.errors import UnknownMember, WrongRound
from psyche.core.state.state import (
    ChallengeState,
    Client,
    ClientFlag,
    ClientState,
    Coordinator,
    RunState,
    Slot,
    SlotState,
)

_IN_EPOCH: Final = frozenset({RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.COOLDOWN})


def is_in_epoch(state: Coordinator) -> bool:
    """Whether an epoch is running; otherwise `clients` are the members of the last one."""
    return state.run_state in _IN_EPOCH


def get_healthy(state: Coordinator) -> int:
    """Bitmap of the Healthy members: those that still take part."""
    bits = 0
    for member, client in enumerate(state.clients):
        bits |= int(client.state is ClientState.HEALTHY) << member
    return bits


def get_electors(state: Coordinator, members: int) -> int:
    """Bitmap of those of the members (bitmap) that are not on probation; of all of them if all are (M10)."""
    on_probation = 0
    for member, client in enumerate(state.clients):
        on_probation |= bool(client.flags & ClientFlag.PROBATION) << member
    return members & ~on_probation or members


def get_drawn(state: Coordinator) -> int:
    """Bitmap of the members of the next round: those that were Healthy when its seed was armed (E1).

    The entropy may be public since then, and whoever leaves would otherwise choose among committees that it knows.
    """
    height, bits = state.current.height, 0
    for member, client in enumerate(state.clients):
        bits |= (client.state is ClientState.HEALTHY or client.exited_height > height) << member
    return bits


def compute_exit_height(state: Coordinator) -> int:
    """The last round that has a member which leaves now: the next one once its seed is armed (E1)."""
    return state.current.height + (state.run_state is RunState.ROUND_WITNESS)


def get_slot(state: Coordinator, client: Client) -> Slot:
    """The slot of a member of the running epoch; a slot is not freed before the epoch is over."""
    slot = state.registry.slots[client.slot]
    assert slot.signer == client.signer, "a member keeps its slot while its epoch runs"
    return slot


def is_expired(slot: Slot, now: int) -> bool:
    """Whether the slot's session key has expired (M2); `expires_unix` 0 sets no expiry."""
    return slot.expires_unix != 0 and now >= slot.expires_unix


def get_existing(state: Coordinator, member: int) -> Client:
    if not 0 <= member < len(state.clients):
        raise UnknownMember(f"member {member} does not exist: the epoch has {len(state.clients)}")
    return state.clients[member]


def check_epoch(state: Coordinator, epoch: int, what: str) -> None:
    if epoch != state.progress.epoch:
        raise WrongRound(f"{what} epoch {epoch}, but epoch {state.progress.epoch} is running", "T7")


def get_member(state: Coordinator, now: int, sender: bytes, member: int) -> Client:
    """The member that a message names, if the message is signed by one of its keys (M1).

    Raises:
        UnknownMember: the member does not exist, or `sender` is not one of its valid keys.
    """
    client = get_existing(state, member)
    if sender == client.signer:
        return client
    if sender != client.p2p or (is_in_epoch(state) and is_expired(get_slot(state, client), now)):
        raise UnknownMember(f"the message is not signed by a valid key of member {member}", "M1")
    return client


def find_slot(state: Coordinator, sender: bytes) -> int | None:
    """The number of the slot that holds this signer or p2p key; None if there is none or it was given up."""
    for number, slot in enumerate(state.registry.slots):
        if slot.state not in (SlotState.FREE, SlotState.LEFT) and sender in (slot.signer, slot.p2p):
            return number
    return None


def is_in_challenge(state: Coordinator, number: int) -> bool:
    """Whether an open challenge accuses this slot, or is its own accusation (V12)."""
    return any(one.state is ChallengeState.OPEN and number in (one.target, one.verifier) for one in state.challenges)


def find_member(state: Coordinator, number: int) -> int | None:
    """The index of the running epoch's member with this slot, in any state, since it may still earn; else None."""
    if not is_in_epoch(state):
        return None
    return next((member for member, client in enumerate(state.clients) if client.slot == number), None)
