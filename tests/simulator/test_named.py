"""The named scenarios, small: each reaches its figure, and no invariant is violated."""

import itertools
from dataclasses import replace

import pytest
from sim_kit import build, play

from psyche.core.state import RunState
from psyche.simulator.faults import Kill
from psyche.simulator.named import ROWS, Size, get_events
from psyche.simulator.world import simulate

SMALL = Size(seed=1, clients=7, rounds=10)


@pytest.mark.parametrize("row", sorted(ROWS))
def test_a_named_scenario_reaches_its_figure(row: str) -> None:
    named = ROWS[row]
    outcome = simulate(named.build(SMALL))
    assert not outcome.violations, outcome.describe()
    judgement = named.judge(outcome, SMALL)
    assert judgement.holds, f"{row}, {named.title}: expected {named.expected}, seen {judgement.seen}"


def find_moments() -> list[float]:
    """F2: every moment of one round at which a client does or is told something."""
    quiet = play(build(1, clients=3, total_steps=6))
    starts = {e["height"]: e["t"] for e in get_events(quiet, "round_started", "client-1") if e["epoch"] == 0}
    events = [e for line_kind in ("trained", "result_sent", "payload_received", "applied", "decided", "witness_sent")
              for e in get_events(quiet, line_kind, "client-1")]  # fmt: skip
    return sorted({e["t"] for e in events if starts[2] <= e["t"] < starts[3]})


def test_a_client_killed_at_any_moment_of_a_round_stalls_nobody_beyond_a_deadline() -> None:
    moments = find_moments()
    assert len(moments) >= 5
    for at_s in moments:
        scenario = build(1, clients=3, total_steps=6, faults=(Kill(at_s=at_s + 1e-4, who=("client-1",)),))
        outcome = play(replace(scenario, respawn_s=0.0))
        assert outcome.state.run_state is RunState.FINISHED, f"killed at {at_s} s"
        limit_s = outcome.state.config.max_round_train_time + outcome.state.config.round_witness_time
        times = [e["t"] for e in get_events(outcome, "state_changed", "server") if e["run_state"] == "round_train"]
        longest_s = max(b - a for a, b in itertools.pairwise(times))
        assert longest_s <= limit_s + 1, f"killed at {at_s} s"
