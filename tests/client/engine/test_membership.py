"""Joining, loading, restarting, pausing and ending, as one client does it (M2 to M9, P3 to P8, S8)."""

from dataclasses import replace

import pytest
from kits.bench import Bench, build_bench
from kits.results import FIRST_DIGEST

from psyche.client.engine import actions as act
from psyche.client.engine.round_engine import RoundEngine
from psyche.core.state.gossip import Leave
from psyche.core.state.messages import (
    Join,
    LeaveRun,
    Pause,
    ReportEquivocation,
    Resume,
    Update,
    WarmupWitness,
    Withdraw,
    WitnessMessage,
)
from psyche.core.state.state import ZERO32, ClientState, Mark, Round, RunState, SlotState
from psyche.telemetry import types
from psyche.telemetry.types import Wait
from psyche.testing.builders import build_hash

OTHER = build_hash("other weights")


def finish_epoch(bench: Bench, *, agree: bool = True) -> None:
    """The rounds that are left and Cooldown; without agreement nothing is certified."""
    while bench.state.in_round:
        if agree:
            bench.run_round()
        else:
            for member in range(4):
                digest = build_hash("split", member, bench.state.current.height)
                bench.record(member, held=0, commitments={}, state_digest=digest)
            bench.pass_time(1)
    bench.pass_time(bench.state.config.cooldown_time + 1)


def restart(bench: Bench) -> None:
    """The process ends and a new one begins."""
    bench.engine = RoundEngine(bench.identities[bench.own])
    bench.forget()


def restart_before_round_0(bench: Bench) -> None:
    """A new process sees the end of Warmup, in which its former self was ready; its load takes long."""
    restart(bench)
    bench.manual = {act.Load}
    begun = bench.state
    bench.state = replace(
        begun, run_state=RunState.WARMUP, rounds=[Round() for _ in begun.rounds], certified=Mark(), checkpoint=Mark()
    )
    bench.show()
    bench.state = begun
    bench.show()


# --- M2: joining


def test_before_it_has_seen_the_run_a_client_does_nothing_and_blames_nobody() -> None:
    """Its server may be away: only the connection knows what is waited for."""
    engine = RoundEngine(build_bench(4).identities[0])
    assert engine.on_events((), 1.0) == []
    assert engine.waits() == ()


def test_a_client_joins_whenever_the_run_waits_for_members() -> None:
    """M2."""
    bench = build_bench(4)
    bench.show()
    assert len(bench.get_all(Join)) == 1
    bench.wait(4.9)
    assert len(bench.get_all(Join)) == 1
    bench.wait(0.2)
    assert len(bench.get_all(Join)) == 2, "the first one got no answer"
    bench.join(0)
    bench.show()
    bench.wait(60.0)
    assert len(bench.get_all(Join)) == 2
    assert ("3 more members", Wait.MORE_MEMBERS) in [(f.what, f.wait) for f in bench.get_logs(types.WaitStarted)]


def test_who_is_not_a_member_waits_for_the_next_epoch_without_a_word() -> None:
    bench = build_bench(5, own=4)
    bench.state.config.init_min_clients = 4
    bench.join(0, 1, 2, 3)
    bench.form()
    bench.show()
    bench.wait(30.0)
    for kind in (Join, act.Load, WarmupWitness, act.Publish, Withdraw):
        assert bench.get_all(kind) == []
    assert Wait.NEXT_EPOCH in [f.wait for f in bench.get_logs(types.WaitStarted)]


def test_an_ejected_client_ends_with_a_reason() -> None:
    """M6, R7."""
    bench = build_bench(4, rounds_per_epoch=1).start()
    bench.apply(ReportEquivocation(0, 0, bench.index))
    bench.show()
    assert bench.engine.member is None
    while bench.state.in_round:
        bench.close(1, 2, 3, state_digest=build_hash("d", bench.state.current.height), held=0, commitments={})
    bench.pass_time(10)
    bench.wait(5.0)
    (left,) = bench.get_all(act.Exit)
    assert left.code == 1
    assert "banned" in left.reason


