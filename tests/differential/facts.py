"""What has come about in a run, by name: random events must bring all of it about, or they test little."""

from collections.abc import Iterator
from typing import NamedTuple

from psyche.core.state.limits import MAX_EPOCH_ROUNDS
from psyche.core.state.state import (
    ZERO32,
    ChallengeState,
    ClientFlag,
    ClientState,
    Coordinator,
    Mark,
    RoundFlag,
    RunState,
    SlotState,
    StopReason,
)


class View(NamedTuple):
    """What is compared before and after an event."""

    run_state: RunState
    certified: Mark
    height: int
    states: tuple[ClientState, ...]
    slots: tuple[tuple[SlotState, int, int], ...]
    is_armed: bool
    challenges: tuple[ChallengeState, ...]
    accusations: int  # that juries have found false


def take_view(state: Coordinator) -> View:
    return View(
        state.run_state,
        state.certified,
        state.current.height,
        tuple(client.state for client in state.clients),
        tuple((slot.state, slot.strikes, slot.fruitless) for slot in state.registry.slots),
        bool(state.current.entropy_slot),
        tuple(one.state for one in state.challenges),
        sum(slot.false_challenges for slot in state.registry.slots),
    )


def find_facts(before: View, state: Coordinator) -> Iterator[str]:
    """The facts that an event has brought about."""
    if before.run_state is not state.run_state:
        yield f"{before.run_state.name} to {state.run_state.name}"
        yield from _find_phase_facts(before, state)
    if state.in_round and state.current.height != before.height:
        yield from _find_close_facts(state, (state.epoch.rounds_head - 1) % 4)
    if len(before.states) == len(state.clients):
        for was, client in zip(before.states, state.clients, strict=True):
            if was is not client.state and before.is_armed and before.run_state is state.run_state:
                yield f"a member leaves an armed {state.run_state.name}"
            if was is not client.state:
                yield f"a member is {client.state.name} in {state.run_state.name}"
    yield from _find_slot_facts(before, state)
    for was, one in zip(before.challenges, state.challenges, strict=True):
        if was is not one.state:
            yield f"a challenge: {was.name} to {one.state.name}"
    if sum(slot.false_challenges for slot in state.registry.slots) > before.accusations:
        yield "a false accusation"


def _find_phase_facts(before: View, state: Coordinator) -> Iterator[str]:
    if state.run_state is RunState.COOLDOWN:
        yield f"an epoch stops: {state.epoch.stop_reason.name}"
        if any(one.state is ChallengeState.OPEN for one in state.challenges):
            yield "a challenge goes on in the next epoch"
        yield from _find_close_facts(state, state.epoch.rounds_head)
    was_certified = before.certified.digest != ZERO32 and before.certified is not state.certified
    if was_certified and (before.run_state, state.run_state) == (RunState.WARMUP, RunState.WAITING_FOR_MEMBERS):
        yield "a rollback to the checkpoint"
    if state.run_state is RunState.WARMUP:
        if any(client.flags & ClientFlag.PROBATION for client in state.clients):
            yield "an epoch with members on probation"
        if len(state.epoch.start_candidates) > 1:
            yield "candidates are left over"
    if before.run_state is RunState.COOLDOWN and state.epoch.checkpoint_sources:
        yield "an epoch with sources"


def _find_close_facts(state: Coordinator, index: int) -> Iterator[str]:
    """Of a round that was closed."""
    round_ = state.rounds[index]
    for flag in RoundFlag:
        yield f"a round {'with' if round_.flags & flag else 'without'} {flag.name}"
    if round_.electors != round_.members:
        yield "a round with electors"
    if round_.height >= MAX_EPOCH_ROUNDS:
        yield "a round far beyond the last one"
    if round_.agreed_held and not round_.flags & RoundFlag.ROOT:
        yield "a result by slots"
    if state.config.verification_percent and round_.agreed_held:
        yield "a round with verifiers"


def _find_slot_facts(before: View, state: Coordinator) -> Iterator[str]:
    for was, slot in zip(before.slots, state.registry.slots, strict=False):
        if was[0] is not slot.state:
            yield f"a slot: {was[0].name} to {slot.state.name}"
        if was[1] < slot.strikes:
            yield f"strike {min(slot.strikes, 3)}"
        if was[1] > slot.strikes and slot.state is SlotState.JOINED:
            yield "strikes are cleared"
        if was[2] < slot.fruitless:
            yield "a fruitless epoch"


# The least that some thousand random events bring about.
NEEDED = {
    *(f"an epoch stops: {reason.name}" for reason in StopReason if reason is not StopReason.NONE),
    *(f"a round {word} {flag.name}" for word in ("with", "without") for flag in RoundFlag if flag.name != "CLOSED"),
    "a rollback to the checkpoint", "an epoch with members on probation", "an epoch with sources",
    "a round with electors", "a round far beyond the last one", "a result by slots", "a round with verifiers",
    "a member leaves an armed WARMUP", "a member leaves an armed ROUND_WITNESS",
    "strike 1", "strike 2", "strike 3", "strikes are cleared", "a fruitless epoch",
    "a member is DROPPED in WAITING_FOR_MEMBERS", "a member is DROPPED in ROUND_TRAIN",
    "a member is WITHDRAWN in WARMUP", "a member is WITHDRAWN in ROUND_WITNESS",
    "a member is EJECTED in ROUND_TRAIN", "a member is EJECTED in COOLDOWN",
    "a slot: JOINED to LEAVING", "a slot: LEAVING to FREE", "a slot: JOINED to LEFT", "a slot: LEFT to JOINED",
    "a slot: JOINED to FREE", "a slot: JOINED to BANNED", "a slot: BANNED to FREE",
    "a slot: FREE to JOINED", "a slot: LEAVING to LEFT",
    "a slot: LEAVING to JOINED",
    "a challenge: FREE to OPEN", "a challenge: OPEN to FREE", "a challenge: OPEN to UNDECIDED",
    "a challenge: UNDECIDED to FREE", "a challenge goes on in the next epoch", "a false accusation",
    "UNINITIALIZED to WAITING_FOR_MEMBERS", "WAITING_FOR_MEMBERS to WARMUP",
    "WAITING_FOR_MEMBERS to PAUSED", "WARMUP to ROUND_TRAIN", "WARMUP to WAITING_FOR_MEMBERS", "WARMUP to PAUSED",
    "ROUND_TRAIN to ROUND_WITNESS", "ROUND_WITNESS to ROUND_TRAIN", "ROUND_WITNESS to COOLDOWN",
    "COOLDOWN to WAITING_FOR_MEMBERS", "COOLDOWN to PAUSED", "COOLDOWN to FINISHED", "PAUSED to WAITING_FOR_MEMBERS",
    "PAUSED to FINISHED",
}  # fmt: skip
