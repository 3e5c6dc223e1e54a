"""What is told of a simulation that failed: how to see it again, what came before, what was wrong."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from script_kit import load
from sim_kit import build

from psyche.network.limits import NetworkLimits
from psyche.simulator.faults import Kill
from psyche.simulator.inputs import load_scenario
from psyche.simulator.liars import Liar
from psyche.simulator.named import ROWS, get_command, play_row
from psyche.simulator.plan import read_scenario, write_scenario
from psyche.simulator.report import describe_replay
from psyche.simulator.row import Size
from psyche.simulator.scenario import Scenario
from psyche.simulator.swarm import draw_scenario
from psyche.simulator.world import World, simulate


def break_record(world: World) -> None:
    """Something is wrong as soon as anybody trains."""

    def see(_node: str, kind: str, _fields: Mapping[str, object]) -> None:
        if kind == "trained":
            world.invariants.fail("I2", "nothing", "something")

    world.trace.listeners.append(see)


def read_printed(text: str) -> Scenario:
    """The plan that a report shows."""
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
        build(2, faults=(Kill(at_height=2, who=("witnesses",), for_s=3.0),), liars=(Liar(who=1, kind="mute"),)),
        build(3, cls={"has_model": False, "clock_s": -4.0}),
    ],
    ids=["limits", "faults", "classes"],
)
def test_a_plan_that_is_shown_says_all(scenario: Scenario) -> None:
    assert read_printed("\n".join([*describe_replay(scenario), ""])) == scenario


def test_what_no_plan_can_say_has_none() -> None:
    assert "can only be played by the code" in describe_replay(build(1, liars=(Liar(who=9, kind="mute"),)))[0]


def test_a_plan_of_a_file_is_played_again_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a plan.toml"
    path.write_text(write_scenario(build(4)))
    assert describe_replay(load_scenario(path)) == [f"replay: python scripts/soak.py --plan '{path}'"]


@pytest.mark.parametrize("row", sorted(ROWS))
@pytest.mark.parametrize("size", [Size(seed=7, clients=6, rounds=8), Size(clients=5, rounds=9, hours=2.0, points=3)])
def test_a_row_is_played_again_at_its_size(row: str, size: Size) -> None:
    rows = load("rows")
    given = rows.build_parser().parse_args(shlex.split(get_command(row, size))[2:])
    assert given.rows == [row]
    assert rows.get_size(row, given, given.seeds[0]) == size


def test_a_row_that_fails_says_how_to_play_it() -> None:
    outcome, judgement = play_row("F8", Size(clients=4, rounds=4, seed=3), prepare=break_record)
    assert not judgement.holds
    text = outcome.describe()
    assert text.startswith("F8 seed 3: ")
    assert "replay: python scripts/rows.py --rows F8 --clients 4 --rounds 4 --seeds 3\n" in text
