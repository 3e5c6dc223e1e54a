"""What is told of a simulation that failed: how to see it again, what came before, what was wrong."""

import functools
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from kits.scripts import load
from scenarios.base import Size
from scenarios.named import SCENARIOS, get_command, play_named
from sim_kit import build

from psyche.forecast.inputs import load_scenario
from psyche.network.limits import NetworkLimits
from psyche.server.journal.journal import JournalDisk
from psyche.server.journal.recovery import OpenRun, recover
from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.disk import DiskHandle
from psyche.sim.faults import Kill, TornWrite
from psyche.sim.invariants import checker as invariants
from psyche.sim.invariants import recovery as recovery_check
from psyche.sim.scenarios.plan import read_scenario, write_scenario
from psyche.sim.scenarios.report import describe_replay
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.scenarios.swarm import draw_scenario
from psyche.sim.world import Outcome, World, simulate
from psyche.telemetry import types


def break_record(world: World) -> None:
    def see(_node: str, event: types.Event) -> None:
        if isinstance(event, types.Trained):
            world.invariants.fail("I2", "nothing", "something")

    world.trace.listeners.append(see)


def read_printed(text: str) -> Scenario:
    return read_scenario(text.split("# plan.toml begins\n")[1].split("# plan.toml ends\n", maxsplit=1)[0])


def test_a_failure_says_how_to_see_it_again_and_what_came_before() -> None:
    scenario = build(8)
    text = simulate(scenario, prepare=break_record).describe()
    assert text.startswith("seed 8: ")
    assert "save what follows as plan.toml, then python scripts/soak.py --plan plan.toml" in text
    assert read_printed(text) == scenario
    lines = text.splitlines()
    assert len([line for line in lines if line[:12].strip().replace(".", "").isdigit()]) == 50
    assert "violated I2 at epoch 0 " in text


def test_only_what_a_seed_draws_is_played_again_by_its_seed() -> None:
    drawn = draw_scenario(88)
    assert describe_replay(drawn) == ["replay: python scripts/soak.py --seed 88"]
    for other in (replace(drawn, respawn_s=1.0), replace(drawn, faults=drawn.faults[1:]), build(88)):
        text = "\n".join([*describe_replay(other), ""])
        assert "--seed" not in text
        assert read_printed(text) == replace(other, config=dict(other.config))


@pytest.mark.parametrize(
    "scenario",
    [
        replace(build(1, clients=7), limits=NetworkLimits(fetches=3)),
        build(
            2,
            faults=(Kill(at_height=2, who=("witnesses",), for_s=3.0),),
            byzantine=(ByzantineMember(who=1, kind="mute"),),
        ),
        build(3, cls={"has_model": False, "clock_s": -4.0}),
    ],
    ids=["limits", "faults", "classes"],
)
def test_a_plan_that_is_shown_says_all(scenario: Scenario) -> None:
    assert read_printed("\n".join([*describe_replay(scenario), ""])) == scenario


def test_what_no_plan_can_say_has_none() -> None:
    assert (
        "only the code that built it can play it again"
        in describe_replay(build(1, byzantine=(ByzantineMember(who=9, kind="mute"),)))[0]
    )


def test_a_plan_of_a_file_is_played_again_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a plan.toml"
    path.write_text(write_scenario(build(4)))
    assert describe_replay(load_scenario(path)) == [f"replay: python scripts/soak.py --plan '{path}'"]


@pytest.mark.parametrize("name", sorted(SCENARIOS))
@pytest.mark.parametrize("size", [Size(seed=7, clients=6, rounds=8), Size(clients=5, rounds=9, hours=2.0, points=3)])
def test_a_scenario_is_played_again_at_its_size(name: str, size: Size) -> None:
    script = load("named_scenarios")
    given = script.build_parser().parse_args(shlex.split(get_command(name, size))[2:])
    assert given.names == [name]
    assert script.get_size(name, given, given.seeds[0]) == size