def test_peers_are_those_with_a_live_slot() -> None:
    """M1: who joined may talk, who gave up its slot or was ejected may not."""
    bench = build_bench(3)
    bench.show()
    bench.join(0, 1)
    bench.show()
    keys = [i.public for i in bench.identities]
    assert bench.get_all(act.SetPeers)[-1].keys == frozenset(keys[:2])
    bench.join(2)
    bench.apply(LeaveRun(), keys[1])
    bench.show()
    assert bench.get_all(act.SetPeers)[-1].keys == frozenset((keys[0], keys[2]))
    bench.state.registry.slots[2].state = SlotState.BANNED
    bench.show()
    assert bench.get_all(act.SetPeers)[-1].keys == frozenset((keys[0],))
    said = len(bench.get_all(act.SetPeers))
    bench.show()
    assert len(bench.get_all(act.SetPeers)) == said


# --- S8: weights at the start of an epoch


def test_in_a_first_epoch_the_configured_source_is_loaded_and_shown() -> None:
    """S8."""
    bench = build_bench(4)
    bench.warm_up()
    (load,) = bench.get_all(act.Load)
    assert (load.certified, load.source_digest) == (None, ZERO32)
    assert [(a.epoch, a.member, a.digest) for a in bench.get_all(WarmupWitness)] == [(0, 0, FIRST_DIGEST)]
    bench.show()
    bench.wait(20.0)
    assert len(bench.get_all(WarmupWitness)) == 1
    assert bench.get_all(act.SetPlan)[-1].plan_hash == bench.engine._x.facts.plan_hash != ZERO32


def test_who_still_holds_the_certified_weights_loads_nothing() -> None:
    """T8: it is ready in a second."""
    bench = build_bench(4, rounds_per_epoch=1).start()
    finish_epoch(bench)
    bench.forget()
    bench.warm_up()
    assert bench.get_all(act.Load) == []
    assert [a.digest for a in bench.get_all(WarmupWitness)] == [bench.state.certified.digest]


def test_a_load_that_fails_is_tried_again_after_a_second_and_nothing_false_is_shown_meanwhile() -> None:
    """S8."""
    bench = build_bench(4, rounds_per_epoch=2).start()
    finish_epoch(bench, agree=False)
    bench.manual = {act.Load}
    bench.join(0, 1, 2, 3)
    bench.form()
    bench.forget()
    bench.show()
    (load,) = bench.get_all(act.Load)
    assert load.certified == bench.state.certified.digest
    bench.feed(act.LoadFailed(1, "nobody has it"))
    bench.wait(0.9)
    assert len(bench.get_all(act.Load)) == 1
    bench.wait(0.2)
    assert len(bench.get_all(act.Load)) == 2
    assert bench.get_all(WarmupWitness) == []
    bench.feed(bench.build_loaded(load))
    assert [a.digest for a in bench.get_all(WarmupWitness)] == [load.certified]


def test_without_the_model_folder_only_first_weights_that_a_quorum_shows_are_fetched() -> None:
    """S11: nothing is certified, so a peer could show anything."""
    bench = build_bench(4, own=3, manual={act.Load})
    bench.join(0, 1, 2, 3)
    bench.form()
    shown = {1: (0, OTHER), 2: (1, FIRST_DIGEST), 3: (2, FIRST_DIGEST)}  # by the number of the try
    for number in range(4):
        if number in shown:
            member, digest = shown[number]
            bench.apply(WarmupWitness(0, member, digest), bench.state.clients[member].p2p)
        bench.show()
        bench.wait(1.1)
        (*_, load) = bench.get_all(act.Load)
        assert load.certified is None, "not even half of the members show the same"
        bench.feed(act.LoadFailed(0, "there is no such folder"))


def test_first_weights_that_a_quorum_of_the_healthy_members_shows_are_fetched_and_shown() -> None:
    """S11, S8: three of four show them, so no other weights can win."""
    bench = build_bench(4, own=3, manual={act.Load})
    bench.warm_up()
    for member in (0, 1, 2):
        bench.apply(WarmupWitness(0, member, FIRST_DIGEST), bench.state.clients[member].p2p)
    bench.show()
    bench.feed(act.LoadFailed(0, "there is no such folder"))
    bench.wait(1.1)
    first, load = bench.get_all(act.Load)
    assert (first.certified, load.certified) == (None, FIRST_DIGEST)
    bench.feed(bench.build_loaded(load))
    assert [a.digest for a in bench.get_all(WarmupWitness)] == [FIRST_DIGEST]
    bench.wait(5.0)
    assert len(bench.get_all(act.Load)) == 2


