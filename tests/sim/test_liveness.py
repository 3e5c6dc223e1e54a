"""What a run owes its clients is demanded: a run that withholds it violates I5."""

from pathlib import Path
from typing import Any

import pytest
from scenarios.base import get_events
from sim_kit import build, play

from psyche.client.engine.healing import Healing
from psyche.forecast.inputs import load_scenario
from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.faults import BitFlip
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.world import Violation, simulate
from psyche.telemetry import types

FLIP = BitFlip(at_epoch=0, at_height=2, who=("client-1",), place=3)


def find_first(scenario: Scenario) -> Violation:
    found = simulate(scenario).violations
    assert found, "nothing is violated"
    return found[0]


def build_flipped() -> Scenario:
    return build(faults=(FLIP,), total_steps=20, rounds_per_epoch=20)


def test_a_flipped_weight_is_healed_within_the_epoch() -> None:
    outcome = play(build_flipped())
    assert get_events(outcome, types.Healed)
    assert outcome.facts["dropped"] == {}


def test_a_client_that_never_heals_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Healing, "act", lambda _healing, _now: None)
    first = find_first(build_flipped())
    assert (first.name, first.expected) == ("I5", "client-1 has the agreed weights again within 3 agreed digests")


def test_a_client_that_leaves_where_it_could_heal_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Healing, "_replay", lambda healing, reason: healing.give_up(types.LeaveCause.WRONG_WEIGHTS, reason)
    )
    first = find_first(build_flipped())
    assert (first.name, first.expected) == ("I5", "client-1 heals as a member")


def test_epochs_that_are_given_up_one_after_the_other_are_reported() -> None:
    """Two of four leave every epoch without its end: no quorum certifies anything, and rounds go by for ever."""
    liars = tuple(ByzantineMember(who=number, kind="no_end") for number in (2, 3))
    times: dict[str, Any] = {"max_round_train_time": 10, "round_witness_time": 4, "warmup_time": 10, "cooldown_time": 2}
    scenario = build(byzantine=liars, total_steps=1_000, rounds_per_epoch=4, init_min_clients=2, **times)
    first = find_first(scenario)
    assert (first.name, first.expected) == ("I5", "newly certified weights")


def test_a_run_whose_only_proven_member_lies_may_stand_still() -> None:
    """M10: newcomers are as many as the proven members, so one of an epoch's two members lies."""
    outcome = play(load_scenario(Path(__file__).with_name("corpus") / "the-only-proven-member-lies.toml"))
    (told,) = get_events(outcome, types.RunLost)
    assert "too many of the proven members lie" in told.event.why
