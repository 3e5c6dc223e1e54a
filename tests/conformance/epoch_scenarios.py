"""Scenarios of whole epochs: without overlap, pauses, void rounds, verifiers, sources, many members."""

from contextlib import suppress

from conformance_stage import Stage, scenario
from corner_scenarios import fill_slots
from kits.runs import Run, build_run
from slot_scenarios import get_due, play_epoch

from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import (
    HealthCheck,
    Join,
    NameCheckpoint,
    Pause,
    Resume,
)
from psyche.core.state.state import Checkpoint, CheckpointKind, RunState, WitnessFlag
from psyche.testing.builders import build_hash, build_keys, build_model

NO_DIGEST = WitnessFlag.COMPLETE | WitnessFlag.NO_DIGEST


def split(run: Run, **lie: object) -> None:
    """A round in which every witness holds only its own result."""
    for member in run.get_speaking_witnesses():
        run.send(run.build_witness(member, held=get_due(run) & 1 << member, **lie))
    run.settle()
    run.wait(24)


@scenario("no overlap: a crash, a gray member, results by slots, void rounds, a split digest, a repeated drain")
def troubles_in_turn(stage: Stage) -> None:
    run = stage.build(5, overlap=False, rounds_per_epoch=5, min_clients=2).warm_up()
    run.run_round()
    run.silent = {4}
    run.run_round(held=0b10111)
    run.run_round(held=0b10111)
    split(run)
    run.run_round(flags=WitnessFlag.COMPLETE)
    run.finish_epoch()
    run.silent = set()
    run.rejoin()
    run.warm_up()
    run.run_round()
    split(run)
    split(run)
    run.finish_epoch()
    run.rejoin()
    run.warm_up()
    run.run_round(flags=NO_DIGEST)
    run.run_round(flags=NO_DIGEST)
    run.wait(5)


@scenario("P4: pauses in the middle of an epoch: in training, while witnesses report, in the drain, in Cooldown")
def pauses_in_rounds(stage: Stage) -> None:
    run = stage.build(3, rounds_per_epoch=9, epoch_time=900)
    for phase in range(5):
        run.warm_up()
        run.run_round()
        if phase == 1:
            run.witness_all()
            run.tick()
            assert run.state.run_state is RunState.ROUND_WITNESS
        elif phase == 2:
            run.now += 900
            run.run_round()
        elif phase in (3, 4):
            run.run_round(heard=1)
            run.run_round(heard=1)
            assert run.state.run_state is RunState.COOLDOWN
        run.apply(Pause())
        run.apply(Pause())
        run.finish_epoch()
        stage.refused(run.tick)
        stage.refused(lambda: run.apply(Pause()))
        run.now += 10
        run.apply(Resume())
        run.join(0, 1, 2)
    run.form()
    run.leave(2)
    run.show(0)
    run.apply(Pause())
    run.join(1)
    run.apply(Resume())
    run.apply(Pause())
    run.apply(Resume())
    run.join(0, 1)
    run.warm_up()


@scenario("T8: a slow Warmup: the start is due at a percentage of the time that the others took, to the second")
def slow_warmup(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=1, min_clients=2, straggler_percent=150, warmup_time=280)
    run.form()
    run.wait(100)
    run.show(0, 1, 2)
    run.wait(49)
    run.wait(1)
    run.finish_epoch()


@scenario("T8: Warmups in which some are never ready: enough starters, the pace of the others, time, too few")
def half_ready(stage: Stage) -> None:
    run = stage.build(8, rounds_per_epoch=1, min_clients=3, straggler_percent=150, warmup_time=40)
    run.form()
    run.show(0, 1, 2, 3)
    run.now += 4
    run.show(4, 5)
    run.tick()
    run.withdraw(5)
    run.now += 1
    run.show(6)
    run.wait(5)
    run.wait(10)
    run.finish_epoch()
    run.join(*range(8))
    run.form()
    run.now += 16
    run.show(0, 1, 2, 3, 4, 5)
    run.wait(5)
    run.wait(2)
    run.wait(1)
    run.finish_epoch()
    run.join(*range(8))
    run.form()
    run.show(0, 1)
    run.wait(39)
    run.wait(1)
    run.join(*range(8))
    run.form()
    run.show(0, 1, 2)
    run.wait(40)
    run.finish_epoch()
    run.join(*range(3))
    run.form()
    run.withdraw(2)
    run.settle()
    run.join(*range(4))
    run.form()
    run.show(0, 1)
    run.leave(2)
    run.leave(3)
    run.settle()


@scenario("P5: nobody shows the certified weights in ten Warmups, because the checkpoint is two epochs older")
def old_checkpoint(stage: Stage) -> None:
    run = stage.build(2, rounds_per_epoch=1)
    for _ in range(3):
        run.join(0, 1)
        run.warm_up().finish_epoch()
    for attempt in range(10):
        run.join(0, 1)
        run.form()
        stage.refused(lambda: run.show(0, digest=build_hash("lost")))
        if attempt == 4:
            run.apply(Pause())
            run.apply(Resume())
            run.join(0, 1)
            run.form()
        run.wait(30)
    play_epoch(run, 0, 1)