def test_who_has_the_model_folder_loads_it_whatever_others_show() -> None:
    """S8: so a folder that differs is noticed, and its client is left out."""
    bench = build_bench(4, own=3, manual={act.Load})
    bench.join(0, 1, 2, 3)
    bench.form()
    for member in (0, 1, 2):
        bench.apply(WarmupWitness(0, member, FIRST_DIGEST), bench.state.clients[member].p2p)
    bench.show()
    (load,) = bench.get_all(act.Load)
    assert load.certified is None
    bench.feed(bench.build_loaded(load, OTHER))
    assert [a.digest for a in bench.get_all(WarmupWitness)] == [OTHER]


def test_after_an_epoch_that_certified_nothing_the_weights_are_loaded_anew() -> None:
    """P3, S8: they have moved on, although the record asks for what was loaded before."""
    bench = build_bench(4, rounds_per_epoch=12, manual=set()).start()
    bench.run_rounds(4)
    finish_epoch(bench, agree=False)
    bench.forget()
    bench.warm_up()
    (load,) = bench.get_all(act.Load)
    assert load.certified == FIRST_DIGEST


def test_weights_in_the_middle_of_an_apply_are_not_taken_for_the_certified_ones() -> None:
    """S8: the epoch ends while an apply still runs."""
    bench = build_bench(4, rounds_per_epoch=12).start()
    bench.run_round()
    bench.manual = {act.Apply}
    bench.run_round()
    applying = bench.engine.chain.applying
    assert applying is not None
    assert applying.height == 2
    finish_epoch(bench, agree=False)
    assert bench.state.run_state is RunState.WAITING_FOR_MEMBERS
    bench.forget()
    bench.warm_up()
    assert [a.certified for a in bench.get_all(act.Load)] == [FIRST_DIGEST]


def test_an_epochs_end_that_was_not_seen_is_made_up_for() -> None:
    """S8: from the last round straight to the next Warmup."""
    bench = build_bench(4, rounds_per_epoch=12).start()
    bench.run_rounds(4)
    bench.blind = True
    while bench.state.in_round:
        for member in range(4):
            bench.record(member, held=0, commitments={}, state_digest=build_hash(member, bench.state.current.height))
        bench.settle()
    bench.now += 10
    bench.settle()
    bench.join(0, 1, 2, 3)
    bench.form()
    bench.blind = False
    bench.forget()
    bench.show()
    assert [a.certified for a in bench.get_all(act.Load)] == [FIRST_DIGEST]
    assert bench.engine.member == 0


def test_a_second_load_is_not_asked_for_while_one_runs() -> None:
    """A Warmup that came to nothing is followed by another; the load of the first is as good."""
    bench = build_bench(4, manual={act.Load})
    bench.warm_up()
    for member in (1, 2, 3):
        key = bench.state.clients[member].p2p
        bench.apply(WarmupWitness(0, member, FIRST_DIGEST), key)
    bench.state.config.min_clients = 4
    bench.pass_time(bench.state.config.warmup_time + 1)
    assert bench.state.run_state is RunState.WAITING_FOR_MEMBERS
    bench.warm_up()
    assert len(bench.get_all(act.Load)) == 1
    bench.feed(bench.build_loaded(bench.get_all(act.Load)[0]))
    assert [a.epoch for a in bench.get_all(WarmupWitness)] == [0]
    assert bench.engine.weights.is_loaded


# --- P4: pause and resume


def pause_and_resume(bench: Bench) -> None:
    bench.apply(Pause())
    finish_epoch(bench)
    assert bench.state.run_state is RunState.PAUSED
    bench.show()
    assert [(w.what, w.wait) for w in bench.engine.waits()] == [("the owner to resume the run", Wait.OWNER)]
    bench.now += 100
    bench.apply(Resume())
    bench.show()


def test_after_a_pause_everybody_joins_again_and_loads_with_zero_momentum() -> None:
    """P4: although the weights are still there."""
    bench = build_bench(4).start()
    bench.run_round()
    pause_and_resume(bench)
    assert bench.get_all(Join)
    bench.forget()
    bench.warm_up()
    assert [(a.certified, a.keep_momentum) for a in bench.get_all(act.Load)] == [(bench.state.certified.digest, False)]
    assert len(bench.get_all(WarmupWitness)) == 1
    bench.show()
    bench.wait(10.0)
    assert len(bench.get_all(act.Load)) == 1


