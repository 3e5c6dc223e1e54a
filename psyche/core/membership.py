"""Joining and leaving: slots, departures and ejection (M1 to M6, R7)."""

from typing import Final

from psyche.core.errors import (
    Banned,
    ClientsFull,
    Halted,
    InvalidEvidence,
    InvalidJoin,
    InvalidWithdraw,
    NoActiveRound,
    StakeTooLow,
    UnknownMember,
    WrongRound,
)
from psyche.core.limits import HASH_BYTES, MAX_CLIENTS, U64_MAX
from psyche.core.readiness import process_ready_quorum, process_unready
from psyche.core.roster import find_slot, get_member, get_slot, is_in_epoch
from psyche.core.state import (
    ZERO32,
    Client,
    ClientState,
    Coordinator,
    RunState,
    Slot,
    SlotState,
)

_IDLE_EPOCHS: Final = 2  # `last_epoch` and a whole one after it


def process_join(state: Coordinator, now: int, join: Slot) -> tuple[int, bool]:
    """Give the signer a place in the next formation (M1 to M3, M5): (slot, whether anything changed).

    `join` carries signer, p2p, stake and expires_unix; the rest of it is not read.
    """
    number = check_join(state, join)
    slots, registry = state.registry.slots, state.registry
    known = slots[number] if number < len(slots) else Slot()
    before = _get_changeable(known)
    if known.state is SlotState.FREE:
        known = Slot(signer=join.signer, joined_unix=now)
        slots[number:number + 1] = [known]  # fmt: skip
    known.p2p, known.stake, known.expires_unix = join.p2p, join.stake, join.expires_unix
    known.state = SlotState.JOINED
    known.active = max(registry.next_active, known.until)  # H5: who has a strike waits
    known.last_epoch = state.progress.epoch
    return number, _get_changeable(known) != before


def _get_changeable(slot: Slot) -> tuple[bytes, int, int, int, SlotState, int]:
    return slot.p2p, slot.stake, slot.expires_unix, slot.active, slot.state, slot.last_epoch


def check_join(state: Coordinator, join: Slot) -> int:
    """The slot that a join goes to: its own, else the first free one, else a new one.

    Raises:
        Halted: the run has not begun or is over.
        InvalidJoin: a key is malformed, or another slot holds the p2p key (M1).
        Banned: the signer was ejected (M6).
        StakeTooLow: M5.
        ClientsFull: all slots are taken.
    """
    if state.run_state in (RunState.UNINITIALIZED, RunState.FINISHED):
        raise Halted(f"nobody can join a run that is {state.run_state.name}")
    for name, key in (("signer", join.signer), ("p2p", join.p2p)):
        if len(key) != HASH_BYTES or key == ZERO32:
            raise InvalidJoin(f"{name}: a key has {HASH_BYTES} bytes, not all zero (M1)")
    slots = state.registry.slots
    own = next((i for i, s in enumerate(slots) if s.state is not SlotState.FREE and s.signer == join.signer), None)
    if own is not None and slots[own].state is SlotState.BANNED:
        raise Banned("the signer was ejected from this run (M6)")
    if any(s.p2p == join.p2p and s.state is not SlotState.FREE and i != own for i, s in enumerate(slots)):
        raise InvalidJoin("another slot holds that p2p key (M1)")
    if join.stake < state.config.min_stake:
        raise StakeTooLow(f"stake {join.stake} is below min_stake {state.config.min_stake} (M5)")
    if own is not None:
        return own
    number = next((i for i, s in enumerate(slots) if s.state is SlotState.FREE), len(slots))
    if number >= MAX_CLIENTS:
        raise ClientsFull(f"all {MAX_CLIENTS} slots are taken (M4: an idle one can be reclaimed)")
    return number


def process_withdrawal(state: Coordinator, now: int, sender: bytes, epoch: int, member: int) -> None:
    """Leave the running epoch, or take a join back (M4).

    In WaitingForMembers the slot is found by its key and `member` is not read.

    Raises:
        Halted: paused, finished or not begun.
        WrongRound: the message names another epoch (T7).
        UnknownMember: not a valid key of that member, or of no slot.
        InvalidWithdraw: the member is not Healthy, or there is no join to take back.
    """
    if state.halted:
        raise Halted("there is nothing to withdraw from while the run is halted")
    if epoch != state.progress.epoch:
        raise WrongRound(f"withdrawal from epoch {epoch}, but epoch {state.progress.epoch} is on (T7)")
    if state.run_state is RunState.WAITING_FOR_MEMBERS:
        _process_join_taken_back(state, sender)
        return
    client = get_member(state, now, sender, member)
    if client.state is not ClientState.HEALTHY:
        raise InvalidWithdraw(f"member {member} is {client.state.name}, only a Healthy one can withdraw (M4)")
    process_departure(state, now, client, ClientState.WITHDRAWN)


