"""Joining and leaving: slots, departures and ejection (M1 to M6, R7)."""

from typing import Final

from psyche.core.rules.readiness import is_armed, process_ready_quorum, process_unready
from psyche.core.state.errors import (
    Banned,
    ClientsFull,
    Halted,
    InvalidCollection,
    InvalidEvidence,
    InvalidJoin,
    InvalidWithdraw,
    NoActiveRound,
    StakeTooLow,
    UnknownMember,
    WrongRound,
)
from psyche.core.state.limits import HASH_BYTES, MAX_CLIENTS, U64_MAX
from psyche.core.state.messages import Collect, Context, Join, LeaveRun, ReclaimSlot, ReportEquivocation, Withdraw
from psyche.core.state.roster import (
    check_epoch,
    compute_exit_height,
    find_member,
    find_slot,
    get_existing,
    get_member,
    get_slot,
    is_in_challenge,
)
from psyche.core.state.state import ZERO32, Client, ClientState, Coordinator, RunState, Slot, SlotState

_IDLE_EPOCHS: Final = 2  # `last_epoch` and one whole epoch after it
_EMPTY: Final = frozenset({SlotState.FREE, SlotState.LEFT})


def process_join(state: Coordinator, context: Context, message: Join) -> bool:
    """Give the sender a place in the next formation; return whether anything changed (M1 to M3, M5).

    The stake that counts is the one in the sender's slot; the message does not state it.
    """
    number = check_join(state, context.sender, message)
    slots, registry = state.registry.slots, state.registry
    known = slots[number] if number < len(slots) else Slot()
    before = _get_changeable(known)
    if known.signer != context.sender:
        known = Slot(signer=context.sender, joined_unix=context.now)
        slots[number:number + 1] = [known]  # fmt: skip
    known.p2p, known.expires_unix = message.p2p, message.expires_unix
    known.state = SlotState.JOINED
    known.active = max(registry.next_active, known.until)  # H5: a slot with a strike waits
    known.last_epoch = state.progress.epoch
    return _get_changeable(known) != before


def _get_changeable(slot: Slot) -> tuple[bytes, int, int, SlotState, int]:
    return slot.p2p, slot.expires_unix, slot.active, slot.state, slot.last_epoch


def check_join(state: Coordinator, signer: bytes, join: Join) -> int:
    """The number of the slot for a join: the signer's own, a free or new one, or one that its signer left (H5)."""
    if state.run_state in (RunState.UNINITIALIZED, RunState.FINISHED):
        raise Halted(f"nobody can join a run that is {state.run_state.name}")
    for name, key in (("signer", signer), ("p2p", join.p2p)):
        if len(key) != HASH_BYTES or key == ZERO32:
            raise InvalidJoin(f"{name}: a key has {HASH_BYTES} bytes, not all zero", "M1")
    if not 0 <= join.expires_unix <= U64_MAX:
        raise InvalidJoin(f"expires_unix: {join.expires_unix} does not fit 64 bits", "M2")
    slots = state.registry.slots
    own = next((i for i, s in enumerate(slots) if s.state is not SlotState.FREE and s.signer == signer), None)
    # M6: the ban is in the slot, all that the record has for a key; once that is reclaimed its signer may come again
    if own is not None and slots[own].state is SlotState.BANNED:
        raise Banned("the signer was ejected from this run", "M6")
    if any(s.p2p == join.p2p and s.state is not SlotState.FREE and i != own for i, s in enumerate(slots)):
        raise InvalidJoin("another slot holds that p2p key", "M1")
    stake = 0 if own is None else slots[own].stake
    if stake < state.config.min_stake:
        raise StakeTooLow(f"the slot's stake {stake} is below min_stake {state.config.min_stake}", "M5")
    if own is not None:
        return own
    number = _find_room(slots)
    if number is None:
        raise ClientsFull(f"all {MAX_CLIENTS} slots are taken; an idle one can be reclaimed", "M4")
    return number


def _find_room(slots: list[Slot]) -> int | None:
    """The slot for a new signer: a free one, or the LEFT one whose wait ends first, even if it is not over (H5)."""
    free = next((i for i, s in enumerate(slots) if s.state is SlotState.FREE), len(slots))
    if free < MAX_CLIENTS:
        return free
    left = [(s.until, i) for i, s in enumerate(slots) if s.state is SlotState.LEFT]
    return min(left)[1] if left else None


