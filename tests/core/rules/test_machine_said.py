"""Rules that decide rare moments: M4 and R7 at an epoch's end, P3 at its last number, K2, T8 and departures."""

import pytest
from kits.runs import build_run, expect_refusal

from psyche.core.state.errors import NoActiveRound, WrongRound
from psyche.core.state.messages import Pause, Recover, ReportEquivocation, SetRates
from psyche.core.state.state import ClientState, RunState


def test_m4_who_withdraws_in_cooldown_earns_and_keeps_its_strikes() -> None:
    run = build_run(3, rounds_per_epoch=2)
    run.apply(SetRates(earning=150))
    run.warm_up()
    run.state.registry.slots[2].strikes = run.state.registry.slots[1].strikes = 1
    list(run.run_rounds())
    assert run.state.run_state is RunState.COOLDOWN
    run.withdraw(2, epoch=0)
    assert run.state.clients[2].state is ClientState.WITHDRAWN
    run.finish_epoch()
    assert [slot.earned for slot in run.state.registry.slots] == [50, 50, 50]
    assert [slot.strikes for slot in run.state.registry.slots] == [0, 0, 1]


def test_r7_evidence_after_its_epoch_is_refused() -> None:
    run = build_run(3).warm_up().finish_epoch()
    with expect_refusal(run.state, WrongRound, "T7"):
        run.apply(ReportEquivocation(0, 0, 1))
    with expect_refusal(run.state, NoActiveRound):
        run.apply(ReportEquivocation(1, 0, 1))


@pytest.mark.parametrize("pauses", [False, True])
def test_p3_a_run_is_finished_when_the_epoch_65535_ends(pauses: bool) -> None:
    run = build_run(3)
    run.state.progress.epoch = 65_535
    run.warm_up()
    if pauses:
        run.apply(Pause())
    run.finish_epoch()
    assert (run.state.run_state, run.state.progress.epoch) == (RunState.FINISHED, 65_535)
    assert not run.state.pending_pause


def test_k2_a_recovery_stretches_epoch_time_by_what_it_moves_the_phase() -> None:
    run = build_run(3, epoch_time=1_000).warm_up()
    start, phase = run.state.epoch.start_timestamp, run.state.state_start_unix
    run.now += 10
    run.apply(Recover(4))
    moved = run.state.state_start_unix - phase
    assert moved == 5, "not the 4 s that were lost: 15 s of the phase's 20 are to remain"
    assert run.state.epoch.start_timestamp == start + moved


@pytest.mark.parametrize("how", ["withdraw", "leave"])
def test_t8_ready_quorum_unix_is_the_time_since_which_there_are_enough_without_a_break(how: str) -> None:
    run = build_run(7, warmup_time=100, min_clients=2)
    run.form()
    began = run.now

    def depart(member: int) -> None:
        run.now += 10
        if how == "withdraw":
            run.withdraw(member, epoch=0)
        else:
            run.leave(member)

    run.show(0, 1, 2, 3, 4)
    assert run.state.epoch.ready_quorum_unix == began, "5 of 7"
    depart(0)
    assert run.state.epoch.ready_quorum_unix == 0, "4 of 6 are too few"
    depart(5)
    assert run.state.epoch.ready_quorum_unix == run.now == began + 20, "4 of 5, from now on"
    depart(6)
    assert run.state.epoch.ready_quorum_unix == began + 20, "4 of 4, without a break"
