"""Write the conformance traces: `python tests/conformance/generate.py`."""

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the kits, as pytest has it
sys.path.insert(0, str(Path(__file__).parent))

import attack_scenarios
import audit_scenarios
import corner_scenarios
import epoch_scenarios
import slot_scenarios
from conformance_stage import SCENARIOS, Stage, iter_traces, scenario
from conformance_traces import TRACES
from kits.runs import Run, build_run

from psyche.core.committee.seeds import EXPIRED
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import (
    Pause,
    ReclaimSlot,
    Resume,
    SetRates,
    Update,
    UpdateClientVersion,
    WitnessMessage,
)
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Metadata, Progress, Slot, SlotState, WitnessFlag
from psyche.testing.builders import build_config, build_hash, build_keys, build_model

MODULES = (
    attack_scenarios,
    audit_scenarios,
    corner_scenarios,
    epoch_scenarios,
    slot_scenarios,
)  # they register their scenarios
NO_DIGEST = WitnessFlag.COMPLETE | WitnessFlag.NO_DIGEST
HUB = Checkpoint(CheckpointKind.HUB, "org/model", "main")


def split_votes(run: Run, **lie: object) -> None:
    """Every witness holds only itself, then time passes."""
    for member in run.get_speaking_witnesses():
        run.send(run.build_witness(member, held=1 << member, **lie))
    run.settle()


def time_out(run: Run) -> None:
    run.wait(run.state.config.max_round_train_time)
    run.wait(run.state.config.round_witness_time)


@scenario("three members, overlap, two epochs of two rounds with data")
def happy_overlap(stage: Stage) -> None:
    run = stage.build(3, rounds_per_epoch=2).warm_up().finish_epoch()
    run.rejoin()
    run.warm_up().finish_epoch()


@scenario("three members, no overlap, two epochs of two rounds with data")
def happy_in_turn(stage: Stage) -> None:
    run = stage.build(3, rounds_per_epoch=2, overlap=False).warm_up().finish_epoch()
    run.rejoin()
    run.warm_up().finish_epoch()


@scenario("one member alone, one round with data, to the end of the run")
def alone(stage: Stage) -> None:
    stage.build(1, rounds_per_epoch=1, total_steps=2).warm_up().finish_epoch()


@scenario("five members of which three are witnesses, an epoch that ends by its time, a growing batch")
def epoch_time_and_ramp(stage: Stage) -> None:
    run = stage.build(
        5, witness_nodes=3, rounds_per_epoch=0, epoch_time=40, global_batch_size_end=40,
        global_batch_size_warmup_tokens=900,
    ).warm_up()  # fmt: skip
    for _ in range(4):
        run.run_round()
    run.now += 60
    run.finish_epoch()


@scenario("H2: a member falls silent, is dropped after two rounds, and joins the next epoch")
def crash(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=4).warm_up()
    run.run_round()
    run.silent = {3}
    run.finish_epoch()
    run.silent = set()
    run.rejoin()
    run.warm_up()


@scenario("H2, H5, M3: a member never delivers, is dropped with a strike, and must wait an epoch")
def gray_failure(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=5).warm_up()
    for held in (0, 0b0111, 0b0111, 0b0111, 0b0111):
        run.run_round(held=held)
    run.finish_epoch()
    run.rejoin()
    run.warm_up().finish_epoch()
    run.rejoin()
    run.form()


@scenario("H3: three of four vanish at once; nobody is dropped, the epoch ends and its work is given up")
def mass_drop(stage: Stage) -> None:
    run = stage.build(5, rounds_per_epoch=9, witness_nodes=1).warm_up()
    for _ in range(3):
        if run.state.in_round:
            witness = run.get_speaking_witnesses()[0]
            run.run_round(heard=1 << witness)
    run.wait(5)


@scenario("H4: a witness is heard but puts nothing on record, twice, and is dropped with a strike")
def silent_witness(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=9).warm_up()
    run.run_round()
    for _ in range(2):
        for member in range(3):
            run.send(run.build_witness(member, held=0b1111 & ~(1 << member)))
        time_out(run)
        stage.refused(lambda: run.accuse(0))
        run.accuse(3)
        stage.refused(lambda: run.accuse(3))
    run.run_round()


