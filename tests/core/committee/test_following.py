"""W6(b): a witness follows a list on record only where an honest witness came to it by itself."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from lying_witnesses import EPOCH, HEIGHT, build_record, commit

from psyche.core.committee.decision import compute_followed
from psyche.core.state.bits import compute_bits
from psyche.core.state.state import WitnessRecord
from psyche.testing.builders import build_hash

TABLE = {m: commit(m) for m in range(4)}


def follow(records: list[WitnessRecord], held: int, recent: int) -> int | None:
    """What a witness of four follows: two records must say the same, one of which is honest."""
    return compute_followed(records, 4, EPOCH, HEIGHT, held, TABLE, recent)


def twice(table: Mapping[int, bytes], first: int = 0) -> list[WitnessRecord]:
    return [build_record(first, table), build_record(first + 1, table)]


def test_w6_a_witness_reports_its_own_list_when_that_is_on_record() -> None:
    smaller = {m: c for m, c in TABLE.items() if m < 3}
    records = [*twice(smaller), build_record(5, smaller), *twice(TABLE, 2)]
    assert follow(records, 0b1111, recent=0b1111) == 0b1111


def test_w6_it_follows_a_list_that_leaves_out_only_what_came_just_now() -> None:
    records = twice({m: c for m, c in TABLE.items() if m < 3})
    assert follow(records, 0b1111, recent=0b1000) == 0b0111
    assert follow(records, 0b1111, recent=0b0100) is None


def test_w6_it_never_follows_what_it_cannot_verify() -> None:
    assert follow(twice(TABLE), 0b0111, recent=0b1111) is None
    forged = [replace(r, results_root=build_hash("forged")) for r in twice({0: commit(0)})]
    assert follow(forged, 0b1111, recent=0b1111) is None
    assert follow([], 0b1111, recent=0b1111) is None


def test_w6_the_best_backed_list_is_followed() -> None:
    few, many = {0: commit(0)}, {0: commit(0), 1: commit(1)}
    records = [*twice(few), *twice(many, 2), build_record(4, many)]
    assert follow(records, 0b1111, recent=0b1111) == 0b0011


@pytest.mark.parametrize("n", range(1, 33))
@pytest.mark.parametrize("listed", [{}, {0: commit(0)}, TABLE], ids=["nothing", "less", "the same"])
def test_w6_as_many_as_may_lie_make_nobody_report_what_they_like(n: int, listed: dict[int, bytes]) -> None:
    """Not even its own list, before the payloads that are still due have come."""
    needed = max(2, (n - 1) // 3 + 1)
    records = [build_record(w, listed) for w in range(needed)]
    assert compute_followed(records[:-1], n, EPOCH, HEIGHT, 0b1111, TABLE, recent=0b1111) is None
    found = compute_followed(records, n, EPOCH, HEIGHT, 0b1111, TABLE, recent=0b1111)
    assert found == compute_bits(listed)
