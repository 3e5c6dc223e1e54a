"""The entropy of a tick on a chain: the hash of the first recorded slot from the armed one on (E1, E2)."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.runs import Run, build_training
from kits.tier import draw
from programs.chain_kit import RECORDED_SLOTS, ChainStage
from solders.hash import Hash

from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.rules.apply import apply
from psyche.core.state.messages import Tick
from psyche.core.state.state import ZERO32, RunState
from psyche.testing.builders import build_hash

ARMED = 5_000
NOW_SLOT = ARMED + 2_000


@pytest.fixture(scope="module")
def run() -> Run:
    """A run in RoundWitness whose round may close, armed for `ARMED`."""
    run = build_training(3, entropy_delay=4)
    run.witness_all()
    run.apply(Tick(None))
    assert run.state.run_state is RunState.ROUND_WITNESS
    run.state.current.entropy_slot = ARMED
    return run


@pytest.fixture(scope="module")
def stage() -> ChainStage:
    return ChainStage()


def tick(stage: ChainStage, run: Run, slots: list[int]) -> bytes:
    """The account after a tick on a chain that has recorded these slots, newest first."""
    stage.put(run.state)
    stage.set_clock(run.unix, NOW_SLOT)
    stage.bank.svm.set_slot_hashes([(slot, Hash(build_hash(slot))) for slot in slots])
    stage.bank.send(stage.build(ZERO32, Tick(None)))
    return stage.raw


def tick_by_core(run: Run, entropy: Entropy) -> bytes:
    state = decode_state(encode_state(run.state))
    apply(state, run.unix, NOW_SLOT, ZERO32, Tick(entropy))
    return encode_state(state)


def find(slots: list[int]) -> Entropy:
    """What E2 says of a record, newest slot first."""
    later = [slot for slot in slots if slot >= ARMED]
    if not later:
        return None
    return EXPIRED if len(slots) == RECORDED_SLOTS and slots[-1] > ARMED else build_hash(min(later))


def count_down(newest: int, number: int, step: int = 1) -> list[int]:
    return [newest - step * n for n in range(number)]


@pytest.mark.parametrize(
    "slots",
    [
        pytest.param([], id="nothing is recorded"),
        pytest.param(count_down(ARMED - 1, 512), id="the armed slot is to come"),
        pytest.param(count_down(ARMED, 512), id="the armed slot is the newest"),
        pytest.param(count_down(ARMED + 511, 512), id="the armed slot is the oldest"),
        pytest.param(count_down(ARMED + 512, 512), id="the record has just forgotten the armed slot"),
        pytest.param(count_down(ARMED + 1_900, 512), id="the record is long past the armed slot"),
        pytest.param(count_down(ARMED + 200, 512), id="the armed slot lies within"),
        pytest.param(count_down(ARMED + 201, 512, 2), id="the armed slot was skipped"),
        pytest.param(count_down(ARMED + 511, 511), id="a young chain began after the armed slot"),
        pytest.param([ARMED + 7], id="one slot, after the armed one"),
        pytest.param([ARMED - 1], id="one slot, before the armed one"),
    ],
)
def test_a_tick_takes_the_first_recorded_slot_from_the_armed_one_on(
    stage: ChainStage, run: Run, slots: list[int]
) -> None:
    assert tick(stage, run, slots) == tick_by_core(run, find(slots))


@settings(max_examples=draw(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(ARMED - 700, ARMED + 1_200), max_size=512))
def test_any_record_gives_what_a_scan_of_it_finds(stage: ChainStage, run: Run, slots: set[int]) -> None:
    record = sorted(slots, reverse=True)
    assert tick(stage, run, record) == tick_by_core(run, find(record))