def process_withdrawal(state: Coordinator, context: Context, message: Withdraw) -> bool:
    """Leave the running epoch, or take a join back (M4).

    In WaitingForMembers the sender's key identifies the slot and `member` is ignored.
    """
    epoch, member = message.epoch, message.member
    if state.halted:
        raise Halted("there is nothing to withdraw from while the run is halted")
    check_epoch(state, epoch, "withdrawal from")
    if state.run_state is RunState.WAITING_FOR_MEMBERS:
        _process_join_taken_back(state, context.sender)
        return True
    client = get_member(state, context.now, context.sender, member)
    if client.state is not ClientState.HEALTHY:
        raise InvalidWithdraw(f"member {member} is {client.state.name}; only a Healthy member can withdraw", "M4")
    process_departure(state, context.now, client, ClientState.WITHDRAWN)
    return True


def _process_join_taken_back(state: Coordinator, sender: bytes) -> None:
    number = find_slot(state, sender)
    if number is None:
        raise UnknownMember("the key holds no slot")
    slot = state.registry.slots[number]
    if slot.state is not SlotState.JOINED or slot.active < state.registry.next_active:
        raise InvalidWithdraw(f"slot {number} has no join to take back", "M4")
    slot.active = 0


def process_departure(state: Coordinator, now: int, client: Client, how: ClientState) -> None:
    """Let a Healthy member leave; in Warmup this also takes back its join and its ready message (M4, T8).

    Once the start is armed, the ready message stays: the member is drawn like one that leaves after the start (E1).
    """
    client.state = how
    if state.run_state is not RunState.WARMUP:
        client.exited_height = compute_exit_height(state)
        return
    get_slot(state, client).active = 0
    # E1: the seed can be known once its slot is armed; a count that fell then would choose among draws
    if not is_armed(state):
        process_unready(state, client)
        process_ready_quorum(state, now)


def process_leave(state: Coordinator, context: Context, message: LeaveRun) -> bool:  # noqa: ARG001
    """Give up the sender's slot; it is freed at once if it holds no earnings and can earn none (M4).

    Strikes stay on record (H5).
    """
    slots = state.registry.slots
    number = _find_held(slots, context.sender)
    if number is None:
        raise UnknownMember("the signer holds no slot")
    slot = slots[number]
    if slot.state is SlotState.BANNED:
        raise Banned("the signer was ejected from this run", "M6")
    if slot.state is SlotState.LEAVING:
        raise InvalidWithdraw(f"slot {number} is leaving already", "M4")
    slot.state, slot.active = SlotState.LEAVING, 0
    member = find_member(state, number)
    if member is not None and state.clients[member].state is ClientState.HEALTHY:
        process_departure(state, context.now, state.clients[member], ClientState.WITHDRAWN)
    # a member of the running epoch can still earn, so its slot is freed when that is settled (`process_vacancies`)
    if member is None and not slot.earned:
        process_vacancy(state, number)
    return True


def _find_held(slots: list[Slot], signer: bytes) -> int | None:
    """The number of the slot that this signer holds; it may be banned or leaving."""
    return next((i for i, s in enumerate(slots) if s.state not in _EMPTY and s.signer == signer), None)


def process_vacancy(state: Coordinator, number: int) -> None:
    """Free a slot; if its signer has strikes or waits, keep them on record (H5, M10).

    Otherwise a signer could leave and join again to escape its wait. A slot that accuses or is accused stays until
    the jury has judged (V12).
    """
    if is_in_challenge(state, number):
        return
    slot = state.registry.slots[number]
    has_waits = slot.strikes or slot.until or slot.fruitless or slot.false_challenges
    state.registry.slots[number] = build_left(slot) if has_waits else Slot()


def build_left(slot: Slot) -> Slot:
    """What remains of a slot after its signer left with strikes or on probation (H5, M10)."""
    return Slot(
        signer=slot.signer,
        state=SlotState.LEFT,
        strikes=slot.strikes,
        until=slot.until,
        proven=slot.proven,
        fruitless=slot.fruitless,
        false_challenges=slot.false_challenges,
    )


def process_collection(state: Coordinator, context: Context, message: Collect) -> bool:  # noqa: ARG001
    """Take the earnings of all claims out of the record, or none; return whether any were taken (M11).

    This works in every state of the run and for banned slots too. A leaving slot without earnings is freed.
    """
    if len({signer for signer, _ in message.claims}) < len(message.claims):
        # all claims are checked before the first one takes effect
        raise InvalidCollection("a signer is named twice", "M11")
    for signer, amount in message.claims:
        _check_collection(state, signer, amount)
    taken = [_process_claim(state, signer, amount) for signer, amount in message.claims]
    return any(taken)


