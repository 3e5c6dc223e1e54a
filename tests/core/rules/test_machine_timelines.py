"""The timelines of section 4, driven through the state machine by honest members: 1, 2 and 3 data rounds.

Every row also carries c(h), the chain of what was applied, as a hash over the decided sets: the
members' digests are made of it, so a set applied in the wrong round would show in every later row.
"""

from dataclasses import dataclass

import pytest
from kits.runs import Run, build_run

from psyche.core.state.bits import get_members
from psyche.core.state.state import Coordinator, Round, RoundFlag, RunState, StopReason
from psyche.core.state.timeline import get_applied_height, get_round
from psyche.testing.builders import build_hash

BATCH = 12


@dataclass(frozen=True)
class Row:
    height: int
    drain: bool
    step: int
    data_index: int
    attests: int | None  # whose results get root and credit in this round
    chain: str  # applied heights up to this round's start, "." where there is no apply


OVERLAP = {
    1: [Row(0, False, 1, 0, None, "."), Row(1, True, 2, 12, 0, ".."), Row(2, True, 2, 12, None, "..0")],
    2: [
        Row(0, False, 1, 0, None, "."),
        Row(1, False, 2, 12, 0, ".."),
        Row(2, True, 3, 24, 1, "..0"),
        Row(3, True, 3, 24, None, "..01"),
    ],
    3: [
        Row(0, False, 1, 0, None, "."),
        Row(1, False, 2, 12, 0, ".."),
        Row(2, False, 3, 24, 1, "..0"),
        Row(3, True, 4, 36, 2, "..01"),
        Row(4, True, 4, 36, None, "..012"),
    ],
}
IN_TURN = {
    1: [Row(0, False, 1, 0, 0, "."), Row(1, True, 2, 12, None, ".0")],
    2: [
        Row(0, False, 1, 0, 0, "."),
        Row(1, False, 2, 12, 1, ".0"),
        Row(2, True, 3, 24, None, ".01"),
    ],
    3: [
        Row(0, False, 1, 0, 0, "."),
        Row(1, False, 2, 12, 1, ".0"),
        Row(2, False, 3, 24, 2, ".01"),
        Row(3, True, 4, 36, None, ".012"),
    ],
}
CASES = [
    pytest.param(overlap, rounds, rows, id=f"{'overlap' if overlap else 'in-turn'}-{rounds}")
    for overlap, table in ((True, OVERLAP), (False, IN_TURN))
    for rounds, rows in table.items()
]


def advance_chain(state: Coordinator, chain: str, sets: dict[int, int]) -> str:
    applied = get_applied_height(state.config, state.epoch, state.current.height)
    return chain + ("." if applied is None else f"{applied}:{get_members(sets[applied])} ")


def compute_digest(state: Coordinator, chain: str) -> bytes:
    return build_hash("D", state.progress.epoch, chain)


def assert_row(round_: Round, row: Row, run: Run, chain: str) -> None:
    assert round_.height == row.height
    assert bool(round_.flags & RoundFlag.DRAIN) is row.drain
    assert (round_.step, round_.data_index) == (row.step, row.data_index)
    assert round_.batch_size == (0 if row.drain else BATCH)
    assert bool(round_.flags & RoundFlag.ROOT) is (row.attests is not None)
    assert round_.agreed_held == (0b111 if row.attests is not None else 0)
    assert not round_.flags & (RoundFlag.VOID | RoundFlag.BY_TIMEOUT)
    assert "".join("." if c == "." else c.split(":")[0] for c in split_chain(chain)) == row.chain
    assert round_.agreed_digest == compute_digest(run.state, chain)


def split_chain(chain: str) -> list[str]:
    parts: list[str] = []
    while chain:
        end = 1 if chain[0] == "." else chain.index("]") + 2
        parts.append(chain[:end])
        chain = chain[end:]
    return parts


@pytest.mark.parametrize(("overlap", "rounds", "rows"), CASES)
@pytest.mark.parametrize("parameters", [0, 10**9], ids=["always-full", "sliced"])
def test_the_timeline_of_an_epoch(overlap: bool, rounds: int, rows: list[Row], parameters: int) -> None:
    run = build_run(3, rounds_per_epoch=rounds, overlap=overlap).warm_up()
    state = run.state
    state.metadata.num_parameters = parameters
    start = state.certified
    chain, sets = "", dict[int, int]()
    for row in rows:
        assert state.in_round
        assert state.certified is start, "nothing is certified before Cooldown"
        assert state.epoch.drain_from_height == (rounds if row.drain else 0)
        chain = advance_chain(state, chain, sets)
        round_ = run.run_round(state_digest=compute_digest(state, chain))
        assert_row(round_, row, run, chain)
        if row.attests is not None:
            sets[row.attests] = round_.agreed_held
        full = row.height == 0 or not parameters or row is rows[-1]
        assert bool(round_.flags & RoundFlag.FULL) is full
    last = rows[-1]
    assert state.run_state is RunState.COOLDOWN
    assert state.epoch.stop_reason is StopReason.EPOCH_LENGTH
    assert state.certified.digest == compute_digest(state, chain)
    assert (state.certified.epoch, state.certified.step, state.certified.data_index) == (0, last.step, last.data_index)
    assert sets.keys() == set(range(rounds)), "no data round is left undecided"
    run.wait(state.config.cooldown_time)
    assert state.run_state is RunState.WAITING_FOR_MEMBERS
    assert (state.progress.epoch, state.progress.step) == (1, rounds + 1)
    assert state.progress.epoch_start_data_index == rounds * BATCH
    assert [client.credits for client in state.clients] == [rounds] * 3


@pytest.mark.parametrize("overlap", [True, False])
def test_the_second_epoch_goes_on_where_the_first_certified(overlap: bool) -> None:
    run = build_run(3, rounds_per_epoch=2, overlap=overlap).warm_up().finish_epoch()
    certified = run.state.certified
    run.rejoin()
    run.warm_up()
    assert get_round(run.state, 0) is run.state.current
    current = run.state.current
    assert (current.height, current.step, current.data_index) == (0, certified.step, certified.data_index)
    assert run.state.certified is certified
    assert run.state.epoch.start_step == certified.step
