"""One fault of each kind: what it does to a run, and that the run bears it."""

from collections.abc import Iterable
from itertools import permutations

import pytest
import trio
from scenarios.base import get_events, get_ledger
from sim_kit import build, play

from psyche.core.state.state import RunState
from psyche.sim.faults import (
    BitFlip,
    CleanExit,
    ClockJump,
    Degrade,
    DiskFull,
    Fault,
    Hang,
    Kill,
    Partition,
    SlowDisk,
    TornWrite,
    TrainerCrash,
    TrainerHang,
)
from psyche.sim.hosts import ClientHost
from psyche.sim.scenarios.scenario import MachineClass, Scenario
from psyche.sim.trainer import MachineModel
from psyche.sim.world import Outcome, World, simulate
from psyche.telemetry import types


def is_finished(outcome: Outcome) -> bool:
    return outcome.state.run_state is RunState.FINISHED


def test_a_killed_client_is_dropped_and_comes_back_in_the_next_epoch() -> None:
    kill = Kill(at_epoch=0, at_height=2, who=("client-1",), for_s=1.0)
    outcome = play(build(faults=(kill,), total_steps=17))
    assert is_finished(outcome)
    assert get_events(outcome, types.Withdrew, "client-1"), "M9: a restarted member withdraws before anything else"
    sent = {e.event.epoch for e in get_events(outcome, types.ResultSent, "client-1")}
    assert sent == {0, 1}


def test_a_client_whose_disk_is_lost_is_given_the_weights_by_its_peers() -> None:
    kill = Kill(at_epoch=0, at_height=3, who=("client-2",), for_s=0.5, erase=True)
    outcome = play(build(faults=(kill,), total_steps=17))
    sources = [e.event.source for e in get_events(outcome, types.ModelLoaded, "client-2")]
    assert sources[0] == "configured source"
    assert types.WeightSource.PEERS in sources


@pytest.mark.parametrize("seq", [2, 9, 14, 23, 31])
def test_a_server_killed_after_any_record_goes_on_from_it(seq: int) -> None:
    outcome = play(build(faults=(Kill(at_seq=seq, who=("server",), for_s=4.0),)))
    assert is_finished(outcome)
    assert get_events(outcome, types.ServerRecovered)
    assert not [*get_events(outcome, types.LeftEpoch), *get_events(outcome, types.EpochFailed)], "K2: it costs neither"


@pytest.mark.parametrize("after_bytes", [0, 1, 40, 700, 1_500])
def test_a_server_that_fails_within_a_write_loses_nothing_that_it_promised(after_bytes: int) -> None:
    torn = TornWrite(at_epoch=0, at_height=1, after_bytes=after_bytes, for_s=2.0)
    outcome = play(build(faults=(torn,)))
    assert is_finished(outcome)
    assert [seen.event.who for seen in get_events(outcome, types.Killed)] == ["server"]
    assert outcome.facts["dropped"] == {}
    notes = [one.event.note for one in get_events(outcome, types.JournalNote)]
    assert ["torn tail" in note for note in notes] == [True] * bool(after_bytes)


def test_a_full_disk_stops_the_server_and_it_goes_on_when_there_is_room() -> None:
    outcome = play(build(faults=(DiskFull(at_epoch=0, at_height=2, who=("server",), for_s=12.0),)))
    assert is_finished(outcome)
    failed = get_events(outcome, types.ProcessFailed, "server")
    assert "the disk failed" in failed[0].event.error


def test_a_full_disk_ends_no_client_and_costs_no_round() -> None:
    outcome = play(build(faults=(DiskFull(at_epoch=0, at_height=2, who=("client-0",), for_s=5.0),), total_steps=17))
    assert is_finished(outcome)
    errors = get_events(outcome, types.Error, "client-0")
    assert any("No space left" in e.event.message for e in errors)
    assert outcome.codes == (0, 0, 0, 0)


def test_a_slow_disk_only_slows() -> None:
    quiet = play(build())
    outcome = play(build(faults=(SlowDisk(at_s=4.0, who=("server", "client-1"), sync_s=0.4, for_s=30.0),)))
    assert is_finished(outcome)
    assert outcome.facts["dropped"] == {}
    assert outcome.simulated_s > quiet.simulated_s + 0.4


