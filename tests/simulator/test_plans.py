"""Scenarios as data: drawn from seeds, written as TOML, read again, and made small."""

import dataclasses
import re
from collections import Counter
from pathlib import Path

import pytest

from psyche.errors import ConfigError
from psyche.simulator import faults, liars
from psyche.simulator.faults import Fault
from psyche.simulator.plan import read_scenario, write_scenario
from psyche.simulator.scenario import MachineClass, Scenario
from psyche.simulator.shrink import shrink
from psyche.simulator.swarm import draw_scenario


@pytest.mark.parametrize("seed", range(60))
def test_a_drawn_scenario_is_the_same_after_it_was_written_and_read(seed: int) -> None:
    scenario = draw_scenario(seed)
    assert read_scenario(write_scenario(scenario)) == dataclasses.replace(scenario, config=dict(scenario.config))


def test_a_seed_draws_the_same_scenario_every_time() -> None:
    assert draw_scenario(11) == draw_scenario(11)
    assert draw_scenario(11) != draw_scenario(12)


def test_all_kinds_of_faults_and_liars_are_drawn_by_some_seed() -> None:
    drawn = [draw_scenario(seed) for seed in range(600)]
    assert {fault.kind for one in drawn for fault in one.faults} == set(faults.KINDS)
    assert {liar.kind for one in drawn for liar in one.liars} == set(liars.KINDS)


def test_all_sizes_from_3_to_16_are_drawn_and_most_are_small() -> None:
    sizes = Counter(draw_scenario(seed).clients for seed in range(4_000))
    assert set(sizes) == set(range(3, 17))
    assert sum(sizes[size] for size in range(3, 7)) > 0.8 * sizes.total()
    for size in (10, 12, 16):
        assert 0.005 * sizes.total() < sizes[size] < 0.02 * sizes.total()


def test_never_more_than_a_third_of_the_members_lie() -> None:
    for seed in range(600):
        scenario = draw_scenario(seed)
        assert 3 * len(scenario.liars) <= scenario.clients - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sead = 1", "Scenario: sead is unknown"),
        ("[[fault]]\nkind = 'explode'", "fault: kind 'explode' is unknown"),
        ("[[fault]]\nkind = 'kill'\nwhom = ['all']", "fault kill: whom is unknown"),
        ("[[liar]]\nwho = 1\nkind = 'nice'", "liar: kind 'nice' is unknown"),
        ("[[liar]]\nkind = 'replay'", "missing 1 required keyword-only argument: 'who'"),
        ("[[class]]\ncount = 2\n[class.machine]\nspeed = 3", "MachineModel: speed is unknown"),
        ("seed = ", "scenario: Invalid value"),
    ],
)
def test_what_is_wrong_in_a_plan_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", "\\(")):
        read_scenario(text)


def test_shrinking_leaves_what_the_failure_needs() -> None:
    needed: tuple[Fault, ...] = (faults.BitFlip(who=("client-1",)), faults.Kill(who=("server",), for_s=2.0))
    others: tuple[Fault, ...] = tuple(faults.Hang(at_s=float(n), who=("all",), for_s=1.0) for n in range(5))
    scenario = Scenario(
        seed=4, classes=(MachineClass(count=6),), config={"total_steps": 30},
        faults=(*others[:3], needed[0], *others[3:], needed[1]),
    )  # fmt: skip
    smallest = shrink(scenario, lambda one: set(needed) <= set(one.faults) and one.clients >= 3)
    assert smallest.faults == needed
    assert smallest.clients == 3
    assert smallest.config["total_steps"] == 3


def test_the_plan_of_the_documentation_can_be_read() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "simulator.md").read_text()
    scenario = read_scenario(page.split("```toml\n")[1].split("```")[0])
    assert (scenario.clients, len(scenario.faults), len(scenario.liars)) == (5, 1, 1)
    assert scenario.classes[0].uplink.loss == 0.01
    named = re.findall(r'kind = "\w+" +# (.*)\n.*# (.*)\n', page)[0]
    assert set(re.findall(r"\w+", " ".join(named))) | {"kill"} == set(faults.KINDS)
