"""The formation of an epoch, its first round, and the failure of Warmup (T8, M3, P5)."""

from dataclasses import replace

from psyche.core.rules.membership import process_vacancies
from psyche.core.rules.probation import get_founders, is_led_by_proven
from psyche.core.rules.readiness import is_certified, process_certification, process_unready
from psyche.core.rules.rounds import process_first_round
from psyche.core.rules.timing import process_state_change
from psyche.core.state.bits import get_members
from psyche.core.state.limits import (
    GOOD_STREAK_ROUNDS,
    STORED_ROUNDS,
    U8_MAX,
    U16_MAX,
    WARMUP_FAILURE_LIMIT,
    WARMUP_FAILURE_LIMIT_OLD_CHECKPOINT,
)
from psyche.core.state.roster import get_healthy, get_slot, is_expired
from psyche.core.state.state import Client, ClientFlag, ClientState, Coordinator, Epoch, Round, RunState, SlotState


def get_joined(state: Coordinator, now: int) -> list[int]:
    """The slots that a formation would take now, in slot order (M3, M10).

    Slots that still have to wait count only if there are too few others; otherwise strikes on two of three
    members would end the run.
    """
    next_active = state.registry.next_active
    joined = [
        number
        for number, slot in enumerate(state.registry.slots)
        if slot.state is SlotState.JOINED and slot.active >= next_active and not is_expired(slot, now)
    ]
    return get_founders(state.registry.slots, joined, next_active, state.config)


def process_formation(state: Coordinator, now: int, slots: list[int]) -> None:
    """Make the slots the members of an epoch, in slot order, and begin Warmup (M3)."""
    registry, old = state.registry, state.epoch
    is_led = is_led_by_proven(state) and any(registry.slots[number].proven for number in slots)
    state.epoch = Epoch(
        start_step=state.progress.step,
        start_timestamp=now,
        first_round=True,
        warmup_failures=old.warmup_failures,
        cold_start=old.cold_start,
    )
    # nothing of the last epoch stays but how often Warmup failed and the cold start, which go over epochs (P4, P5)
    state.rounds = [Round() for _ in range(STORED_ROUNDS)]
    state.clients = []
    for number in slots:
        slot = registry.slots[number]
        slot.active, slot.last_epoch = registry.next_active, state.progress.epoch
        state.clients.append(_build_member(state, number, on_probation=is_led and not slot.proven))
    # M7: rates are those of the whole epoch, so an owner cannot change what is being worked for
    registry.current_earning_rate = registry.future_earning_rate
    registry.current_slashing_rate = registry.future_slashing_rate
    process_state_change(state, now, RunState.WARMUP)


def _build_member(state: Coordinator, number: int, *, on_probation: bool) -> Client:
    slot = state.registry.slots[number]
    return Client(
        signer=slot.signer,
        p2p=slot.p2p,
        slot=number,
        flags=ClientFlag.PROBATION if on_probation else ClientFlag(0),  # M10
        good_streak=GOOD_STREAK_ROUNDS,  # A1
    )


def process_epoch_start(state: Coordinator, now: int, entropy: bytes, starters: int) -> None:
    """Begin round 0 with the starters; members that are not ready or show other weights leave (T8, S8, M3).

    Starters that have left since the start was armed are members of the round: they were drawn (E1).
    """
    process_certification(state)
    _process_leftovers(state, starters)
    state.epoch.warmup_failures = 0  # P5
    process_joins_closed(state)
    process_first_round(state, now, entropy, starters)


def _process_leftovers(state: Coordinator, starters: int) -> None:
    for member in get_members(get_healthy(state) & ~starters):
        client = state.clients[member]
        client.state = ClientState.DROPPED  # no strike
        get_slot(state, client).active = 0
        process_unready(state, client)


def process_joins_closed(state: Coordinator) -> None:
    """Use up all joins made so far: everybody must join again (M3)."""
    state.registry.next_active = min(state.registry.next_active + 1, U16_MAX)


def process_warmup_failure(state: Coordinator, now: int, starters: int) -> None:
    """End Warmup without a start: members that cannot start leave, and the run waits for members again (T8, S8, P5)."""
    nobody_ready = not state.epoch.ready_len
    _process_leftovers(state, starters)
    process_abandonment(state, now)
    if nobody_ready and is_certified(state):
        state.epoch.warmup_failures = min(state.epoch.warmup_failures + 1, U8_MAX)
        _process_rollback(state)


def process_abandonment(state: Coordinator, now: int) -> None:
    """Return to WaitingForMembers; the epoch keeps its number (T8)."""
    state.current.entropy_slot = 0  # E1
    process_vacancies(state)
    process_state_change(state, now, RunState.WAITING_FOR_MEMBERS)


def _process_rollback(state: Coordinator) -> None:
    """Roll back to the checkpoint if nobody could show the certified weights in several Warmups in a row (P5)."""
    mark = state.checkpoint
    # going back over several epochs costs more, so more Warmups must fail before it (P5)
    is_old = mark.epoch + 1 < state.certified.epoch
    limit = WARMUP_FAILURE_LIMIT_OLD_CHECKPOINT if is_old else WARMUP_FAILURE_LIMIT
    if state.epoch.warmup_failures < limit:
        return
    state.progress.step, state.progress.epoch_start_data_index = mark.step, mark.data_index
    state.certified = replace(mark)
    state.epoch.warmup_failures = 0
