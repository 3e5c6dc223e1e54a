"""Scenarios of slots over several epochs: strikes, waits, probation, what they earn, and when they are freed."""

from conformance_stage import Stage, scenario
from corner_scenarios import fill_slots
from kits.runs import Run, build_run

from psyche.core.state.limits import U64_MAX
from psyche.core.state.messages import (
    ReclaimSlot,
    SetRates,
)
from psyche.core.state.state import SlotState, WitnessFlag
from psyche.core.state.timeline import get_attested_round
from psyche.testing.builders import build_hash

NO_DIGEST = WitnessFlag.COMPLETE | WitnessFlag.NO_DIGEST


def play_epoch(run: Run, *members: int) -> None:
    """These join, are ready, and finish an epoch."""
    run.join(*members)
    run.warm_up().finish_epoch()


def get_due(run: Run) -> int:
    """Bitmap of the members of the round that the running one attests."""
    attested = get_attested_round(run.state)
    return 0 if attested is None else attested.members


@scenario("H5: strikes over several epochs: waits of 1, 2 and 4, and what clears them and what does not")
def strikes(stage: Stage) -> None:
    run = stage.build(5, rounds_per_epoch=3, late_limit=1, evict_after=2)
    run.apply(SetRates(1_000, 10))
    for epoch in range(13):
        run.join(*range(5))
        run.warm_up()
        members = {client.slot: member for member, client in enumerate(run.state.clients)}
        worst = members.get(4)
        run.run_round()
        is_lazy = worst is not None and epoch not in (10, 11)
        if epoch == 11 and worst is not None:
            run.run_round()
            run.run_round(silent={worst}, held=get_due(run))
        while run.state.in_round:
            run.run_round(held=get_due(run) & ~(1 << worst) if is_lazy else get_due(run))
        run.wait(5)
    run.leave(4)
    run.join(0, 4)


@scenario("H5, M4: slots that were left with strikes: kept, taken over when no room is left, taken up again")
def left_slots(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=3, late_limit=1)
    run.warm_up()
    run.run_round()
    run.run_round(held=0b0111)
    run.leave(3)
    run.finish_epoch()
    play_epoch(run, 0, 1, 2)
    stage.refused(lambda: run.leave(3))
    run.join(3)
    run.withdraw(3)
    run.leave(3)
    run.join(3)
    play_epoch(run, 0, 1, 2)
    run.leave(3)
    for _ in range(3):
        play_epoch(run, 0, 1)
        run.apply(ReclaimSlot())
    run.join(3)


@scenario("M10: newcomers on probation: whom a formation takes, who elects, whose epochs were fruitless, who waits")
def probation(stage: Stage) -> None:
    run = stage.build(2, rounds_per_epoch=2, init_min_clients=2)
    run.warm_up().finish_epoch()
    run.join(*range(8))
    run.form()
    run.show(0, 1, 2)
    run.wait(30)
    run.run_round()
    run.run_round(held=0b0011)
    run.finish_epoch()
    for quiet in ({2}, {3}, set(), {2, 3}, {0, 1}):
        run.join(*range(7))
        run.silent = quiet
        run.warm_up()
        run.finish_epoch()
    run.silent = set()
    for _ in range(2):
        run.join(*range(8))
        run.warm_up()
        run.run_round()
        run.run_round(flags=NO_DIGEST, state_digest=build_hash("split"))
        run.run_round(flags=NO_DIGEST)
        run.wait(5)
    play_epoch(run, *range(8))
    play_epoch(run, *range(8))


@scenario("M3, M10: a formation that must fill up with slots that wait, and one whose proven slots all wait")
def waits(stage: Stage) -> None:
    run = build_run(0, init_min_clients=4, rounds_per_epoch=1)
    fill_slots(run, 7)
    slots = run.state.registry.slots
    for number, (proven, until, fruitless) in enumerate(
        ((1, 5, 0), (1, 3, 0), (0, 0, 2), (0, 4, 1), (0, 0, 0), (0, 4, 3), (1, 9, 0))
    ):
        slots[number].proven, slots[number].until, slots[number].fruitless = bool(proven), until, fruitless
    stage.begin(run)
    run.join(*range(7))
    run.warm_up().finish_epoch()
    run.join(0, 2, 3)
    run.form()
    run.join(5)
    run.warm_up().finish_epoch()
    for _ in range(4):
        play_epoch(run, *range(7))


@scenario("M3, M10: a formation fills up with slots whose waits end before and after epoch 256, some at the same one")
def long_waits(stage: Stage) -> None:
    run = build_run(0, init_min_clients=4, rounds_per_epoch=1)
    registry = run.state.registry
    registry.next_active = 250
    fill_slots(run, 11)
    for slot, until in zip(registry.slots, (0, 257, 255, 256, 256, 256, 257, 255, 256, 257, 257), strict=True):
        slot.until, slot.active = until, 0
    for slot in registry.slots[:6]:
        slot.proven = True
    stage.begin(run)
    run.join(*range(6))
    run.warm_up().finish_epoch()  # 0, then 2, and of 3, 4 and 5 the first two
    run.withdraw(1)
    run.withdraw(5)
    run.join(0, *range(6, 11))
    run.warm_up().finish_epoch()  # 0, then 7 and 8, and of 6, 9 and 10 the first
    play_epoch(run, *range(11))


@scenario("M7, H5, M4: settlements: shares and carry, what is slashed, counts at their end, slots that are freed")
def settlement(stage: Stage) -> None:
    run = build_run(0, rounds_per_epoch=2)
    fill_slots(run, 5)
    slots = run.state.registry.slots
    slots[0].earned, slots[4].slashed, slots[4].stake = U64_MAX - 100, U64_MAX - 5, 9
    run.state.registry.carry = 7
    slots[1].strikes = slots[2].strikes = 1
    stage.begin(run)
    run.apply(SetRates((1 << 63) - 1, 11))
    play_epoch(run, 0, 1, 2, 3, 4)
    run.apply(SetRates(100, None))
    run.join(0, 1, 2, 3, 4)
    run.warm_up()
    run.run_round()
    run.run_round(held=0b01011)
    run.eject(4, height=0)
    run.leave(2)
    stage.refused(lambda: run.leave(2))
    run.silent = {1, 2, 4}
    run.finish_epoch()
    run.silent = set()
    run.apply(SetRates(None, 0))
    play_epoch(run, 0, 1, 3)
    run.collect((2, None))
    run.collect((3, None))
    run.collect((0, 5), (4, None))


@scenario("M4, M11: slots of leavers are freed with their last point, and not by a claim that takes nothing")
def last_points(stage: Stage) -> None:
    run = build_run(3)
    for slot, earned in zip(run.state.registry.slots, (1, 2, 0), strict=True):
        slot.state, slot.active, slot.earned = SlotState.LEAVING, 0, earned
    stage.begin(run)
    run.collect((2, None))
    run.collect((0, 1), (1, 1))
    run.collect((1, None))