def resume_and_form(bench: Bench) -> None:
    """The run goes on after a pause: the same four members join again, and the engine sees its Warmup."""
    bench.now += 50
    bench.apply(Resume())
    bench.show()
    bench.forget()
    bench.warm_up()


def test_a_pause_in_warmup_takes_effect_at_once_and_the_momentum_goes_too() -> None:
    """P4: what was loaded before the pause was loaded with momentum, and perhaps for other settings."""
    bench = build_bench(4, rounds_per_epoch=1).start()
    finish_epoch(bench)
    bench.warm_up()
    bench.apply(Pause())
    bench.show()
    assert bench.state.run_state is RunState.PAUSED
    resume_and_form(bench)
    assert [a.keep_momentum for a in bench.get_all(act.Load)] == [False]


def test_a_load_that_outlasts_a_pause_is_repeated_for_the_settings_that_changed_meanwhile() -> None:
    """P4, P9: also where both Warmups are of one epoch and of a cold start, so that the load seems to fit."""
    bench = build_bench(4, manual={act.Load})
    for command in (Pause(), Resume()):  # an epoch after a pause is a cold start
        bench.apply(command)
        bench.show()
    bench.warm_up()
    assert bench.state.epoch.cold_start
    (load,) = bench.get_all(act.Load)
    bench.apply(Pause())
    bench.show()
    optimizer = replace(bench.state.model.optimizer, weight_decay=0.5)
    bench.apply(Update(model=replace(bench.state.model, optimizer=optimizer)))
    resume_and_form(bench)
    assert bench.get_all(act.Load) == []
    bench.feed(bench.build_loaded(load))
    bench.show()
    assert [(a.certified, a.keep_momentum) for a in bench.get_all(act.Load)] == [(load.certified, False)]
    assert bench.get_all(WarmupWitness) == []


def test_a_changed_configuration_is_what_headers_name_after_the_resume() -> None:
    """P4, R1: config_hash follows the record."""
    bench = build_bench(4).start()
    before = bench.engine._x.facts.config_hash
    pause_and_resume(bench)
    bench.state.config.global_batch_size_end += 4
    bench.state.config.global_batch_size_start += 4
    bench.start()
    assert bench.engine._x.facts.config_hash != before
    bench.play()
    assert bench.get_logs(types.Refused) == []


# --- M4, F26: leaving


def test_who_stops_while_the_run_waits_takes_its_join_back() -> None:
    """M4: else formation takes the dead."""
    bench = build_bench(4)
    bench.join(0, 1)
    bench.show()
    bench.take_in(bench.engine.on_stop("stopped by SIGINT"))
    assert [a.epoch for a in bench.get_all(Withdraw)] == [0]
    assert bench.get_reasons(Withdraw) == ["stopped by SIGINT"]
    assert [a.code for a in bench.get_all(act.Exit)] == [0]
    key = bench.identities[0].public
    bench.apply(Withdraw(bench.get_all(Withdraw)[0].epoch, 0), key)
    assert bench.state.registry.slots[0].active < bench.state.registry.next_active


def test_who_stops_before_it_joined_has_nothing_to_take_back() -> None:
    bench = build_bench(4)
    bench.show()
    bench.take_in(bench.engine.on_stop("stopped by SIGINT"))
    assert bench.get_all(Withdraw) == []
    assert [a.code for a in bench.get_all(act.Exit)] == [0]


@pytest.mark.parametrize("phase", ["warmup", "train", "cooldown"])
def test_who_stops_as_a_member_withdraws_and_says_leave(phase: str) -> None:
    """M4, F26."""
    bench = build_bench(4, rounds_per_epoch=1)
    if phase == "warmup":
        bench.warm_up()
    else:
        bench.start()
        while phase == "cooldown" and bench.state.in_round:
            bench.run_round()
    assert bench.state.run_state.name.lower().endswith(phase)
    bench.take_in(bench.engine.on_stop("stopped"))
    assert [a.member for a in bench.get_all(Withdraw)] == [0]
    assert isinstance(bench.get_said()[-1].body, Leave)
    assert bench.engine.on_events((), bench.now + 100) == [], "nothing more is done"


