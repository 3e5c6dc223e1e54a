import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.core.encoding.plan import (
    BASIS_HASH,
    PlanGroup,
    PlanTensor,
    TransformPlan,
    compute_chunk_edge,
    compute_plan,
    compute_run_plan,
    compute_set_bits,
    compute_sets,
    decode_plan,
    encode_plan,
    get_payload_bytes,
)
from psyche.core.state.state import Optimizer, OptimizerKind
from psyche.errors import ConfigError, WireError

SHAPES = {"w": (3, 8, 6), "a": (10,), "s": ()}
PLAN = TransformPlan(
    (PlanTensor("a", (10,), (1, 2)), PlanTensor("s", (), (1, 1)), PlanTensor("w", (3, 8, 6), (4, 3))), 3, one_bit=True
)
BYTES = (
    b"psyche/plan/1"
    b"\x03\0\0\0"
    + (b"\x01\0a" + b"\x01\x0a\0\0\0" + b"\x01\0\x02\0")
    + (b"\x01\0s" + b"\0" + b"\x01\0\x01\0")
    + (b"\x01\0w" + b"\x03\x03\0\0\0\x08\0\0\0\x06\0\0\0" + b"\x04\0\x03\0")
    + b"\x03\0\x01"
    + BASIS_HASH
)
SCALED = BYTES.replace(b"\x03\0\x01" + BASIS_HASH, b"\x03\0\x02" + bytes(32))
CODINGS = [(False, 0), (True, 0), (False, 1), (False, 2)]
SHAPE = st.lists(st.integers(1, 300), max_size=4).map(tuple)
NAME = st.text(st.characters(codec="utf-8"), max_size=6)