def test_a_scenario_that_fails_says_how_to_play_it() -> None:
    outcome, judgement = play_named("F8", Size(clients=4, rounds=4, seed=3), prepare=break_record)
    assert not judgement.holds
    text = outcome.describe()
    assert text.startswith("F8 seed 3: ")
    assert "replay: python scripts/named_scenarios.py --names F8 --clients 4 --rounds 4 --seeds 3\n" in text


# --- what ends a simulation --------------------------------------------------------------------------------------


def build_torn() -> Scenario:
    """The server's disk fails within a write; the server comes back and goes on."""
    return build(1, clients=3, faults=(TornWrite(at_height=1, after_bytes=20, for_s=1.0),), total_steps=5)


def test_a_torn_tail_that_recovery_leaves_is_reported_with_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not simulate(build_torn()).violations
    monkeypatch.setattr(DiskHandle, "truncate", lambda *_arguments: None)
    (violation,) = simulate(build_torn()).violations
    assert violation.name == "I10"
    assert violation.expected.startswith("the files give epoch ")
    assert violation.found.startswith("recovery ends with JournalError(")


def test_a_record_that_is_not_in_the_files_is_reported_with_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(disk: JournalDisk) -> OpenRun | None:
        found = recover(disk)
        if found is not None:
            found.state.progress.step += 1
        return found

    monkeypatch.setattr(recovery_check, "recover", forget)
    (violation,) = simulate(build(total_steps=3)).violations
    assert (violation.name, " step 3, " in violation.expected, " step 4, " in violation.found) == ("I10", True, True)


def break_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks themselves end with an error, once a client has been killed."""

    def fail(checks: invariants.Invariants) -> None:
        if any(host.lives > 1 for host in checks.world.clients):
            raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(invariants.Invariants, "check_end", fail)


def test_an_error_that_ends_a_simulation_says_what_a_violation_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_checks(monkeypatch)
    soak = load("soak")
    scenario = build(faults=(Kill(at_s=9.0, who=("client-1",), for_s=2.0),), total_steps=4)
    monkeypatch.setattr(soak, "draw_scenario", lambda seed: scenario.with_origin(f"--seed {seed}"))
    text = soak.play_seed(9).failure
    assert text.startswith("seed 1: the simulation itself failed: ZeroDivisionError('on purpose')\nreplay: --seed 9\n")
    lines = text.splitlines()
    assert len([line for line in lines if line[:12].strip().replace(".", "").isdigit()]) == 50
    assert lines[-1] == "ZeroDivisionError: on purpose"
    assert soak.play_one(scenario, is_shrunk=False, events=None) == 1
    assert "# plan.toml begins" in capsys.readouterr().out


def test_a_plan_that_ends_with_an_error_is_made_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_checks(monkeypatch)
    kills = tuple(Kill(at_s=at, who=(who,), for_s=2.0) for at, who in ((9.0, "client-1"), (6.0, "server")))
    scenario = build(faults=kills, clients=3, total_steps=3, init_min_clients=3)
    monkeypatch.setattr("psyche.sim.shrink.simulate", functools.partial(simulate_briefly, []))
    assert load("soak").play_one(scenario, is_shrunk=True, events=None) == 1
    smallest = read_scenario(capsys.readouterr().out.split("that still fails:\n")[1])
    assert smallest.faults == kills[:1]


def simulate_briefly(tries: list[Scenario], scenario: Scenario, **options: bool) -> Outcome:
    """The first tries of the shrinker, and nothing fails after them."""
    tries.append(scenario)
    if len(tries) > 3:
        return simulate(build(total_steps=1), **options)
    return simulate(scenario, **options)


def test_an_error_in_a_world_that_cannot_be_drawn_has_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    soak = load("soak")
    monkeypatch.setattr(soak, "draw_scenario", {}.__getitem__)
    text = soak.play_seed(9).failure
    replay = "replay: python scripts/soak.py --backend tcp --seed 9"
    assert text.startswith(f"seed 9: the simulation itself failed: KeyError(9)\n{replay}")