# --- M9: restarts


def test_a_process_that_restarts_in_warmup_goes_on_as_that_member() -> None:
    """M9."""
    bench = build_bench(4)
    bench.warm_up()
    restart(bench)
    bench.show()
    assert bench.engine.member == 0
    assert len(bench.get_all(WarmupWitness)) == 1
    assert bench.get_all(Withdraw) == []


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_process_that_restarts_in_a_round_withdraws_before_anything_else_and_signs_nothing(rounds: int) -> None:
    """M9: its former self may have signed a result."""
    bench = build_bench(4).start()
    bench.run_rounds(rounds)
    restart(bench)
    bench.show()
    assert [(a.epoch, a.member) for a in bench.get_all(Withdraw)] == [(0, 0)]
    bench.show()
    bench.wait(30.0)
    assert len(bench.get_all(Withdraw)) == 1
    for kind in (act.Load, act.Train, act.Publish, WitnessMessage, act.Apply, act.FetchData):
        assert bench.get_all(kind) == []


def test_a_process_that_restarts_in_cooldown_waits() -> None:
    """M9."""
    bench = build_bench(4, rounds_per_epoch=1).start()
    while bench.state.in_round:
        bench.run_round()
    restart(bench)
    bench.show()
    assert bench.get_all(Withdraw) == []
    bench.pass_time(10)
    assert len(bench.get_all(Join)) == 1


def test_a_process_that_restarted_in_warmup_and_loads_past_its_end_catches_up() -> None:
    """M9, C6: it is a member, for its former self was ready; rounds go on meanwhile."""
    bench = build_bench(4).start()
    digest = bench.engine.weights.digests[0]
    restart_before_round_0(bench)
    assert bench.engine.member == 0
    assert bench.get_all(act.Apply) == []
    bench.close(1, 2, 3, state_digest=digest, held=0, commitments={})
    bench.feed(bench.build_loaded(bench.get_all(act.Load)[0]))
    assert [f.height for f in bench.get_logs(types.Applied)] == [0, 1]


def test_a_member_whose_weights_never_come_leaves_after_three_rounds() -> None:
    """C6: nobody is kept waiting by a member that cannot take part."""
    bench = build_bench(4).start()
    restart_before_round_0(bench)
    for height in range(3):
        assert bench.get_all(Withdraw) == []
        known = {m: build_hash(height, m) for m in range(4)}
        held = 0b1111 if height else 0
        bench.close(1, 2, 3, state_digest=build_hash(height), held=held, commitments=known)
    (reason,) = bench.get_reasons(Withdraw)
    assert "weights did not arrive" in reason


# --- being dropped


def test_a_dropped_member_does_nothing_more_in_the_epoch_and_joins_the_next() -> None:
    """H2, H5."""
    bench = build_bench(4).start()
    bench.run_round()
    bench.state.clients[0].state = ClientState.DROPPED
    bench.forget()
    bench.show()
    assert [f.state for f in bench.get_logs(types.Dropped)] == [ClientState.DROPPED]
    assert bench.engine.member is None
    bench.wait(30.0)
    for kind in (act.Train, act.Publish, WitnessMessage, Withdraw, act.AskAnnouncements, act.FetchPayload):
        assert bench.get_all(kind) == []


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"late": 3}, ("too slow", "3 rounds", "--threads", "max_round_train_time is 30 s")),
        ({"missed": 2}, ("not heard", "2 rounds", "check its line")),
        ({"witness_missed": 2}, ("reports on the rounds were missing", "check its line")),
        ({}, ("began without it", "not ready in time")),
    ],
)
def test_a_dropped_client_is_told_why_and_what_helps(counts: dict[str, int], told: tuple[str, ...]) -> None:
    """H2, H4, T8."""
    bench = build_bench(4, max_round_train_time=30).start()
    bench.run_round()
    client = bench.state.clients[0]
    client.state = ClientState.DROPPED
    for name, count in counts.items():
        setattr(client, name, count)
    bench.show()
    (event,) = bench.get_logs(types.Dropped)
    assert all(words in event.reason for words in told), event.reason


# --- P3, P5: work that is given up is said


def test_a_rollback_is_an_event() -> None:
    """P3."""
    bench = build_bench(4).start()
    bench.run_rounds(3)
    finish_epoch(bench, agree=False)
    (rollback,) = bench.get_logs(types.Rollback)
    assert rollback.step == bench.state.certified.step
    failed = bench.get_logs(types.EpochFailed)
    assert failed[-1].steps_lost


