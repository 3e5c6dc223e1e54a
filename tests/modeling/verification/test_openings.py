"""V5, V11: a momentum root covers every chunk at its place, and an opening shows exactly those that the seed names."""

from collections.abc import Callable

import pytest
from blake3 import blake3

from psyche.core.encoding.plan import compute_plan
from psyche.core.state.state import ZERO32
from psyche.errors import WireError
from psyche.modeling.verification.openings import (
    Chunk,
    MomentumTree,
    compute_leaf,
    decode_opening,
    draw_chunks,
    get_opening_bytes,
)
from psyche.testing.builders import build_hash

PLAN = compute_plan({"a": (8, 8), "b": (12,), "c": (4, 12)}, 4, 2, one_bit=True)
GROUPS = [
    b"".join(build_hash("coefficients", number, at) for at in range(group.chunks * group.area * 4 // 32 + 1))[
        : group.chunks * group.area * 4
    ]
    for number, group in enumerate(PLAN.groups)
]
OTHERS = [bytes(len(raw)) for raw in GROUPS]
TREE = MomentumTree(PLAN, GROUPS)
SEED = build_hash("seed")
PLACES = draw_chunks(PLAN, SEED, 5)
RAW = TREE.open(PLACES, GROUPS)
TOTAL = sum(group.chunks for group in PLAN.groups)


def hash_pair(left: bytes, right: bytes) -> bytes:
    return blake3(b"\1" + left + right).digest()


def test_v5_the_root_is_that_of_a_tree_over_all_chunks() -> None:
    assert (len(PLAN.groups), TOTAL) == (2, 10)
    leaves = [compute_leaf(place.group, place.chunk, coefficients) for place, coefficients in get_all_chunks()]
    assert leaves[0] == blake3(b"psyche/open/1" + bytes(8) + GROUPS[0][: PLAN.groups[0].area * 4]).digest()
    level = leaves
    while len(level) > 1:
        level = [*level, level[-1]] if len(level) % 2 else level
        level = [hash_pair(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
    assert level[0] == TREE.root


def get_all_chunks() -> list[tuple[Chunk, bytes]]:
    found: list[tuple[Chunk, bytes]] = []
    for number, (group, raw) in enumerate(zip(PLAN.groups, GROUPS, strict=True)):
        size = group.area * 4
        parts = [raw[at : at + size] for at in range(0, len(raw), size)]
        assert len(parts) == group.chunks
        first = len(found)
        found += [(Chunk(number, chunk, first + chunk), part) for chunk, part in enumerate(parts)]
    return found


@pytest.mark.parametrize("leaf", range(TOTAL))
def test_v5_every_chunk_can_be_opened(leaf: int) -> None:
    place, coefficients = get_all_chunks()[leaf]
    (opening,) = decode_opening(PLAN, [place], TREE.root, TREE.open([place], GROUPS))
    assert opening == (place, coefficients)


def test_v11_the_seed_draws_different_chunks_and_no_more_than_there_are() -> None:
    assert len({place.leaf for place in PLACES}) == 5
    assert PLACES == draw_chunks(PLAN, SEED, 5) != draw_chunks(PLAN, build_hash("other"), 5)
    assert sorted(place.leaf for place in draw_chunks(PLAN, SEED, 256)) == list(range(TOTAL))
    assert all(place == get_all_chunks()[place.leaf][0] for place in PLACES)
    drawn = [place.leaf for seed in range(200) for place in draw_chunks(PLAN, build_hash(seed), 3)]
    assert min(drawn.count(leaf) for leaf in range(TOTAL)) > 30


def test_v11_what_is_opened_is_what_the_root_covers() -> None:
    chunks = dict(get_all_chunks())
    openings = decode_opening(PLAN, PLACES, TREE.root, RAW)
    assert [(place, chunks[place]) for place in PLACES] == openings
    assert len(RAW) == get_opening_bytes(PLAN, PLACES)


@pytest.mark.parametrize("at", range(0, len(RAW), 7))
def test_v11_any_changed_byte_is_noticed(at: int) -> None:
    with pytest.raises(WireError, match="not under the momentum root"):
        decode_opening(PLAN, PLACES, TREE.root, RAW[:at] + bytes([RAW[at] ^ 1]) + RAW[at + 1 :])


@pytest.mark.parametrize(
    "forge",
    [
        lambda: TREE.open(draw_chunks(PLAN, build_hash("other"), 5), GROUPS),
        lambda: TREE.open(PLACES[::-1], GROUPS),
        lambda: MomentumTree(PLAN, OTHERS).open(PLACES, OTHERS),
    ],
)
def test_v11_other_chunks_and_other_momenta_are_refused(forge: Callable[[], bytes]) -> None:
    with pytest.raises(WireError):
        decode_opening(PLAN, PLACES, TREE.root, forge())


@pytest.mark.parametrize("raw", [b"", RAW[:-1], RAW + b"\0", RAW * 9])
def test_v11_an_opening_of_another_length_is_refused_before_it_is_read(raw: bytes) -> None:
    with pytest.raises(WireError, match=f"opening: {len(raw)} bytes, must be {len(RAW)} for 5 chunks"):
        decode_opening(PLAN, PLACES, TREE.root, raw)


def test_a_chunk_of_a_group_does_not_pass_for_one_of_another() -> None:
    assert compute_leaf(0, 1, b"x" * 64) != compute_leaf(1, 0, b"x" * 64)


def test_v5_a_model_of_one_chunk_has_its_leaf_as_root() -> None:
    plan = compute_plan({"a": (4, 4)}, 4, 2, one_bit=True)
    tree = MomentumTree(plan, [bytes(64)])
    assert tree.root == compute_leaf(0, 0, bytes(64)) != ZERO32
    assert decode_opening(plan, draw_chunks(plan, SEED, 9), tree.root, tree.open([Chunk(0, 0, 0)], [bytes(64)]))