def play_until_end(*faults: Fault) -> World:
    """The world after a run in which all these faults are over."""
    worlds: list[World] = []
    outcome = simulate(build(faults=faults, total_steps=30), prepare=worlds.append)
    assert not outcome.violations, outcome.describe()
    assert len(get_events(outcome, types.FaultOver)) == len(faults)
    return worlds[0]


def test_faults_of_one_kind_that_overlap_leave_the_disk_as_it_was() -> None:
    slow = (SlowDisk(at_s=2.0, who=("server",), sync_s=0.2, for_s=5.0),)
    slow += (SlowDisk(at_s=4.0, who=("server",), sync_s=0.1, for_s=8.0),)
    full = (DiskFull(at_s=14.0, who=("server",), for_s=2.0), DiskFull(at_s=15.0, who=("server",), for_s=4.0))
    world = play_until_end(*slow, *full)
    assert world.server.disk.write_s == world.scenario.sync_s
    assert not world.server.disk.is_full


def test_who_is_stopped_twice_stands_still_until_both_are_over() -> None:
    hangs = (Hang(at_s=6.0, who=("client-1",), for_s=4.0), Hang(at_s=8.0, who=("client-1",), for_s=9.0))
    outcome = play(build(faults=hangs, total_steps=30))
    moments = [get_events(outcome, kind, "world")[0].t for kind in (types.Stopped, types.Resumed)]
    assert moments == [6.0, 17.0]


def test_two_torn_writes_that_wait_at_once_are_one_failure() -> None:
    torn = [TornWrite(at_s=6.0, after_bytes=left, for_s=2.0) for left in (9_000, 100)]
    world = play_until_end(*torn)
    assert world.server.lives == 2
    assert world.under_way == []


def test_a_server_that_stands_still_is_a_pause_for_all() -> None:
    outcome = play(build(faults=(Hang(at_epoch=0, at_height=2, who=("server",), for_s=9.0),)))
    assert is_finished(outcome)
    assert outcome.facts["dropped"] == {}


def test_the_slowest_member_keeps_its_place_when_it_was_not_heard_in_one_round() -> None:
    """A1: the next rounds wait for it again; else it would be late in three of them, and have a strike."""
    quick, slow = (MachineModel(sample_s=sample_s, spread=0.02) for sample_s in (5.0, 6.5))
    cut = Partition(
        at_epoch=0, at_height=2, groups=(("client-3",), ("client-0", "client-1", "client-2")), for_s=15.2, silent=True
    )
    scenario = Scenario(
        seed=1,
        classes=(MachineClass(count=3, machine=quick), MachineClass(machine=slow)),
        faults=(cut,),
        config={"total_steps": 9, "init_min_clients": 4, "max_round_train_time": 60},
    )
    outcome = play(scenario)
    assert is_finished(outcome)
    assert get_events(outcome, types.Dropped) == []
    credits = next(one.credits for one in get_ledger(outcome).epochs)
    assert credits == {"client-0": 8, "client-1": 8, "client-2": 8, "client-3": 8}


def test_a_client_that_stands_still_catches_up_or_waits_for_the_next_epoch() -> None:
    outcome = play(build(faults=(Hang(at_epoch=0, at_height=2, who=("client-3",), for_s=30.0),), total_steps=17))
    assert is_finished(outcome)
    assert outcome.codes == (0, 0, 0, 0)
    during = [e for e in get_events(outcome, types.ResultSent, "client-3") if e.event.epoch == 0 and e.event.height > 3]
    assert during == []


@pytest.mark.parametrize("silent", [True, False])
def test_a_client_cut_off_from_all_comes_back_when_the_lines_are_healed(silent: bool) -> None:
    cut = Partition(at_epoch=0, at_height=1, groups=(("client-2",), ("server", "all")), silent=silent, for_s=25.0)
    outcome = play(build(faults=(cut,), total_steps=17))
    assert is_finished(outcome)
    assert outcome.codes == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "groups", [(("all",), ("client-2",)), (("client-2",), ("all",)), (("client-2", "client-3"), ("all",))]
)
def test_all_beside_some_of_them_are_the_others(groups: tuple[tuple[str, ...], ...]) -> None:
    apart: list[set[tuple[str, str]]] = []

    def look(world: World) -> None:
        def see(_node: str, event: types.Event) -> None:
            if isinstance(event, types.Fault):
                pairs = permutations(world.clients, 2)
                world.spawn(note, world, pairs)

        world.trace.listeners.append(see)

    async def note(world: World, pairs: Iterable[tuple[ClientHost, ClientHost]]) -> None:
        await trio.sleep(0.1)
        apart.append({(a.name, b.name) for a, b in pairs if world.links.is_cut(a.key, b.key)})

    cut = Partition(at_epoch=0, at_height=1, groups=groups, for_s=5.0)
    outcome = simulate(build(faults=(cut,)), prepare=look)
    assert not outcome.violations, outcome.describe()
    some = min(groups, key=lambda group: group == ("all",))
    rest = {f"client-{number}" for number in range(4)} - set(some)
    assert {pair for pair in apart[0] if pair[0] in some} == {(one, other) for one in some for other in rest}


