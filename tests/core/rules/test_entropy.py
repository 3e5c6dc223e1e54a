"""What a tick on a chain gets as entropy (E4)."""

import pytest

from psyche.core.committee.seeds import EXPIRED
from psyche.core.rules.rounds import RECORDED_SLOTS, find_entropy
from psyche.core.state.state import Coordinator, RunState
from psyche.testing.builders import build_hash

ARMED = 1_000


def build_state(run_state: RunState = RunState.WARMUP, armed: int = ARMED) -> Coordinator:
    state = Coordinator(run_state=run_state)
    state.current.entropy_slot = armed
    return state


def record(*slots: int) -> list[tuple[int, bytes]]:
    return [(slot, build_hash(slot)) for slot in slots]


@pytest.mark.parametrize("run_state", [RunState.WARMUP, RunState.ROUND_WITNESS])
def test_it_is_the_hash_of_the_first_recorded_slot_from_the_armed_one_on(run_state: RunState) -> None:
    state = build_state(run_state)
    assert find_entropy(state, record(998, ARMED, 1_001)) == build_hash(ARMED)
    assert find_entropy(state, record(998, 1_002, 1_003)) == build_hash(1_002), "skipped slots have no hash"


@pytest.mark.parametrize("recorded", [(), (998, 999)])
def test_there_is_none_before_the_armed_slot_is_recorded(recorded: tuple[int, ...]) -> None:
    assert find_entropy(build_state(), record(*recorded)) is None


def test_there_is_none_where_no_seed_is_due() -> None:
    assert find_entropy(build_state(RunState.ROUND_TRAIN), record(ARMED)) is None
    assert find_entropy(build_state(armed=0), record(ARMED)) is None


def test_a_slot_that_the_chain_has_forgotten_is_expired() -> None:
    kept = range(ARMED + 1, ARMED + 1 + RECORDED_SLOTS)
    assert find_entropy(build_state(), record(*kept)) is EXPIRED
    assert find_entropy(build_state(), record(*kept[:-1])) == build_hash(ARMED + 1), "a young chain forgets nothing"
    assert find_entropy(build_state(), record(ARMED, *kept[:-1])) == build_hash(ARMED)
