"""Random members in runs of any size keep the invariants that the model checker demands of small worlds."""

from collections import Counter

import pytest
from differential import pair, worlds
from differential.backends import NoBackend
from differential.pair import Event, apply_to_core
from differential.players import play_events
from kits.tier import few
from model_checker import invariants
from model_checker.forms import build_copy

from psyche.core.state.messages import Update
from psyche.core.state.state import Coordinator, RunState

EVENTS, BYTES_EVERY = 1_000, 20


@pytest.mark.parametrize("seed", few(range(4), 2))
def test_random_members_break_no_invariant(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Counter[RunState]()

    def apply_checked(state: Coordinator, event: Event) -> tuple[int, bool]:
        before = build_copy(state)
        answer, changed = apply_to_core(state, event)
        if not changed:
            assert state == before, "T2: what has no effect changes nothing"
        elif not isinstance(event.message, Update):  # an owner may set what no rule would
            checked[state.run_state] += 1
            invariants.check_step(before, state)
            if state.in_round or state.run_state is RunState.COOLDOWN:
                invariants.check_one_winner(state.current)
                invariants.check_records(state)
            invariants.check_credits(state)
            invariants.check_counters(state)
            invariants.check_slots(state)
            if checked.total() % BYTES_EVERY == 0:
                invariants.check_bytes(state)
        return answer, changed

    monkeypatch.setattr(pair, "apply_to_core", apply_checked)
    monkeypatch.setattr(worlds, "ODD_SHARE", 0)  # what no run can come to may begin with a broken invariant
    play_events(seed, EVENTS, NoBackend())
    assert checked.total() > EVENTS // 4
    assert checked[RunState.ROUND_TRAIN] > EVENTS // 20
