"""One fault of each kind: what it does to a run, and that the run bears it."""

from collections.abc import Iterable
from itertools import permutations

import pytest
import trio
from kits.tier import few
from scenarios.base import get_events, get_ledger
from sim_kit import build, play

from psyche.core.state.state import RunState
from psyche.sim.faults import (
    BitFlip,
    CleanExit,
    ClockJump,
    DataTrouble,
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

FINISHED = RunState.FINISHED
LONG = {"total_steps": 17}  # two epochs


@pytest.fixture(scope="module")
def quiet() -> Outcome:
    return play(build())


def play_fault(*faults: Fault, **config: int) -> Outcome:
    outcome = play(build(faults=faults, **config))
    assert outcome.state.run_state is FINISHED
    return outcome


def get_sent(outcome: Outcome, name: str) -> set[int]:
    return {e.event.epoch for e in get_events(outcome, types.ResultSent, name)}


@pytest.mark.parametrize(
    ("fault", "config"),
    [
        (SlowDisk(at_s=4.0, who=("server", "client-1"), sync_s=0.4, for_s=30.0), {}),
        (Hang(at_epoch=0, at_height=2, who=("server",), for_s=9.0), {}),
        (ClockJump(at_s=0.0, who=("client-0", "client-1"), offset_s=-300.0), {}),
        (DiskFull(at_epoch=0, at_height=2, who=("client-0",), for_s=5.0), LONG),
        (DataTrouble(at_s=4.0, who=("all",), delay_s=0.5, for_s=20.0), {}),
    ],
    ids=["slow disk", "the server stands still", "clocks are off", "a client's disk is full", "data comes late"],
)
def test_what_only_delays_drops_nobody(fault: Fault, config: dict[str, int], quiet: Outcome) -> None:
    outcome = play_fault(fault, **config)
    assert (outcome.facts["dropped"], outcome.codes) == ({}, (0, 0, 0, 0))
    if isinstance(fault, SlowDisk):
        assert outcome.simulated_s > quiet.simulated_s + 0.4
    if isinstance(fault, DiskFull):
        assert any("No space left" in e.event.message for e in get_events(outcome, types.Error, "client-0"))


@pytest.mark.whole
@pytest.mark.parametrize(
    "fault",
    few(
        [
            Kill(at_epoch=0, at_height=2, who=("client-1",), for_s=1.0),
            CleanExit(at_epoch=0, at_height=2, who=("client-1",), for_s=2.0),
            TrainerCrash(at_epoch=0, at_height=2, who=("client-1",)),
            TrainerHang(at_epoch=0, at_height=2, who=("client-1",), for_s=6.0),
            Hang(at_epoch=0, at_height=2, who=("client-1",), for_s=30.0),
            *(
                Partition(at_epoch=0, at_height=1, groups=(("client-1",), ("server", "all")), silent=silent, for_s=25.0)
                for silent in (True, False)
            ),
        ],
        2,
    ),
    ids=lambda fault: fault.kind,
)
def test_who_is_lost_for_a_while_costs_its_epoch_and_is_there_in_the_next(fault: Fault) -> None:
    outcome = play_fault(fault, **LONG)
    assert outcome.codes == (0, 0, 0, 0)
    assert get_sent(outcome, "client-1") == {0, 1}
    if isinstance(fault, Kill):
        assert get_events(outcome, types.Withdrew, "client-1"), "M9: a restarted member withdraws before anything else"
    if isinstance(fault, CleanExit):
        assert get_events(outcome, types.Dropped) == [], "nobody misses who leaves properly"
    if isinstance(fault, Hang):
        sent = [e.event for e in get_events(outcome, types.ResultSent, "client-1")]
        assert [one for one in sent if one.epoch == 0 and one.height > 3] == []


@pytest.mark.whole
@pytest.mark.parametrize("who", few(["client-1", "all"]))
def test_a_round_whose_data_is_away_is_skipped_and_the_next_one_filled(who: str) -> None:
    """F22: nobody trains on anything else meanwhile, and says why it sends nothing."""
    outcome = play_fault(DataTrouble(at_epoch=0, at_height=2, who=(who,), is_away=True, for_s=30.0), **LONG)
    unsent = [e.event for e in get_events(outcome, types.NotSent, "client-1")]
    sent = [(e.event.epoch, e.event.height) for e in get_events(outcome, types.ResultSent, "client-1")]
    assert unsent
    assert all("did not arrive" in event.reason or "round ended" in event.reason for event in unsent)
    assert sent[0] == (0, 0)
    assert (0, 3) not in sent
    assert sent[-1][0] >= 1


def test_a_client_whose_disk_is_lost_is_given_the_weights_by_its_peers() -> None:
    kill = Kill(at_epoch=0, at_height=3, who=("client-2",), for_s=0.5, erase=True)
    sources = [e.event.source for e in get_events(play_fault(kill, **LONG), types.ModelLoaded, "client-2")]
    assert sources[0] == "configured source"
    assert types.WeightSource.PEERS in sources


@pytest.mark.parametrize("seq", few([14, 31, 2, 9, 23], 2))
def test_a_server_killed_after_any_record_goes_on_from_it(seq: int) -> None:
    assert get_events(play_fault(Kill(at_seq=seq, who=("server",), for_s=4.0)), types.ServerRecovered)


@pytest.mark.parametrize("after_bytes", few([40, 700, 0, 1, 1_500], 2))
def test_a_server_that_fails_within_a_write_loses_nothing_that_it_promised(after_bytes: int) -> None:
    outcome = play_fault(TornWrite(at_epoch=0, at_height=1, after_bytes=after_bytes, for_s=2.0))
    assert [seen.event.who for seen in get_events(outcome, types.Killed)] == ["server"]
    assert outcome.facts["dropped"] == {}
    notes = [one.event.note for one in get_events(outcome, types.JournalNote)]
    assert ["torn tail" in note for note in notes] == [True] * bool(after_bytes)


def test_a_full_disk_stops_the_server_and_it_goes_on_when_there_is_room() -> None:
    outcome = play_fault(DiskFull(at_epoch=0, at_height=2, who=("server",), for_s=12.0))
    assert "the disk failed" in get_events(outcome, types.ProcessFailed, "server")[0].event.error


def play_until_end(*faults: Fault) -> World:
    worlds: list[World] = []
    outcome = simulate(build(faults=faults, total_steps=30), prepare=worlds.append)
    assert not outcome.violations, outcome.describe()
    assert len(get_events(outcome, types.FaultOver)) == len(faults)
    return worlds[0]


@pytest.mark.whole
def test_faults_of_one_kind_that_overlap_leave_the_disk_as_it_was() -> None:
    slow = [SlowDisk(at_s=at, who=("server",), sync_s=s, for_s=for_s) for at, s, for_s in ((2, 0.2, 5), (4, 0.1, 8))]
    full = [DiskFull(at_s=at, who=("server",), for_s=for_s) for at, for_s in ((14.0, 2.0), (15.0, 4.0))]
    world = play_until_end(*slow, *full)
    assert world.server.disk.write_s == world.scenario.sync_s
    assert not world.server.disk.is_full


@pytest.mark.whole
def test_who_is_stopped_twice_stands_still_until_both_are_over() -> None:
    hangs = [Hang(at_s=at, who=("client-1",), for_s=for_s) for at, for_s in ((6.0, 4.0), (8.0, 9.0))]
    outcome = play(build(faults=tuple(hangs), total_steps=30))
    assert [get_events(outcome, one, "world")[0].t for one in (types.Stopped, types.Resumed)] == [6.0, 17.0]


@pytest.mark.whole
def test_two_torn_writes_that_wait_at_once_are_one_failure() -> None:
    world = play_until_end(*(TornWrite(at_s=6.0, after_bytes=left, for_s=2.0) for left in (9_000, 100)))
    assert (world.server.lives, world.under_way) == (2, [])


def test_the_slowest_member_keeps_its_place_when_it_was_not_heard_in_one_round() -> None:
    """A1: the next rounds wait for it again; else it would be late in three of them, and have a strike."""
    quick, slow = (MachineModel(sample_s=sample_s, spread=0.02) for sample_s in (5.0, 6.5))
    apart = (("client-3",), ("client-0", "client-1", "client-2"))
    scenario = Scenario(
        seed=1, classes=(MachineClass(count=3, machine=quick), MachineClass(machine=slow)),
        faults=(Partition(at_epoch=0, at_height=2, groups=apart, for_s=15.2, silent=True),),
        config={"total_steps": 9, "init_min_clients": 4, "max_round_train_time": 60},
    )  # fmt: skip
    outcome = play(scenario)
    assert outcome.state.run_state is FINISHED
    assert get_events(outcome, types.Dropped) == []
    assert get_ledger(outcome).epochs[0].credits == {f"client-{number}": 8 for number in range(4)}


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
    outcome = play_fault(Degrade(at_s=2.0, who=("all",), loss=0.2, duplicate=0.3, jitter_s=0.4, for_s=60.0))
    applied = {e.event.height: e.event.count for e in get_events(outcome, types.Applied) if e.event.update}
    assert list(applied.values()) == [4] * 8, "no round is void"


def test_a_server_whose_clock_jumps_while_it_runs_does_not_notice(quiet: Outcome) -> None:
    jumps = (
        ClockJump(at_s=6.0, who=("server",), offset_s=300.0, for_s=3.0),
        ClockJump(at_s=12.0, who=("server",), offset_s=-300.0),
    )
    jumping = play_fault(*jumps)
    assert get_events(jumping, types.StateChanged, "server") == get_events(quiet, types.StateChanged, "server")


def test_a_server_that_restarts_with_its_clock_set_back_waits_for_nothing() -> None:
    back = ClockJump(at_epoch=0, at_height=2, who=("server",), offset_s=-300.0)
    kill = Kill(at_epoch=0, at_height=3, who=("server",), for_s=2.0)
    assert play_fault(back, kill).simulated_s < 120


def test_a_wrong_weight_is_noticed_and_healed() -> None:
    flip = BitFlip(at_epoch=0, at_height=3, who=("client-1",), place=17)
    outcome = play_fault(flip, rounds_per_epoch=14, total_steps=15)
    assert get_events(outcome, types.Healing, "client-1")
    assert get_events(outcome, types.Healed, "client-1")
