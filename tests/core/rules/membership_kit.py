"""What the tests of membership share: runs in their rounds, and what members do there."""

from kits.runs import Run, build_run

from psyche.core.state.messages import ReportEquivocation, Withdraw
from psyche.testing.builders import build_keys


def build_training(members: int = 4, rounds: int = 0, **config: object) -> Run:
    run = build_run(members, **{"rounds_per_epoch": 30, **config}).warm_up()
    for _ in range(rounds):
        run.run_round()
    return run


def withdraw(run: Run, number: int, *, epoch: int | None = None, member: int | None = None) -> None:
    named = run.state.progress.epoch if epoch is None else epoch
    run.apply(Withdraw(named, number if member is None else member), build_keys(number)[1])


def eject(run: Run, member: int, *, epoch: int = 0, height: int | None = None) -> None:
    named = run.state.current.height if height is None else height
    run.apply(ReportEquivocation(epoch, named, member))
