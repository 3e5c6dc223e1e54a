"""Scenarios of what attackers and hasty owners try: a seed that they know, a registry of bans, a stale update."""

from conformance_stage import Stage, scenario
from kits import runs
from kits.runs import Run, build_run

from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.state.messages import Pause, ReclaimSlot, Resume, Tick, Update
from psyche.core.state.state import Coordinator, Progress
from psyche.testing.builders import build_config, build_hash, build_model


def tick(run: Run, slot: int, entropy: Entropy = None) -> None:
    runs.apply(run.state, run.now, slot, bytes(32), Tick(entropy))


@scenario("E1: an armed start takes place whoever leaves or shows up: as drawn, expired once, after an absence")
def starts_drawn(stage: Stage) -> None:
    run = stage.build(7, entropy_delay=4, min_clients=4, total_steps=1_000)
    run.form()
    run.show(0, 1, 2, 3, 4)
    run.now += 15
    tick(run, 100)
    tick(run, 104)
    run.withdraw(4)
    stage.refused(lambda: run.show(5))
    stage.refused(lambda: run.show(6, digest=build_hash("other weights")))
    run.recover(3)
    run.leave(0)
    stage.refused(lambda: run.show(4))
    tick(run, 700, EXPIRED)
    run.withdraw(5)
    tick(run, 704, build_hash("known"))
    run.run_round()
    run.finish_epoch()


@scenario("E1: a start whose starters have all left is given up; a member with other weights does not begin alone")
def starts_given_up(stage: Stage) -> None:
    run = stage.build(5, min_clients=2)
    run.form()
    run.show(0, 1, 2)
    run.show(3, digest=build_hash("other weights"))
    run.now += 30
    tick(run, 50)
    run.leave(0)
    run.withdraw(1)
    run.withdraw(2)
    tick(run, 60)
    run.rejoin()
    run.warm_up()


@scenario(
    "E1: who leaves, is ejected, accused or dropped, or gets a credit, after the seed was armed is drawn as before"
)
def rounds_drawn(stage: Stage) -> None:
    run = stage.build(3, rounds_per_epoch=2).warm_up().finish_epoch()
    run.rejoin()
    run.join(3, 4, 5)
    run.state.config.rounds_per_epoch, run.state.config.verification_percent = 12, 25
    stage.begin(run)
    run.warm_up()
    run.run_round()
    for member in (5, 1, 2):
        run.witness_all()
        run.tick()
        if member == 1:
            run.eject(1, epoch=1)
        else:
            run.withdraw(member, epoch=1)
        run.settle()
    run.finish_epoch()


@scenario("P5: a Warmup in which somebody shows the certified weights sets the count of failed ones to zero")
def failures_forgotten(stage: Stage) -> None:
    run = stage.build(3, rounds_per_epoch=1, min_clients=2, init_min_clients=2).warm_up().finish_epoch()
    for shown in ((), (0,), (), ()):
        run.rejoin()
        run.form()
        run.show(*shown)
        if shown:
            run.withdraw(1, epoch=1)
            run.withdraw(2, epoch=1)
        run.wait(run.state.config.warmup_time)


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