def _process_claim(state: Coordinator, signer: bytes, amount: int | None) -> bool:
    number = _check_collection(state, signer, amount)
    slot = state.registry.slots[number]
    taken = slot.earned if amount is None else amount
    slot.earned -= taken
    if taken and not slot.earned and slot.state is SlotState.LEAVING and find_member(state, number) is None:
        process_vacancy(state, number)
    return taken > 0


def _check_collection(state: Coordinator, signer: bytes, amount: int | None) -> int:
    slots = state.registry.slots
    number = _find_held(slots, signer)
    if number is None:
        raise UnknownMember("the signer holds no slot, so nothing was earned")
    earned = slots[number].earned
    if amount is not None and not 1 <= amount <= earned:
        raise InvalidCollection(f"{amount} cannot be collected: slot {number} has earnings of {earned}", "M11")
    return number


def process_reclaim(state: Coordinator, context: Context, message: ReclaimSlot) -> bool:  # noqa: ARG001
    """Free the slot that has been idle longest, at least a whole epoch; return whether there was one (M4)."""
    number = find_reclaimable(state)
    if number is None:
        return False
    # nothing of it stays, unlike of a slot that is given up; asked for only where a newcomer finds no free slot
    state.registry.slots[number] = Slot()
    return True


def find_reclaimable(state: Coordinator) -> int | None:
    """The slot that has been idle longest, at least a whole epoch, and is not joined (M4).

    Slots that never had a credit come first, then banned ones (M6), then proven ones (M10). Among each, slots that
    wait because of strikes come last (H5).
    """
    registry = state.registry
    idle = [
        (_get_worth(slot), slot.strikes > 0 and slot.until > registry.next_active, slot.last_epoch, number)
        for number, slot in enumerate(registry.slots)
        if slot.state not in _EMPTY
        and slot.active < registry.next_active
        and slot.last_epoch + _IDLE_EPOCHS <= state.progress.epoch
        and not slot.earned  # M11
        and not is_in_challenge(state, number)
    ]
    return min(idle)[-1] if idle else None


def _get_worth(slot: Slot) -> int:
    """How late a slot is reclaimed: bans neither keep newcomers out for good nor cost a proven member its slot (M6)."""
    return 1 if slot.state is SlotState.BANNED else 2 * slot.proven


def process_ejection(state: Coordinator, context: Context, message: ReportEquivocation) -> bool:  # noqa: ARG001
    """Eject a member for equivocation: its slot is banned, its stake slashed, its credits are lost (R7, M6).

    Sets that are decided already do not change.
    """
    client = _check_evidence(state, message.epoch, message.height, message.member)
    process_expulsion(state, client.slot)
    return True


def process_expulsion(state: Coordinator, number: int) -> None:
    """Ban a slot and slash its stake; its member of the running epoch is Ejected and loses its credits (M6)."""
    slot, member = state.registry.slots[number], find_member(state, number)
    if member is not None:
        client = state.clients[member]
        if client.state is ClientState.HEALTHY:
            client.exited_height = compute_exit_height(state)
        client.state = ClientState.EJECTED
        # what the sets decided stands: others have applied the results, only what they earn is lost
        state.epoch.credit_total -= client.credits
        client.credits = 0
    slot.state, slot.active = SlotState.BANNED, 0
    slot.slashed, slot.stake = min(slot.slashed + slot.stake, U64_MAX), 0


def _check_evidence(state: Coordinator, epoch: int, height: int, member: int) -> Client:
    if state.halted:
        raise Halted("evidence counts only while its epoch is running")
    check_epoch(state, epoch, "evidence from")
    if not state.in_round and state.run_state is not RunState.COOLDOWN:
        raise NoActiveRound("no round of this epoch has begun")
    if not 0 <= height <= state.current.height:
        raise WrongRound(f"evidence from round {height}, but the newest round is {state.current.height}", "T7")
    client = get_existing(state, member)
    if client.state is ClientState.EJECTED:
        raise InvalidEvidence(f"member {member} is ejected already", "R7")
    return client


def process_vacancies(state: Coordinator) -> None:
    """At the end of an epoch, free the leaving slots that hold no earnings (M4)."""
    for number, slot in enumerate(state.registry.slots):
        if slot.state is SlotState.LEAVING and not slot.earned:
            process_vacancy(state, number)