@scenario("H4: accused before its record of one round and after that of another: each counts, and each close forgives")
def accused_around_records(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=12).warm_up()
    run.run_round()

    def play(*order: str) -> None:
        for what in order:
            if what == "accuse":
                run.accuse(3)
            else:
                run.send(run.build_witness(int(what), held=0b1111 & ~(1 << int(what))))
        time_out(run)

    play("0", "1", "2")
    play("accuse", "0", "1", "2", "3")
    play("0", "1", "2")
    play("0", "1", "2", "3", "accuse")
    play("0", "1", "2")
    play("accuse", "2", "1", "0")
    play("1", "accuse", "0", "2")
    run.run_round()


@scenario("H5: a member with a strike leaves for good and joins again: the strike and the wait are still there")
def strike_and_leave(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=3, late_limit=1).warm_up()
    run.run_round()
    run.run_round(held=0b0111)
    run.leave(3)
    run.finish_epoch()
    stage.refused(lambda: run.leave(3))
    run.join(3, 0, 1, 2)
    run.warm_up().finish_epoch()
    run.join(9)
    run.rejoin()
    run.warm_up()


@scenario("C2: witnesses disagree; the slots with q bits are credited, lies are outvoted")
def slot_decision(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=3).warm_up()
    run.run_round()
    for member, held in enumerate((0b0011, 0b0111, 0b1101, 0b1110)):
        run.send(run.build_witness(member, held=held, at_s=member))
    run.settle()
    run.send(run.build_witness(0, held=0, results_root=ZERO32, state_digest=build_hash("lie")))
    run.finish_epoch()


@scenario("P7: two void rounds with agreed digest drain; two without any agreement give the epoch up")
def void_rounds(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=9).warm_up()
    run.run_round()
    split_votes(run)
    split_votes(run)
    run.finish_epoch()
    run.rejoin()
    run.warm_up()
    run.run_round()
    split_votes(run)
    split_votes(run, flags=NO_DIGEST)
    run.wait(5)


@scenario("S5, P3: two rounds without digest end the epoch, progress goes back to what is certified")
def digest_split(stage: Stage) -> None:
    run = stage.build(3, rounds_per_epoch=2).warm_up().finish_epoch()
    run.rejoin()
    run.warm_up()
    run.run_round()
    run.run_round(state_digest=build_hash("poison"), flags=NO_DIGEST)
    run.run_round(flags=NO_DIGEST)
    run.wait(5)


@scenario("P2: the last drain round is repeated until its full digest is agreed")
def repeated_drain(stage: Stage) -> None:
    run = stage.build(3, rounds_per_epoch=1).warm_up()
    run.run_round()
    run.run_round()
    run.run_round(flags=WitnessFlag.COMPLETE)
    run.finish_epoch()


@scenario("P4: pauses in WaitingForMembers, in Warmup and in training, and resumes; cold starts")
def pauses(stage: Stage) -> None:
    run = stage.build(2, rounds_per_epoch=2)
    for phase in range(3):
        if phase:
            run.form()
        if phase == 2:
            run.warm_up()
            run.run_round()
        run.apply(Pause())
        if run.state.in_round:
            run.finish_epoch()
        stage.refused(lambda: run.apply(Pause()))
        run.now += 50
        run.apply(Resume())
        stage.refused(lambda: run.apply(Resume()))
        run.join(0, 1)
    run.warm_up()


@scenario("S8, T8: five digests compete, no winner, Warmup is given up; then a winner, and a loser who is dropped")
def start_candidates(stage: Stage) -> None:
    run = stage.build(6, min_clients=3)
    run.form()
    for member in range(4):
        run.show(member, digest=build_hash(member))
    stage.refused(lambda: run.show(4, digest=build_hash(4)))
    run.show(4, digest=build_hash(3))
    run.wait(30)
    run.join(*range(6))
    run.form()
    run.show(0, 1, 2, 3)
    run.show(4, digest=build_hash(4))
    run.wait(15)
    run.run_round()


@scenario("P5: nobody can show the certified weights in two Warmups; back to the checkpoint")
def rollback_to_checkpoint(stage: Stage) -> None:
    run = stage.build(2, rounds_per_epoch=1, min_clients=2).warm_up().finish_epoch()
    for _ in range(2):
        run.join(0, 1)
        run.form()
        stage.refused(lambda: run.show(0, digest=build_hash("lost")))
        run.wait(30)
    run.join(0, 1)
    run.warm_up().finish_epoch()


