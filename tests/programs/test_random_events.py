"""Random events do the same to core and to the compiled rules: equal answers, and equal bytes after each."""

import pytest
from conformance_traces import TRACE_NAMES
from differential.backends import NoBackend, ProgramBackend
from differential.facts import NEEDED
from differential.pair import MEETABLE
from differential.players import Tally, play_events
from kits.tier import AMOUNTS, IS_WHOLE, TIERS

from psyche.core.rules.apply import KINDS
from psyche.core.state.state import RunState

SEEDS = range(TIERS["whole"].event_seeds)
MORE_SEEDS = (1010,)  # of events that go where those of SEEDS happen not to go
EVENTS = 5_000 if IS_WHOLE else 2_500  # of each seed


@pytest.mark.parametrize("seed", SEEDS[: AMOUNTS.event_seeds])
def test_random_events_do_the_same_to_core_and_to_the_compiled_rules(seed: int) -> None:
    tally = play_events(seed, EVENTS, ProgramBackend())
    assert tally.events >= EVENTS


@pytest.mark.whole
def test_random_events_go_everywhere() -> None:
    """Each refusal of each kind, each phase with each kind, and all that NEEDED names."""
    whole = Tally()
    for seed in (*SEEDS, *MORE_SEEDS):
        tally = play_events(seed, EVENTS, NoBackend())
        whole.seen += tally.seen
        whole.facts += tally.facts
    assert whole.facts.keys() >= NEEDED
    refused = {(TRACE_NAMES.get(seen.kind, seen.kind), seen.answer) for seen in whole.seen}
    assert refused >= MEETABLE
    assert {(seen.run_state, seen.kind) for seen in whole.seen} >= {
        (run_state.name, kind.name) for run_state in RunState for kind in KINDS
    }
    changed = {seen.kind for seen in whole.seen if seen.answer == "changed"}
    assert changed == {kind.name for kind in KINDS}