def _process_join_taken_back(state: Coordinator, sender: bytes) -> None:
    number = find_slot(state, sender)
    if number is None:
        raise UnknownMember("the key holds no slot")
    slot = state.registry.slots[number]
    if slot.state is not SlotState.JOINED or slot.active < state.registry.next_active:
        raise InvalidWithdraw(f"slot {number} has no join to take back (M4)")
    slot.active = 0


def process_departure(state: Coordinator, now: int, client: Client, how: ClientState) -> None:
    """A Healthy member goes; in Warmup its join and its word on the weights go with it (M4, T8)."""
    client.state = how
    if state.run_state is not RunState.WARMUP:
        client.exited_height = state.current.height
        return
    get_slot(state, client).active = 0
    process_unready(state, client)
    process_ready_quorum(state, now)


def process_leave(state: Coordinator, now: int, signer: bytes) -> None:
    """Give the slot up for good: free at once if it holds no earnings and can earn none (M4).

    Raises:
        UnknownMember: no slot of that signer.
        Banned: an ejected signer's slot is never freed (M6).
        InvalidWithdraw: it is leaving already.
    """
    slots = state.registry.slots
    number = next((i for i, s in enumerate(slots) if s.state is not SlotState.FREE and s.signer == signer), None)
    if number is None:
        raise UnknownMember("the signer holds no slot")
    slot = slots[number]
    if slot.state is SlotState.BANNED:
        raise Banned("the signer was ejected from this run (M6)")
    if slot.state is SlotState.LEAVING:
        raise InvalidWithdraw(f"slot {number} is leaving already (M4)")
    slot.state, slot.active = SlotState.LEAVING, 0
    member = _find_member_of(state, number)
    if member is not None and member.state is ClientState.HEALTHY:
        process_departure(state, now, member, ClientState.WITHDRAWN)
    if member is None and not slot.earned:
        slots[number] = Slot()


def _find_member_of(state: Coordinator, number: int) -> Client | None:
    """The member of the running epoch that has this slot: it may still earn."""
    return next((c for c in state.clients if c.slot == number), None) if is_in_epoch(state) else None


def find_reclaimable(state: Coordinator) -> int | None:
    """The slot that has been idle longest, for a whole epoch at least; neither banned nor waiting (M4)."""
    registry = state.registry
    idle = [
        (slot.last_epoch, number)
        for number, slot in enumerate(registry.slots)
        if slot.state in (SlotState.JOINED, SlotState.LEAVING)
        and slot.active < registry.next_active
        and slot.last_epoch + _IDLE_EPOCHS <= state.progress.epoch
    ]
    return min(idle)[1] if idle else None


def process_ejection(state: Coordinator, epoch: int, height: int, member: int) -> None:
    """Equivocation ejects: slot banned, stake slashed, credits lost; decided sets stay as they are (R7, M6).

    Raises:
        Halted: the run is halted.
        WrongRound: another epoch, or a round that has not begun (T7).
        NoActiveRound: no round of this epoch has begun.
        UnknownMember: no such member.
        InvalidEvidence: it is ejected already.
    """
    client = _check_evidence(state, epoch, height, member)
    slot = get_slot(state, client)
    if client.state is ClientState.HEALTHY:
        client.exited_height = state.current.height
    client.state = ClientState.EJECTED
    state.epoch.credit_total -= client.credits
    client.credits = 0
    slot.state, slot.active = SlotState.BANNED, 0
    slot.slashed, slot.stake = min(slot.slashed + slot.stake, U64_MAX), 0


def _check_evidence(state: Coordinator, epoch: int, height: int, member: int) -> Client:
    if state.halted:
        raise Halted("evidence counts only while the epoch it is from is on")
    if epoch != state.progress.epoch:
        raise WrongRound(f"evidence from epoch {epoch}, but epoch {state.progress.epoch} is on (T7)")
    if not state.in_round and state.run_state is not RunState.COOLDOWN:
        raise NoActiveRound("no round of this epoch has begun")
    if not 0 <= height <= state.current.height:
        raise WrongRound(f"evidence of round {height}, but only round {state.current.height} is reached (T7)")
    if not 0 <= member < len(state.clients):
        raise UnknownMember(f"member {member} does not exist: the epoch has {len(state.clients)}")
    client = state.clients[member]
    if client.state is ClientState.EJECTED:
        raise InvalidEvidence(f"member {member} is ejected already (R7)")
    return client


def process_vacancies(state: Coordinator) -> None:
    """The epoch is over: who left for good frees its slot, unless earnings wait for a claim (M4)."""
    for number, slot in enumerate(state.registry.slots):
        if slot.state is SlotState.LEAVING and not slot.earned:
            state.registry.slots[number] = Slot()