@scenario("R7, M6, M7: an equivocator is ejected, its credits and stake are lost, the others are paid")
def equivocation(stage: Stage) -> None:
    run = build_run(0, rounds_per_epoch=3, min_stake=10)
    for number in range(5):  # slots that hold a stake already; there is no transition that deposits one
        signer, p2p = build_keys(number)
        run.state.registry.slots.append(Slot(signer=signer, p2p=p2p, stake=9 + number, state=SlotState.JOINED))
    stage.begin(run)
    stage.refused(lambda: run.join(9))
    stage.refused(lambda: run.join(0))
    run.join(1, 2, 3, 4)
    run.apply(SetRates(1_000, 7))
    run.warm_up()
    run.run_round()
    run.run_round()
    run.eject(3, height=1)
    stage.refused(lambda: run.eject(3, height=1))
    run.run_round(silent={3}, held=0b1111)
    run.finish_epoch()
    stage.refused(lambda: run.join(4))


@scenario("S10: checkpoints of the certified weights: the first is the source, three more are kept, others refused")
def checkpoints(stage: Stage) -> None:
    run = stage.build(3, rounds_per_epoch=1).warm_up()
    list(run.run_rounds())
    stage.refused(lambda: run.name_source(HUB, digest=build_hash("other")))
    stage.refused(lambda: run.name_source(Checkpoint(CheckpointKind.P2P, "org/model")))
    run.name_source(HUB, 2)
    stage.refused(lambda: run.name_source(HUB))
    run.wait(5)
    run.name_source(Checkpoint(CheckpointKind.GCS, "bucket", "step-2"))
    run.name_source(Checkpoint(CheckpointKind.LOCAL, "weights/step-2"))
    run.name_source(Checkpoint(CheckpointKind.HUB, "org/copy"))
    stage.refused(lambda: run.name_source(Checkpoint(CheckpointKind.HUB, "org/fifth")))


@scenario("P9: the owner changes a paused run: settings, then the step, then the weights; metadata while it runs")
def updates(stage: Stage) -> None:
    run = stage.build(3, rounds_per_epoch=1).warm_up()
    state = run.state

    def pause() -> None:
        run.apply(Pause())
        run.finish_epoch()

    run.apply(Update(metadata=Metadata("renamed", "while it runs", 1, 2), bootstrap=("/ip4/192.0.2.1/tcp/1",)))
    stage.refused(lambda: run.apply(Update(config=build_config())))
    stage.refused(lambda: run.apply(UpdateClientVersion("v2")))
    pause()
    run.apply(UpdateClientVersion("v2"))
    stage.refused(lambda: run.apply(Update(config=build_config(min_clients=0))))
    stage.refused(lambda: run.apply(Update(progress=Progress(epoch=0, step=9))))
    run.apply(Update(config=build_config(rounds_per_epoch=2, data_root=build_hash("data"))))
    run.apply(Update(config=build_config(rounds_per_epoch=2, data_root=build_hash("data"))))
    run.apply(Update(progress=Progress(state.progress.epoch, 40, 7)))

    run.resume()
    pause()
    run.apply(Update(model=build_model(checkpoint=HUB, cooldown_sources=1)))
    run.resume()
    run.finish_epoch()


@scenario("M11, M4: earnings are collected in parts and whole, and free what was left; P10: sources end Cooldown")
def collections(stage: Stage) -> None:
    run = build_run(0, model=build_model(cooldown_sources=2), rounds_per_epoch=1, cooldown_time=60)
    stage.begin(run)
    run.join(0, 1, 2)
    run.apply(SetRates(1_000, 7))
    stage.refused(lambda: run.collect((9, None)))
    run.warm_up()
    list(run.run_rounds())
    for number, name in enumerate(("org/one", "org/two")):
        run.name_source(Checkpoint(CheckpointKind.HUB, name), number)
    run.settle()
    stage.refused(lambda: run.collect((0, 334)))
    run.collect((0, 33))
    run.collect((0, None))
    run.leave(1)
    run.join(1)
    run.leave(1)
    run.collect((1, None))
    run.join(0, 2, 3)
    run.warm_up().finish_epoch()


