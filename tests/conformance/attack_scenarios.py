"""Scenarios of what attackers and hasty owners try: a seed that they know, a registry of bans, a stale update."""

from conformance_stage import Stage, scenario
from kits.runs import Run, build_run

from psyche.core.state.messages import Pause, ReclaimSlot, Recover, Resume, Tick, Update
from psyche.core.state.state import Coordinator, Progress
from psyche.testing import state_machine
from psyche.testing.builders import build_config, build_hash, build_model


def tick(run: Run, slot: int, entropy: bytes | None = None) -> None:
    state_machine.apply(run.state, run.now, slot, bytes(32), Tick(entropy))


@scenario("E1: a start that is due no longer disarms its seed: somebody leaves, shows other weights, the home was away")
def seeds_disarmed(stage: Stage) -> None:
    run = stage.build(7, entropy_delay=4, min_clients=2, total_steps=1_000)
    run.form()
    run.show(0, 1, 2, 3, 4)
    run.now += 15
    tick(run, 100)
    tick(run, 104)
    run.withdraw(4)
    run.show(5)
    tick(run, 105, build_hash("known"))
    run.now += 8
    tick(run, 106, build_hash("known"))
    run.recover(3)
    run.apply(Recover(3))
    run.now += 20
    tick(run, 120)
    run.show(6, digest=build_hash("other weights"))
    run.leave(0)
    run.leave(1)
    run.now += 30
    tick(run, 130)
    tick(run, 134, build_hash("late"))
    tick(run, 140, build_hash("later"))
    run.settle()


@scenario("E1: a due start that ready members with other weights undo, at the end of Warmup")
def seeds_undone(stage: Stage) -> None:
    run = stage.build(5, min_clients=2)
    run.form()
    run.show(0, 1)
    run.now += 30
    tick(run, 50)
    run.show(2, 3, digest=build_hash("other weights"))
    tick(run, 60, build_hash("hash"))
    run.settle()


@scenario("M4, M6: bans give way to newcomers, after idle newcomers and before members that had a credit")
def bans_reclaimed(stage: Stage) -> None:
    run = stage.begin(build_run(0, rounds_per_epoch=1, straggler_percent=0))
    run.join(0, 1, 2, 3, 4)
    run.form()
    run.show(0, 1, 2, 3)
    run.wait(30)
    run.settle()
    run.run_round()
    run.run_round()
    run.eject(1)
    run.eject(3)
    run.finish_epoch()
    run.apply(ReclaimSlot())
    for _ in range(2):
        run.join(0)
        run.warm_up().finish_epoch()
        stage.refused(lambda: run.join(1))
    for _ in range(5):
        run.apply(ReclaimSlot())
    run.join(1)
    run.join(0)
    run.warm_up().finish_epoch()


@scenario(
    "S11, P9: the owner puts the digest of the first weights on record; an update from an older record is refused"
)
def first_weights(stage: Stage) -> None:
    run = stage.begin(Run(Coordinator(run_id="new", run_uid=build_hash("run"), progress=Progress())))
    first, other = build_hash("weights"), build_hash("other weights")
    settings = {"config": build_config(rounds_per_epoch=1), "model": build_model()}
    stage.refused(lambda: run.apply(Update(first_weights=first)))
    run.apply(Update(**settings, progress=Progress(2, 5, 600), first_weights=other, nonce=0))
    stage.refused(lambda: run.apply(Update(**settings, nonce=0)))
    stage.refused(lambda: run.apply(Update(first_weights=bytes(32))))
    run.apply(Update(first_weights=first, nonce=1))
    run.apply(Update(first_weights=first))
    run.apply(Update(progress=Progress(3, 5, 600)))
    run.apply(Update(first_weights=first, nonce=run.state.nonce))
    run.apply(Resume())
    stage.refused(lambda: run.apply(Update(first_weights=first)))
    run.join(0, 1)
    run.form()
    stage.refused(lambda: run.show(0, digest=other))
    run.warm_up()
    run.apply(Pause())
    run.finish_epoch()
    stage.refused(lambda: run.apply(Update(first_weights=other)))
    run.apply(Update(first_weights=run.state.certified.digest))
    run.apply(Update(progress=Progress(run.state.progress.epoch, 9, 700), first_weights=other))
    run.apply(Resume())
    run.join(0, 1)
    run.form()
    run.show(0, 1, digest=other)
    run.settle()