@scenario("C4, P7: void rounds in a drain and around rounds to which nothing was due")
def voids(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=3).warm_up()
    run.run_round()
    split(run)
    run.run_round()
    split(run)
    split(run)
    run.finish_epoch()
    run.rejoin()
    run.warm_up()
    run.run_round()
    split(run)
    split(run, flags=NO_DIGEST)
    run.wait(5)


@scenario("C1, C2: roots without a quorum for their bitmaps, bitmaps without one for their roots, late agreement")
def roots(stage: Stage) -> None:
    run = stage.build(7, rounds_per_epoch=9).warm_up()
    run.run_round()
    for case in range(4):
        witnesses = run.get_speaking_witnesses()
        members = run.state.rounds[(run.state.current.height - 1) % 4].members
        for place, member in enumerate(witnesses):
            lie: dict[str, object] = {}
            if case == 0:
                lie = {"held": members & ~(1 << place % 2), "results_root": build_hash("root")}
            elif case == 1:
                lie = {"results_root": build_hash("root", place % 3)}
            elif case == 2:
                lie = {"results_root": build_hash("root", place // 4)}
                lie |= {"state_digest": build_hash("digest", place // 5)}
            elif place < 5:
                lie = {"flags": WitnessFlag.COMPLETE | WitnessFlag.FULL_DIGEST * (place % 2)}
            run.send(run.build_witness(member, **lie))
        run.settle()
        run.wait(24)
    run.finish_epoch()


@scenario("verifiers and gaps: members leave, verifiers are silent")
def verifiers_with_gaps(stage: Stage) -> None:
    run = stage.build(10, rounds_per_epoch=6, verification_percent=40, witness_nodes=5, evict_after=2).warm_up()
    run.run_round()
    run.withdraw(2)
    run.run_round()
    run.run_round(silent={5, 8})
    run.run_round(silent={5, 8}, held=0b1011010011)
    run.finish_epoch()


def play_verifiers(stage: Stage, members: int, percent: int) -> None:
    """Half of the members deliver, so that each round shows who need not."""
    run = build_run(0, rounds_per_epoch=9, verification_percent=percent, witness_nodes=3, late_limit=200)
    fill_slots(run, members)
    run.warm_up()
    run.run_round()
    for member in range(3, members, 60):
        run.withdraw(member)
    run.run_round()
    stage.begin(run)
    for number in range(6):
        half = int.from_bytes(build_hash("deliver", number), "little")
        run.run_round(held=get_due(run) & half, commitments={})
        run.withdraw(10 + 21 * number)


@scenario("verifiers among 256 members with gaps, of whom half deliver: verifiers owe as trainers do")
def verifiers_of_256(stage: Stage) -> None:
    play_verifiers(stage, 256, 40)


@scenario("the least share of verifiers: one of 140 members, of whom half deliver")
def one_verifier(stage: Stage) -> None:
    play_verifiers(stage, 140, 1)


@scenario("P10, S10: sources named in Cooldown and later, for weights of this epoch and of the last one")
def sources(stage: Stage) -> None:
    run = build_run(0, model=build_model(cooldown_sources=2), rounds_per_epoch=1, cooldown_time=60)
    stage.begin(run)

    def name(number: int, text: str, kind: CheckpointKind = CheckpointKind.HUB) -> None:
        mark = run.state.certified
        run.apply(NameCheckpoint(mark.epoch, mark.digest, Checkpoint(kind, text)), build_keys(number)[0])

    run.join(0, 1, 2)
    run.warm_up()
    stage.refused(lambda: name(0, "org/early"))
    run.eject(2)
    list(run.run_rounds())
    stage.refused(lambda: name(2, "org/banned"))
    stage.refused(lambda: name(0, "", CheckpointKind.EPHEMERAL))
    stage.refused(lambda: name(0, ""))
    name(1, "org/one")
    run.tick()
    run.wait(60)
    name(0, "org/two")
    run.join(0, 1)
    run.form()
    name(0, "bucket", CheckpointKind.GCS)
    run.warm_up()
    run.run_round()
    list(run.run_rounds())
    name(0, "org/three")
    stage.refused(lambda: name(1, "org/three"))
    name(1, "org/four")
    run.settle()


@scenario("256 members form; some show other weights, half are never ready, and the epoch starts without them")
def full_formation(stage: Stage) -> None:
    run = build_run(0, rounds_per_epoch=1, min_clients=60, init_min_clients=256)
    fill_slots(run, 256)
    slots = run.state.registry.slots
    for number in range(0, 256, 3):
        slots[number].proven = True
    slots[17].until = 1
    stage.begin(run)
    run.form()
    run.show(*range(120), digest=build_hash("weights"))
    run.show(*range(250, 256), digest=build_hash("others"))
    run.wait(30)
    run.witness_all(heard=0)
    run.settle()
    with suppress(CoordinatorError):
        run.apply(HealthCheck(0, 0, 1), build_keys(0)[0])
    run.join(*range(130, 140))
    run.leave(141)
    run.leave(3)
    run.finish_epoch()
    run.apply(Join(build_keys(300)[1]), build_keys(300)[0])
