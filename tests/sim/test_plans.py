"""Scenarios as data: drawn from seeds, written as TOML, read again, and made small."""

import dataclasses
import re
from collections import Counter
from pathlib import Path

import pytest

from psyche.errors import ConfigError
from psyche.network.limits import NetworkLimits
from psyche.sim import faults
from psyche.sim.byzantine import programs
from psyche.sim.byzantine.program import ByzantineMember
from psyche.sim.faults import CHAIN_KINDS, Fault
from psyche.sim.scenarios.plan import read_scenario, write_scenario
from psyche.sim.scenarios.scenario import MachineClass, Scenario
from psyche.sim.scenarios.swarm import draw_chain_scenario, draw_scenario
from psyche.sim.shrink import shrink


@pytest.mark.parametrize("seed", range(60))
def test_a_drawn_scenario_is_the_same_after_it_was_written_and_read(seed: int) -> None:
    scenario = draw_scenario(seed)
    assert read_scenario(write_scenario(scenario)) == dataclasses.replace(scenario, config=dict(scenario.config))


def test_limits_and_any_name_are_the_same_after_they_were_written_and_read() -> None:
    limits = NetworkLimits(fetches=3, hello_s=1.5)
    for name in ("F8", 'two\nlines, "quoted"', "caf\u00e9 \U0001f600"):
        scenario = Scenario(seed=3, name=name, limits=limits)
        assert read_scenario(write_scenario(scenario)) == scenario


def test_a_plan_of_a_run_that_verifies_local_steps_is_the_same_after_it_was_written_and_read() -> None:
    cheat = ByzantineMember(who=1, kind="lazy")
    config = {"verification_percent": 25, "convict": True}
    scenario = Scenario(config=config, byzantine=(cheat,), inner_steps=8)
    assert read_scenario(write_scenario(scenario)) == scenario


def test_a_seed_draws_the_same_scenario_every_time() -> None:
    assert draw_scenario(11) == draw_scenario(11)
    assert draw_scenario(11) != draw_scenario(12)


def test_all_kinds_of_faults_and_liars_are_drawn_by_some_seed() -> None:
    drawn = [draw_scenario(seed) for seed in range(600)]
    assert {fault.kind for one in drawn for fault in one.faults} == set(faults.KINDS)
    assert {liar.kind for one in drawn for liar in one.byzantine} == set(programs.KINDS)


def test_all_faults_of_a_chain_are_drawn_by_some_seed_and_can_be_played() -> None:
    drawn = [draw_chain_scenario(seed) for seed in range(300)]
    assert {fault.kind for one in drawn for fault in one.faults} > set(CHAIN_KINDS)
    without_effect = "degrade"  # some of these are drawn with nothing to do, which a plan may not have
    playable = [one for one in drawn[:80] if all(fault.kind != without_effect for fault in one.faults)]
    assert len(playable) > 40
    for scenario in playable:
        assert read_scenario(write_scenario(scenario)) == scenario


def test_all_sizes_from_3_to_16_are_drawn_and_most_are_small() -> None:
    sizes = Counter(draw_scenario(seed).clients for seed in range(4_000))
    assert set(sizes) == set(range(3, 17))
    assert sum(sizes[size] for size in range(3, 7)) > 0.8 * sizes.total()
    for size in (10, 12, 16):
        assert 0.005 * sizes.total() < sizes[size] < 0.02 * sizes.total()