@scenario("M4, M9: withdrawals in every phase, leaving for good, slots freed, taken again and reclaimed")
def departures(stage: Stage) -> None:
    run = stage.build(5, rounds_per_epoch=2)
    run.withdraw(4, member=0)
    stage.refused(lambda: run.withdraw(4, member=0))
    run.form()
    run.withdraw(3)
    run.warm_up()
    run.run_round()
    run.withdraw(2)
    stage.refused(lambda: run.withdraw(2))
    run.leave(1)
    run.finish_epoch()
    run.join(7)
    for _ in range(2):
        run.join(0)
        run.warm_up().finish_epoch()
    while run.apply(ReclaimSlot()):
        pass
    run.join(8)


@scenario("K2: the backend restarts in every phase; its gaps are no time-outs")
def recovery(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=1, max_round_train_time=60)

    run.recover(100)
    run.wait(15)
    run.show(0, 1, 2)
    run.recover(1_000)
    run.wait(15)
    run.wait(30)
    run.recover(10)
    run.wait(60)
    run.recover(7)
    run.wait(20)
    run.finish_epoch()
    run.recover(3)


@scenario("E1, E2: a delay of four slots; entropy that is not there yet, and some that expired")
def entropy(stage: Stage) -> None:
    run = stage.build(2, rounds_per_epoch=1, entropy_delay=4)
    run.form()
    run.show(0, 1)
    run.tick()
    run.tick(None)
    run.now += 5
    run.tick()
    run.witness_all()
    run.tick(None)
    run.now += 600
    run.tick(EXPIRED)
    run.tick(EXPIRED)
    run.tick(None)
    run.finish_epoch()


@scenario("verifiers train nothing, and are good when they are held")
def verifiers(stage: Stage) -> None:
    stage.build(8, rounds_per_epoch=2, verification_percent=30).warm_up().finish_epoch()


@scenario("W4, T2: each rule broken once; nothing changes but what the honest messages between do")
def refusals(stage: Stage) -> None:
    run = stage.build(4, rounds_per_epoch=2, witness_nodes=3).warm_up()
    run.run_round()
    witness, other, last = run.get_speaking_witnesses()
    stranger = next(m for m in range(4) if m not in (witness, other, last))
    good = run.build_witness(witness)
    bad: list[WitnessMessage] = [
        replace(good, epoch=1),
        replace(good, height=0),
        replace(good, member=other),
        replace(good, held=1 << 9),
        replace(good, heard=1 << 9),
        replace(good, missing=1 << 9),
        replace(good, broadcast_bloom=b"\xff" * 320),
        replace(good, results_root=ZERO32),
        replace(good, held=0, broadcast_bloom=bytes(320)),
        replace(good, state_digest=ZERO32),
    ]
    key = run.state.clients[witness].p2p

    def send(message: WitnessMessage) -> None:
        run.apply(message, key)

    for message in bad:
        stage.refused(lambda m=message: send(m))
    stage.refused(lambda: run.send(run.build_witness(stranger)))
    send(good)
    stage.refused(lambda: send(good))
    for call in (lambda: run.show(0), lambda: run.join(0), lambda: run.apply(Resume())):
        with suppress(CoordinatorError):
            call()
    run.finish_epoch()
    stage.refused(lambda: run.send(good))


@scenario("256 members, 32 witnesses: the round that attests 256 results; the most bits that a filter may have")
def full_house(stage: Stage) -> None:
    run = build_run(256, rounds_per_epoch=1, global_batch_size_start=300, global_batch_size_end=300).warm_up()
    run.run_round()
    stage.begin(run)
    first = next(member for member in run.get_speaking_witnesses() if member not in (5, 77, 255))
    for bits in (1_401, 1_400):
        bloom = ((1 << bits) - 1).to_bytes(320, "big")
        with suppress(CoordinatorError):
            run.send(run.build_witness(first, broadcast_bloom=bloom))
    run.run_round(silent={5, 77, 255})


def main() -> None:
    TRACES.mkdir(exist_ok=True)
    for stale in {path.stem for path in TRACES.glob("*.json")} - SCENARIOS.keys():
        (TRACES / f"{stale}.json").unlink()
    for trace in iter_traces():
        trace.write()
        print(f"{trace.name}: {len(trace.events)} events")


if __name__ == "__main__":
    main()