def demo_shapes(hidden: int = 128, mlp: int = 384, layers: int = 4) -> dict[str, tuple[int, ...]]:
    """The demo's Llama: byte vocabulary, untied, 918,656 parameters."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (256, hidden), "head": (256, hidden), "norm": (hidden,)}
    for i in range(layers):
        shapes |= {f"{i}.{name}": (hidden, hidden) for name in "qkvo"}
        shapes |= {f"{i}.gate": (mlp, hidden), f"{i}.up": (mlp, hidden), f"{i}.down": (hidden, mlp)}
        shapes |= {f"{i}.norm1": (hidden,), f"{i}.norm2": (hidden,)}
    return shapes


@pytest.mark.parametrize(
    ("n", "target", "edge"),
    [
        (64, 64, 64),
        (7, 64, 7),
        (257, 64, 1),
        (50_257, 64, 29),
        (688, 64, 43),
        (11_008, 64, 64),
        (50_304, 64, 64),
        (1, 1, 1),
    ],
)
def test_the_edge_is_the_largest_divisor_up_to_the_target(n: int, target: int, edge: int) -> None:
    assert compute_chunk_edge(n, target) == edge


def test_a_plan_orders_tensors_by_name_and_chunks_the_last_two_dimensions() -> None:
    assert compute_plan(SHAPES, 4, 3, one_bit=True) == PLAN
    assert [t.grid for t in PLAN.tensors] == [(1, 1, 5), (1, 1, 1), (3, 2, 2)]
    assert [t.chunks for t in PLAN.tensors] == [5, 1, 12]


def test_a_run_s_plan_is_that_of_its_optimizer() -> None:
    optimizer = Optimizer(compression_chunk=4, compression_topk=3, quantize_1bit=True)
    assert compute_run_plan(SHAPES, optimizer) == PLAN
    local = Optimizer(OptimizerKind.LOCAL_STEPS, compression_chunk=4, compression_topk=3, value_bits=2)
    assert compute_run_plan(SHAPES, local) == replace(PLAN, one_bit=False, scaled_bits=2)


def test_groups_collect_all_chunks_of_one_shape_in_ascending_order_of_shapes() -> None:
    plan = compute_plan({"d": (8, 4), "c": (2, 2), "b": (4, 12), "a": (2,)}, 4, 5, one_bit=True)
    assert plan.groups == (
        PlanGroup((1, 2), (0,), 1, 2, one_bit=True),
        PlanGroup((2, 2), (2,), 1, 4, one_bit=True),
        PlanGroup((4, 4), (1, 3), 5, 5, one_bit=True),
    )
    assert plan.groups is plan.groups
    assert [g.area for g in plan.groups] == [2, 4, 16]


def test_a_plan_has_exactly_these_bytes() -> None:
    assert encode_plan(PLAN) == BYTES
    assert encode_plan(replace(PLAN, one_bit=False, scaled_bits=2)) == SCALED


@given(st.dictionaries(NAME, SHAPE, max_size=6), st.integers(1, 128), st.integers(1, 65_535),
       st.sampled_from(CODINGS))  # fmt: skip
def test_a_plan_reads_back(shapes: dict[str, tuple[int, ...]], chunk: int, topk: int, coding: tuple[bool, int]) -> None:
    plan = compute_plan(shapes, chunk, topk, one_bit=coding[0], scaled_bits=coding[1])
    assert decode_plan(encode_plan(plan)) == plan
    assert sum(g.chunks * g.area for g in plan.groups) == sum(math.prod(dims) for dims in shapes.values())


@given(st.integers(0, len(BYTES) - 1), st.integers(1, 255))
def test_changed_bytes_are_refused_or_mean_another_plan(place: int, change: int) -> None:
    raw = bytearray(BYTES)
    raw[place] ^= change
    try:
        decoded = decode_plan(bytes(raw))
    except WireError:
        return
    assert encode_plan(decoded) == raw
    assert decoded != PLAN


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (BYTES + b"\0", "follow the end"),
        (BYTES[:-1], "basis hash: 31 bytes are left, 32 are needed"),
        (BYTES[:-1] + b"\0", "basis hash: does not match"),
        (b"psyche/plan/2" + BYTES[13:], "tag: does not match"),
        (BYTES.replace(b"\x01\0a", b"\x01\0z"), "names do not rise at 's'"),
        (BYTES.replace(b"\x01\0s", b"\x01\0a"), "names do not rise at 'a'"),
        (BYTES.replace(b"\x01\0s", b"\x01\0x"), "names do not rise at 'w'"),
        (BYTES.replace(b"\x04\0\x03\0\x03\0\x01", b"\x03\0\x03\0\x03\0\x01"), "do not divide"),
        (BYTES.replace(b"\x04\0\x03\0\x03\0\x01", b"\x00\0\x03\0\x03\0\x01"), "do not divide"),
        (BYTES.replace(b"\x03\0\0\0\x08", b"\0\0\0\0\x08"), "no elements"),
        (BYTES.replace(b"\x03\0\x01\x85", b"\0\0\x01\x85"), "k is zero"),
        (SCALED.replace(b"\x03\0\x02" + bytes(32), b"\x03\0\x03" + bytes(32)), "value coding is neither"),
        (SCALED.replace(b"\x03\0\x02" + bytes(32), b"\x03\0\x00" + bytes(32)), "value coding is neither"),
        (SCALED[:-1] + b"\1", "basis hash: does not match"),
        (BYTES.replace(b"\x03\0\x01\x85", b"\x03\0\x02\x85"), "value coding is neither"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused(raw: bytes, reason: str) -> None:
    assert raw != BYTES
    with pytest.raises(WireError, match=f"plan: .*{reason}"):
        decode_plan(raw)


def test_the_longest_edge_of_the_shared_bases_reads_back() -> None:
    plan = compute_plan({"a": (256,)}, 128, 1, one_bit=True)
    assert plan.tensors[0].edges[1] == 128
    assert decode_plan(encode_plan(plan)) == plan


def test_an_edge_beyond_the_shared_bases_is_refused() -> None:
    tensor = b"psyche/plan/1\x01\0\0\0\x01\0a\x01\x81\0\0\0\x01\0\x81\0\x03\0\x01" + BASIS_HASH
    with pytest.raises(WireError, match="do not divide"):
        decode_plan(tensor)


@pytest.mark.parametrize(
    ("shapes", "chunk", "topk", "reason"),
    [
        (SHAPES, 0, 1, "compression_chunk"),
        (SHAPES, 129, 1, "compression_chunk"),
        (SHAPES, 64, 0, "compression_topk"),
        (SHAPES, 64, 65_536, "compression_topk"),
        ({"a": (3, 0, 2)}, 64, 1, "tensor 'a'"),
    ],
)
def test_settings_that_make_no_plan_are_refused(
    shapes: dict[str, tuple[int, ...]], chunk: int, topk: int, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        compute_plan(shapes, chunk, topk, one_bit=True)


def test_the_number_of_sets_is_the_golden_one() -> None:
    assert compute_sets(4096, 8) == 1955414105242000351926785
    assert compute_set_bits(4096, 8) == 81
    assert PlanGroup((64, 64), (0,), 1, 8, one_bit=True).sets == 1955414105242000351926785


@given(st.integers(1, 40), st.data())
def test_sets_are_counted_exactly(area: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, area))
    assert compute_sets(area, k) == sum(math.comb(area, size) for size in range(k + 1))
    assert compute_set_bits(area, k) == math.ceil(math.log2(compute_sets(area, k)))


def test_counting_ends_with_the_first_size_beyond_128_bits() -> None:
    counts = [sum(math.comb(256, size) for size in range(k + 1)) for k in range(257)]
    assert compute_sets(256, 256) == next(count for count in counts if count > 1 << 128)
    assert compute_set_bits(256, 256) > 128


def test_exactly_as_many_sets_as_128_bits_number_are_not_too_many() -> None:
    assert compute_sets(129, 64) == 1 << 128, "half of all sets of 129"
    assert compute_set_bits(129, 64) == 128
    assert compute_set_bits(129, 65) == 129


@pytest.mark.parametrize(
    ("area", "k", "planes"),
    [
        ((64, 64), 8, (64, 16, 1, 8)),  # 89 bits: 11.125 per coefficient
        ((16, 16), 16, (64, 16, 4, 16)),
        ((1, 16), 16, (16, 16)),
        ((1, 1), 1, (1, 1)),
        ((1, 64), 64, (64, 64)),
        ((1, 128), 128, (64, 64, 128)),
    ],
)
def test_ranks_lie_in_planes_of_64_and_16_bits_and_the_rest(
    area: tuple[int, int], k: int, planes: tuple[int, ...]
) -> None:
    group = PlanGroup(area, (0,), 1, k, one_bit=True)
    assert group.is_enumerative
    assert group.planes == planes
    assert sum(group.planes) == group.set_bits + k


@pytest.mark.parametrize(
    ("area", "k", "low", "high"),
    [
        ((1, 129), 65, 0, 194),
        ((64, 64), 32, 7, 64),
        ((64, 64), 16, 8, 32),
        ((43, 64), 64, 5, 150),
        ((16, 16), 256, 0, 512),
    ],
)
def test_sets_above_128_bits_are_elias_fano_coded(area: tuple[int, int], k: int, low: int, high: int) -> None:
    group = PlanGroup(area, (0,), 1, k, one_bit=True)
    assert not group.is_enumerative
    assert (group.low_bits, group.high_bits) == (low, high)
    assert group.planes == (k * low, high, k)
    assert group.set_bits == k * low + high
    assert high == k + math.ceil(group.area / (1 << low))


def test_every_plane_is_rounded_up_to_whole_bytes() -> None:
    group = PlanGroup((64, 64), (0,), 3, 8, one_bit=True)
    assert group.payload_bytes == 3 * 8 + 3 * 2 + 1 + 3
    values = PlanGroup((64, 64), (0,), 3, 8, one_bit=False)
    assert values.payload_bytes == 3 * 8 + 3 * 2 + 1 + 3 * 8 * 4
    scaled = [PlanGroup((64, 64), (0,), 3, 8, one_bit=False, scaled_bits=bits) for bits in (1, 2)]
    assert [group.planes for group in scaled] == [(64, 16, 1, 8, 8), (64, 16, 1, 8, 8, 8)]
    assert scaled[1].payload_bytes == 3 * 8 + 3 * 2 + 1 + 3 + 3 + 3
    single_bits = PlanGroup((1, 1), (0,), 9, 1, one_bit=True)
    assert single_bits.planes == (1, 1)
    assert single_bits.payload_bytes == 2 + 2


def test_the_demo_sends_45088_bytes_instead_of_1837312() -> None:
    shapes = demo_shapes()
    assert sum(math.prod(dims) for dims in shapes.values()) * 2 == 1_837_312
    assert get_payload_bytes(compute_plan(shapes, 16, 16, one_bit=True)) == 45_088