def test_worse_lines_lose_duplicate_and_reorder_announcements_and_change_nothing_else() -> None:
    worse = Degrade(at_s=2.0, who=("all",), loss=0.2, duplicate=0.3, jitter_s=0.4, for_s=60.0)
    outcome = play(build(faults=(worse,)))
    assert is_finished(outcome)
    applied = {e.event.height: e.event.count for e in get_events(outcome, types.Applied) if e.event.update}
    assert list(applied.values()) == [4] * 8, "no round is void"


def test_a_server_whose_clock_jumps_while_it_runs_does_not_notice() -> None:
    jumps = (
        ClockJump(at_s=6.0, who=("server",), offset_s=300.0, for_s=3.0),
        ClockJump(at_s=12.0, who=("server",), offset_s=-300.0),
    )
    quiet, jumping = play(build()), play(build(faults=jumps))
    assert get_events(jumping, types.StateChanged, "server") == get_events(quiet, types.StateChanged, "server")


def test_a_server_that_restarts_with_its_clock_set_back_waits_for_nothing() -> None:
    faults = (
        ClockJump(at_epoch=0, at_height=2, who=("server",), offset_s=-300.0),
        Kill(at_epoch=0, at_height=3, who=("server",), for_s=2.0),
    )
    outcome = play(build(faults=faults))
    assert is_finished(outcome)
    assert outcome.simulated_s < 120


def test_clients_with_clocks_that_are_off_take_part_as_others_do() -> None:
    outcome = play(build(faults=(ClockJump(at_s=0.0, who=("client-0", "client-1"), offset_s=-300.0),)))
    assert outcome.facts["dropped"] == {}
    assert is_finished(outcome)


@pytest.mark.parametrize("fault", [TrainerCrash, TrainerHang])
def test_a_lost_trainer_costs_its_client_the_epoch_and_no_more(fault: type) -> None:
    outcome = play(build(faults=(fault(at_epoch=0, at_height=2, who=("client-1",), for_s=6.0),), total_steps=17))
    assert is_finished(outcome)
    assert outcome.codes == (0, 0, 0, 0)
    assert {e.event.epoch for e in get_events(outcome, types.ResultSent, "client-1")} == {0, 1}


def test_a_wrong_weight_is_noticed_and_healed() -> None:
    flip = BitFlip(at_epoch=0, at_height=3, who=("client-1",), place=17)
    outcome = play(build(faults=(flip,), rounds_per_epoch=14, total_steps=15))
    assert get_events(outcome, types.Healing, "client-1")
    assert get_events(outcome, types.Healed, "client-1")
    assert is_finished(outcome)


def test_who_leaves_properly_is_missed_by_nobody() -> None:
    outcome = play(build(faults=(CleanExit(at_epoch=0, at_height=2, who=("client-3",), for_s=2.0),), total_steps=17))
    assert is_finished(outcome)
    assert get_events(outcome, types.Dropped) == []
    assert {e.event.epoch for e in get_events(outcome, types.ResultSent, "client-3")} == {0, 1}


def test_a_run_with_faults_repeats_byte_for_byte() -> None:
    faults = (
        Kill(at_s=9.0, who=("random:2",), for_s=3.0),
        Degrade(at_s=3.0, who=("random:2",), loss=0.3, jitter_s=0.2, for_s=20.0),
        Hang(at_s=14.0, who=("server",), for_s=2.0),
    )
    scenario = build(3, faults=faults, total_steps=12)
    assert simulate(scenario).entries == simulate(scenario).entries