def test_an_abandoned_warmup_is_an_event() -> None:
    bench = build_bench(4)
    bench.warm_up()
    bench.pass_time(100)
    assert [f.reason for f in bench.get_logs(types.EpochFailed)] == ["Warmup abandoned"]


# --- P8: the end


def build_finished_bench() -> Bench:
    bench = build_bench(4, total_steps=3, rounds_per_epoch=12, cooldown_time=6).start()
    finish_epoch(bench)
    assert bench.state.run_state is RunState.FINISHED
    return bench


def test_who_holds_the_final_weights_serves_them_for_a_while_and_ends_well() -> None:
    """P8."""
    bench = build_finished_bench()
    (left,) = bench.get_all(act.Exit)
    assert (left.code, left.serve_s) == (0, 6.0)
    assert bench.get_all(act.FetchSnapshot) == []
    assert bench.engine.membership.weights_digest == bench.state.certified.digest
    bench.wait(5.0)
    assert len(bench.get_all(act.Exit)) == 1


def test_who_lacks_the_final_weights_fetches_them_before_it_ends() -> None:
    """P8."""
    bench = build_finished_bench()
    restart(bench)
    bench.show()
    certified = bench.state.certified.digest
    assert [a.digest for a in bench.get_all(act.FetchSnapshot)] == [certified]
    assert bench.get_all(act.Exit) == []
    bench.feed(act.SnapshotFetched(certified, ok=False))
    bench.wait(1.1)
    assert len(bench.get_all(act.FetchSnapshot)) == 2
    bench.feed(act.SnapshotFetched(certified, ok=True))
    assert [a.code for a in bench.get_all(act.Exit)] == [0]
    assert bench.get_logs(types.Finished)[-1].held is True


def test_who_cannot_get_the_final_weights_ends_all_the_same() -> None:
    """P8: every wait is bounded."""
    bench = build_finished_bench()
    restart(bench)
    bench.show()
    bench.wait(9.0)
    assert bench.get_all(act.Exit) == []
    bench.wait(1.1)
    assert [a.code for a in bench.get_all(act.Exit)] == [0]
    assert bench.get_logs(types.Finished)[-1].held is False


@pytest.mark.parametrize(
    ("time", "after_an_epoch", "at_the_end"),
    [(act.ExportTime.NEVER, 0, 0), (act.ExportTime.LAST_EPOCH, 0, 1), (act.ExportTime.EVERY_EPOCH, 1, 1)],
)
def test_the_certified_weights_are_exported_once_when_that_is_wanted(
    time: act.ExportTime, after_an_epoch: int, at_the_end: int
) -> None:
    for total_steps, state, exports in (
        (99, RunState.WAITING_FOR_MEMBERS, after_an_epoch), (3, RunState.FINISHED, at_the_end),
    ):  # fmt: skip
        bench = build_bench(4, total_steps=total_steps, rounds_per_epoch=2)
        bench.engine = RoundEngine(bench.identities[0], export=time)
        bench.start()
        finish_epoch(bench)
        assert bench.state.run_state is state
        mark = bench.state.certified
        export = act.Export(mark.epoch, mark.step, mark.data_index, mark.digest, 4096)
        assert bench.get_all(act.Export) == [export] * exports


def test_a_load_that_fails_leaves_no_claim_on_the_weights_that_were_there() -> None:
    """S8, P4: a cold start loads the very weights that it has, to drop the momentum; what then fails has lost both."""
    bench = build_bench(4, rounds_per_epoch=1).start()
    while bench.state.in_round:
        bench.run_round()
    bench.pass_time(bench.state.config.cooldown_time)
    assert bench.engine.membership.weights_digest == bench.state.certified.digest
    bench.state.epoch.cold_start = True
    bench.join(*range(4))
    bench.form()
    bench.state.epoch.cold_start = True
    bench.manual = {act.Load}
    bench.show()
    (load,) = bench.get_all(act.Load)[1:]
    bench.feed(act.LoadFailed(load.epoch, "the disk failed"))
    assert bench.engine.membership.weights_digest is None
    assert len(bench.get_all(WarmupWitness)) == 1
