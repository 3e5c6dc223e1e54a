"""The timelines of section 4, row by row.

A row is one round: height, drain, what is applied at its start, what its witnesses attest, whether
it is the last drain round, and the digest D(h) as the chain of the applied rounds up to there.
"""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.core.state.state import Config, Coordinator, Epoch, Round
from psyche.core.state.timeline import (
    get_applied_height,
    get_attested_height,
    get_attested_round,
    get_drain_rounds,
    get_round,
    is_data_height,
    is_full_digest_height,
    is_last_drain,
)


@dataclass(frozen=True)
class Row:
    height: int
    drain: bool
    applied: int | None
    attested: int | None
    last: bool
    chain: str  # c(h): one letter per height; "." where there is no apply, else the applied height


OVERLAP = {
    1: [
        Row(0, False, None, None, False, "."),
        Row(1, True, None, 0, False, ".."),
        Row(2, True, 0, None, True, "..0"),
        Row(3, True, None, None, True, "..0."),  # P2: repeated while no digest is agreed
        Row(4, True, None, None, True, "..0.."),
    ],
    2: [
        Row(0, False, None, None, False, "."),
        Row(1, False, None, 0, False, ".."),
        Row(2, True, 0, 1, False, "..0"),
        Row(3, True, 1, None, True, "..01"),
        Row(4, True, None, None, True, "..01."),
    ],
    3: [
        Row(0, False, None, None, False, "."),
        Row(1, False, None, 0, False, ".."),
        Row(2, False, 0, 1, False, "..0"),
        Row(3, True, 1, 2, False, "..01"),
        Row(4, True, 2, None, True, "..012"),
        Row(5, True, None, None, True, "..012."),
    ],
}
IN_TURN = {
    1: [
        Row(0, False, None, 0, False, "."),
        Row(1, True, 0, None, True, ".0"),
        Row(2, True, None, None, True, ".0."),
    ],
    2: [
        Row(0, False, None, 0, False, "."),
        Row(1, False, 0, 1, False, ".0"),
        Row(2, True, 1, None, True, ".01"),
        Row(3, True, None, None, True, ".01."),
    ],
    3: [
        Row(0, False, None, 0, False, "."),
        Row(1, False, 0, 1, False, ".0"),
        Row(2, False, 1, 2, False, ".01"),
        Row(3, True, 2, None, True, ".012"),
        Row(4, True, None, None, True, ".012."),
    ],
}
CASES = [
    pytest.param(overlap, rounds, rows, id=f"overlap-{overlap}-{rounds}-data-rounds")
    for overlap, tables in ((True, OVERLAP), (False, IN_TURN))
    for rounds, rows in tables.items()
]


def epoch_at(height: int, rounds: int) -> Epoch:
    """The epoch as it stands while round `height` runs: the stop is known from round `rounds` on."""
    return Epoch(drain_from_height=rounds if height >= rounds else 0)


@pytest.mark.parametrize(("overlap", "rounds", "rows"), CASES)
def test_what_is_attested_and_applied_in_each_round(overlap: bool, rounds: int, rows: list[Row]) -> None:
    config = Config(overlap=overlap)
    for row in rows:
        epoch = epoch_at(row.height, rounds)
        assert get_attested_height(config, epoch, row.height) == row.attested, row
        assert get_applied_height(config, epoch, row.height) == row.applied, row
        assert is_last_drain(config, epoch, row.height) is row.last, row
        assert is_data_height(epoch, row.height) is not row.drain, row


@pytest.mark.parametrize(("overlap", "rounds", "rows"), CASES)
def test_a_past_round_reads_the_same_once_the_epoch_ends(overlap: bool, rounds: int, rows: list[Row]) -> None:
    """A joiner replays from the record alone, when the stop is long known (S9)."""
    config, ended = Config(overlap=overlap), Epoch(drain_from_height=rounds)
    for row in rows:
        assert get_attested_height(config, ended, row.height) == row.attested
        assert get_applied_height(config, ended, row.height) == row.applied


@given(st.booleans(), st.integers(1, 40), st.integers(0, 5))
def test_every_data_round_is_attested_once_then_applied_once(overlap: bool, rounds: int, repeats: int) -> None:
    config, epoch = Config(overlap=overlap), Epoch(drain_from_height=rounds)
    heights = range(rounds + get_drain_rounds(config) + repeats)
    attested = {get_attested_height(config, epoch, h): h for h in heights}
    applied = {get_applied_height(config, epoch, h): h for h in heights}
    assert set(attested) - {None} == set(applied) - {None} == set(range(rounds))
    for data in range(rounds):
        assert applied[data] == attested[data] + 1  # decided at the close just before
    assert sum(is_last_drain(config, epoch, h) for h in heights) == repeats + 1


@pytest.mark.parametrize(
    ("overlap", "drain_from", "full"),
    [(True, 0, [0, 64, 128]), (True, 100, [0, 64, 101, 102, 103]), (False, 63, [0, 63, 64, 65])],
)
def test_all_weights_are_digested_every_64_heights_and_at_the_end_s2(
    *, overlap: bool, drain_from: int, full: list[int]
) -> None:
    config, epoch = Config(overlap=overlap), Epoch(drain_from_height=drain_from)
    assert [h for h in range(max(full) + 1) if is_full_digest_height(config, epoch, h)] == full


def state_at(height: int, *, overlap: bool, drain_from: int = 0) -> Coordinator:
    state = Coordinator(config=Config(overlap=overlap))
    state.epoch = Epoch(rounds_head=height % 4, drain_from_height=drain_from)
    for h in range(max(0, height - 3), height + 1):
        state.rounds[h % 4] = Round(height=h, members=1)
    return state


def test_the_ring_gives_the_last_four_rounds_and_no_others() -> None:
    state = state_at(6, overlap=True)
    assert [h for h in range(20) if get_round(state, h) is not None] == [3, 4, 5, 6]
    assert get_round(state, 5) is state.rounds[1]


def test_an_empty_slot_is_not_round_zero() -> None:
    assert get_round(Coordinator(), 0) is None
    assert [h for h in range(8) if get_round(state_at(1, overlap=True), h) is not None] == [0, 1]


@pytest.mark.parametrize(
    ("height", "overlap", "drain_from", "attested"),
    [(0, True, 0, None), (0, False, 0, 0), (5, True, 0, 4), (5, False, 0, 5), (5, True, 5, 4), (5, False, 5, None)],
)
def test_the_attested_round_is_found_in_the_ring(
    *, height: int, overlap: bool, drain_from: int, attested: int | None
) -> None:
    found = get_attested_round(state_at(height, overlap=overlap, drain_from=drain_from))
    assert (None if found is None else found.height) == attested


@pytest.mark.parametrize(("overlap", "rounds", "rows"), CASES)
def test_the_digest_of_each_round_follows_from_what_was_applied(overlap: bool, rounds: int, rows: list[Row]) -> None:
    """S1: every height has its c, also where nothing is applied."""
    config, chain = Config(overlap=overlap), ""
    for row in rows:
        applied = get_applied_height(config, epoch_at(row.height, rounds), row.height)
        chain += "." if applied is None else str(applied)
        assert chain == row.chain