def test_never_more_than_a_third_of_the_members_lie() -> None:
    for seed in range(600):
        scenario = draw_scenario(seed)
        assert 3 * len(scenario.byzantine) <= scenario.clients - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sead = 1", "Scenario: sead is unknown"),
        ("[[fault]]\nkind = 'explode'", "fault[0]: kind 'explode' is unknown"),
        ("[[fault]]\nkind = 'kill'\nwhom = ['all']", "fault[0]: whom is unknown in a kill"),
        ("[[byzantine]]\nwho = 1\nkind = 'nice'", "byzantine: kind 'nice' is unknown"),
        ("[[byzantine]]\nkind = 'replay'", "missing 1 required keyword-only argument: 'who'"),
        ("[[class]]\ncount = 2\n[class.machine]\nspeed = 3", "MachineModel: speed is unknown"),
        ("seed = ", "scenario: Invalid value"),
        ("inner_steps = 1000000", "inner_steps is 1000000, must be at most 2048"),
        ("weight_parts = 3", "weight_parts is 3, must be a divisor of 256, 1 to 99"),
        ("must_advance = 1", "must_advance is 1, must be true or false"),
        ("limit_s = -1", "limit_s is -1, must be a number of seconds, at least 0"),
        ("limits = {hello = 1}", "NetworkLimits: hello is unknown"),
        ("[limits]\nfetches = 0", "limits: fetches is 0, must be above 0"),
        ("origin = 'here'", "Scenario: origin is unknown"),
        ("fault = 3", "fault: must be [[fault]] tables"),
        ("class = []", "the sum of count over all [[class]] is 0, must be 1 to 1000 clients"),
        ("[[class]]\ncount = 4\nmachine = {spread = 2.0}", "class[0]: machine: spread is 2.0, must be a share"),
        ("[[class]]\ncount = 4\nuplink = {bandwidth_bytes_s = 0}", "class[0]: uplink: bandwidth_bytes_s is 0, must"),
        ("config = 3", "config: [config] is 3, must be a table"),
        ("[config]\nfoo = 3", "config: foo: unknown key; known are"),
        ("[config]\ntotal_steps = 0", "config.total_steps: must not be zero"),
        ("[config]\ninit_min_clients = 5", "config: init_min_clients is 5, but the scenario has only 4 clients"),
        ("[[byzantine]]\nwho = 99\nkind = 'replay'", "byzantine[0]: who is 99, must be the number of a client, 0 to 3"),
        (
            "[[byzantine]]\nwho = 1\nkind = 'replay'\nshare = 1.5",
            "byzantine[0]: share is 1.5, must be a share from 0 to 1",
        ),
        (
            "[[fault]]\nkind = 'kill'\nwho = ['client-77']",
            "fault[0]: who: 'client-77' is not a machine; write server, client-0",
        ),
    ],
)
def test_what_is_wrong_in_a_plan_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_scenario(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind = 'kill'", "who is [], must be a list of machines"),
        ("kind = 'kill'\nwho = 'client-1'", "who is 'client-1', must be a list of machines, as in"),
        ("kind = 'kill'\nwho = ['random:0']", "who: 'random:0' is not a machine"),
        ("kind = 'kill'\nwho = ['all']\nat_s = nan", "at_s is nan, must be a number of seconds"),
        (f"kind = 'kill'\nwho = ['all']\nat_s = 1{'0' * 400}", "at_s is 1000"),
        ("kind = 'kill'\nwho = ['all']\nat_height = -2", "at_height is -2, must be a whole number, at least -1"),
        ("kind = 'leave'\nwho = ['server']", "who: a leave can hit clients only, not the server"),
        ("kind = 'hang'\nwho = ['all']", "for_s is 0.0, must be above 0: a hang of 0 s has no effect"),
        ("kind = 'degrade'\nwho = ['all']\nloss = 1.5", "loss is 1.5, must be a share from 0 to 1"),
        ("kind = 'degrade'\nwho = ['all']\nfor_s = 1", ": at least one must be above 0"),
        ("kind = 'degrade'\nwho = ['all']\nfor_s = 1\nloss = 0.5\nup = false\ndown = false", "up, down: "),
        ("kind = 'clock'\nwho = ['all']", "offset_s is 0.0, must be a number other than 0"),
        ("kind = 'partition'\nfor_s = 1", "groups is [], must be two lists of machines or more"),
        ("kind = 'partition'\ngroups = [['all'], ['all']]\nfor_s = 1", "[['all'], ['all']], must be groups that"),
        ("kind = 'partition'\ngroups = [['all'], ['him']]\nfor_s = 1", "groups: 'him' is not a machine"),
    ],
)
def test_a_fault_that_is_impossible_or_does_nothing_is_refused_with_its_field(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as found:
        read_scenario(f"[[fault]]\n{text}\n")
    assert str(found.value).startswith("fault[0]: ")


def test_what_can_happen_to_the_server_and_clocks_of_both_signs_are_played() -> None:
    kinds = ("kill", "hang", "degrade", "clock", "disk_full", "slow_disk")
    text = "".join(f"[[fault]]\nkind = '{kind}'\nwho = ['server']\nfor_s = 1\n" for kind in kinds)
    text = text.replace("'clock'\n", "'clock'\noffset_s = -300\n")
    scenario = read_scenario(text.replace("'degrade'\n", "'degrade'\nloss = 0.1\n"))
    assert [fault.kind for fault in scenario.faults] == list(kinds)


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
    assert (scenario.clients, len(scenario.faults), len(scenario.byzantine)) == (5, 1, 1)
    assert scenario.classes[0].uplink.loss == 0.01
    named = re.findall(r'kind = "\w+" +# (.*)\n.*# (.*)\n', page)[0]
    assert set(re.findall(r"\w+", " ".join(named))) | {"kill"} == set(faults.KINDS)
