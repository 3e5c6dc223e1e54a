import subprocess
import sys
from math import comb

import numpy as np
import pytest
from distro_kit import make_plan, make_sets
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.tier import draw

from psyche.core.encoding.plan import TransformPlan, compute_plan, compute_set_bits, get_payload_bytes
from psyche.errors import WireError
from psyche.modeling.distro.bits import pack_numbers, unpack_numbers
from psyche.modeling.distro.codec import ChunkSets, decode_payload, encode_payload, validate_payload
from psyche.modeling.distro.elias_fano import EliasFanoCoder
from psyche.modeling.distro.enumerative import EnumerativeCoder

GOLDEN = {
    (0, 1, 2, 3, 4, 5, 6, 7): 0,
    (4088, 4089, 4090, 4091, 4092, 4093, 4094, 4095): 1951589337580920650595839,
    (3, 17, 200, 511, 1024, 2047, 3000, 4000): 1614482709937095380925321,
}
CODINGS = [(False, 0), (True, 0), (False, 1), (False, 2)]  # one_bit and scaled_bits
SETS_4096_8 = 1955414105242000351926785


def _rank(coder: EnumerativeCoder, sets: list[tuple[int, ...]]) -> list[int]:
    padded = [list(members) + [coder.area] * (coder.topk - len(members)) for members in sets]
    high, low = coder.rank(np.array(padded, dtype=np.int32))
    return [int(h) << 64 | int(x) for h, x in zip(high, low, strict=True)]


def test_the_golden_ranks_hold_both_ways() -> None:
    coder = EnumerativeCoder(4096, 8)
    assert _rank(coder, list(GOLDEN)) == list(GOLDEN.values())
    sets = np.array(list(GOLDEN), dtype=np.int32)
    assert np.array_equal(coder.decode(np.concatenate(coder.encode(sets)), 3), sets)
    assert _rank(coder, [()]) == [SETS_4096_8 - 1]


@pytest.mark.parametrize(("area", "topk"), [(1, 1), (2, 1), (5, 5), (9, 4), (12, 12), (13, 3)])
def test_every_rank_below_the_number_of_sets_is_one_set(area: int, topk: int) -> None:
    coder = EnumerativeCoder(area, topk)
    count = sum(comb(area, size) for size in range(topk + 1))
    low, high = np.arange(count, dtype=np.uint64), np.zeros(count, dtype=np.uint64)
    raw = np.concatenate(coder._make_planes(high, low))
    sets = coder.decode(raw, count)
    assert len({tuple(row) for row in sets.tolist()}) == count
    assert np.array_equal(np.concatenate(coder.encode(sets)), raw)
    assert np.array_equal(coder.check(raw, count), (sets < area).sum(axis=1))


@st.composite
def _some_sets(draw: st.DrawFn) -> tuple[int, int, list[list[int]]]:
    area = draw(st.integers(1, 400))
    topk = draw(st.integers(1, min(area, 60)))
    members = st.lists(st.integers(0, area - 1), max_size=topk, unique=True).map(sorted)
    low_end = st.integers(0, topk).map(lambda size: list(range(size)))
    high_end = st.integers(0, topk).map(lambda size: list(range(area - size, area)))
    return area, topk, draw(st.lists(members | low_end | high_end, min_size=1, max_size=20))


@given(_some_sets())
@settings(max_examples=draw(150))
def test_sets_of_any_size_survive_the_coding(case: tuple[int, int, list[list[int]]]) -> None:
    area, topk, members = case
    sets = np.array([row + [area] * (topk - len(row)) for row in members], dtype=np.int32)
    coders = [
        EliasFanoCoder(area, topk, low, topk + ((area - 1) >> low) + 1) for low in (0, (area // topk).bit_length() - 1)
    ]
    if compute_set_bits(area, topk) <= 128:
        coders.append(EnumerativeCoder(area, topk))
    for coder in coders:
        raw = np.concatenate(coder.encode(sets))
        assert raw.size == coder.get_size_bytes(len(members))
        assert np.array_equal(coder.decode(raw, len(members)), sets)
        assert np.array_equal(coder.check(raw, len(members)), (sets < area).sum(axis=1))


@pytest.mark.parametrize(("area", "topk"), [(128, 128), (128, 64), (256, 16), (4096, 11), (16384, 10)])
def test_ranks_of_almost_128_bits_are_exact(area: int, topk: int) -> None:
    coder = EnumerativeCoder(area, topk)
    generator = np.random.default_rng(3)
    rows = [np.arange(topk), np.arange(area - topk, area)]
    rows += [np.sort(generator.choice(area, topk, replace=False)) for _ in range(60)]
    sets = np.array(rows, dtype=np.int32)
    expected = [sum(comb(int(c), j + 1) for j, c in enumerate(row)) for row in rows]
    assert _rank(coder, [tuple(row) for row in rows]) == expected
    assert np.array_equal(coder.decode(np.concatenate(coder.encode(sets)), len(rows)), sets)


@given(st.integers(1, 63), st.lists(st.integers(0, 2**63 - 1), max_size=40))
def test_numbers_of_any_width_survive_packing(bits: int, numbers: list[int]) -> None:
    cut = np.array([number % 2**bits for number in numbers], dtype=np.uint64)
    packed = pack_numbers(cut, bits)
    assert int.from_bytes(packed.tobytes(), "little") == sum(int(n) << (bits * i) for i, n in enumerate(cut))
    assert np.array_equal(unpack_numbers(packed, len(numbers), bits), cut)


@pytest.mark.parametrize(("one_bit", "scaled_bits"), CODINGS)
@pytest.mark.parametrize(("chunk", "k"), [(16, 16), (64, 8), (64, 64), (8, 300), (16, 1)])
def test_equal_sets_are_equal_bytes(chunk: int, k: int, one_bit: bool, scaled_bits: int) -> None:
    plan = make_plan(chunk=chunk, k=k, one_bit=one_bit, scaled_bits=scaled_bits)
    for full in (False, True):
        sets = make_sets(plan, seed=chunk + k, full=full)
        body = encode_payload(plan, sets)
        validate_payload(plan, body)
        decoded = decode_payload(plan, body)
        for before, after in zip(sets, decoded, strict=True):
            assert np.array_equal(before.indices, after.indices)
            assert np.array_equal(before.values, after.values)
            assert before.values.dtype == after.values.dtype
            assert (before.exponents is None) is (after.exponents is None) is (not scaled_bits)
            assert before.exponents is None or np.array_equal(before.exponents, after.exponents)
        assert encode_payload(plan, decoded) == body
        assert len(body) == get_payload_bytes(plan)


def test_the_demo_model_pays_45088_bytes_and_a_large_chunk_less_than_11_2_bits() -> None:
    shapes: dict[str, tuple[int, ...]] = {"embed": (256, 128), "head": (256, 128), "norm": (128,)}
    for layer in range(4):
        shapes |= {f"{layer}.{name}": (128, 128) for name in "qkvo"}
        shapes |= {f"{layer}.gate": (384, 128), f"{layer}.up": (384, 128), f"{layer}.down": (128, 384)}
        shapes |= {f"{layer}.n1": (128,), f"{layer}.n2": (128,)}
    assert get_payload_bytes(compute_plan(shapes, 16, 16, one_bit=True)) == 45_088
    plan = compute_plan({"w": (1024, 1024)}, 64, 8, one_bit=True)
    body = encode_payload(plan, make_sets(plan, seed=1, full=True))
    assert len(body) * 8 / (256 * 8) == 11.125


# Refusals: one chunk group of 4 chunks of 16 x 16 with k = 3, so rank and sign bits are easy to find.


def _small(one_bit: bool = True, k: int = 3) -> TransformPlan:
    return compute_plan({"w": (32, 32)}, 16, k, one_bit=one_bit)


def _refuse(plan: TransformPlan, body: bytes, message: str) -> None:
    for read in (decode_payload, validate_payload):
        with pytest.raises(WireError, match=message):
            read(plan, body)


def _make(plan: TransformPlan, rows: list[list[int]], values: list[list[float]] | None = None) -> bytes:
    group = plan.groups[0]
    indices = np.array([row + [group.area] * (group.k - len(row)) for row in rows], dtype=np.int32)
    filled = np.ones_like(indices) if values is None else np.array(values)
    return encode_payload(plan, [ChunkSets(indices, filled.astype(np.int8 if plan.one_bit else np.float32))])


def test_a_payload_of_another_length_is_refused() -> None:
    plan = _small()
    body = _make(plan, [[1, 2, 3]] * 4)
    _refuse(plan, body + b"\0", r"payload: \d+ bytes, the plan says \d+")
    _refuse(plan, body[:-1], "the plan says")
    _refuse(plan, b"", "the plan says")


def test_a_rank_that_is_no_set_is_refused_and_the_message_names_the_chunks() -> None:
    plan = _small()
    count = sum(comb(256, size) for size in range(4))
    coder = EnumerativeCoder(256, 3)
    body = _make(plan, [[1, 2, 3]] * 4)
    for rank, is_good in ((count - 1, True), (count, False), (2**22 - 1, False)):
        ranks = np.concatenate(
            coder._make_planes(np.zeros(4, np.uint64), np.array([0, rank, 0, 0], np.uint64))
        ).tobytes()
        forged = ranks + body[len(ranks) :]
        if is_good:
            assert decode_payload(plan, forged)[0].indices[1].tolist() == [256, 256, 256]
        else:
            _refuse(plan, forged, "payload, chunks of 16 x 16: ranks: a rank is not below")


def test_a_rank_above_its_bound_in_the_high_word_is_refused() -> None:
    coder = EnumerativeCoder(4096, 8)
    for rank, is_good in ((SETS_4096_8 - 1, True), (SETS_4096_8, False), (2**81 - 1, False)):
        words = np.array([rank >> 64], np.uint64), np.array([rank % 2**64], np.uint64)
        raw = np.concatenate(coder._make_planes(*words))
        if is_good:
            assert coder.check(raw, 1).tolist() == [0]
        else:
            with pytest.raises(WireError, match="not below"):
                coder.check(raw, 1)


def test_sign_bits_above_the_set_and_padding_must_be_zero() -> None:
    plan = _small()
    body = bytearray(_make(plan, [[1, 2, 3], [1, 2], [], [5, 6, 7]]))
    _refuse(plan, bytes(body[:-2] + bytes([body[-2] | 1 << 5]) + body[-1:]), "signs: bits at or above the set's size")
    _refuse(plan, bytes(body[:-1] + bytes([body[-1] | 1 << 7])), "signs: padding bits must be zero")


def test_padding_behind_the_ranks_must_be_zero() -> None:
    plan = compute_plan({"w": (16, 16)}, 16, 3, one_bit=True)
    bits = compute_set_bits(256, 3)
    assert bits % 8
    body = bytearray(_make(plan, [[1, 2, 3]]))
    body[(bits - 1) // 8] |= 1 << 7
    _refuse(plan, bytes(body), "ranks: padding bits must be zero")


def test_values_must_be_finite_not_zero_and_only_where_the_set_has_them() -> None:
    plan = _small(one_bit=False)
    rows = [[1, 2, 3], [1, 2], [], [5, 6, 7]]
    values = [[1.0, -2.0, 3.0], [1.0, 2.0, 0.0], [0.0] * 3, [5.0, 6.0, 7.0]]
    validate_payload(plan, _make(plan, rows, values))
    for row, column, value, message in (
        (0, 1, float("nan"), "values: all must be finite"),
        (3, 2, float("inf"), "values: all must be finite"),
        (0, 0, 0.0, "values: zero is not sent"),
        (3, 1, -0.0, "values: zero is not sent"),
        (1, 2, 4.0, "at or above the set's size must be zero"),
        (2, 0, -0.0, "at or above the set's size must be zero"),
    ):
        forged = [list(line) for line in values]
        forged[row][column] = value
        _refuse(plan, _make(plan, rows, forged), message)


@pytest.mark.parametrize("scaled_bits", [1, 2])
def test_signs_levels_and_exponents_of_local_steps_are_refused_unless_canonical(scaled_bits: int) -> None:
    """Four chunks of 3: the planes of signs and levels have two bytes each, that of exponents has four."""
    plan = make_plan({"w": (32, 32)}, 16, 3, scaled_bits=scaled_bits)
    indices = np.array([[1, 2, 3], [1, 2, 256], [256] * 3, [5, 6, 7]], dtype=np.int32)
    values = np.array([[-1, 3, 1], [1, -3, 0], [0] * 3, [3, 3, 3]], dtype=np.int8)
    values = values if scaled_bits == 2 else np.sign(values)
    body = encode_payload(plan, [ChunkSets(indices, values, np.array([-32, 0, 0, -7], dtype=np.int8))])
    (decoded,) = decode_payload(plan, body)
    assert decoded.values.tolist() == values.tolist()
    assert decoded.exponents is not None
    assert decoded.exponents.tolist() == [-32, 0, 0, -7]
    first = len(body) - 4 - 2 * scaled_bits
    planes = [("signs", first), ("levels", first + 2)][:scaled_bits]
    for name, place in planes:
        _refuse(plan, change(body, place, 1 << 5), f"{name}: bits at or above the set's size must be zero")
        _refuse(plan, change(body, place + 1, 1 << 7), f"{name}: padding bits must be zero")
    for chunk, exponent in ((0, -33), (0, 1), (3, 127), (3, -128)):
        raw = bytearray(body)
        raw[chunk - 4] = exponent % 256
        _refuse(plan, bytes(raw), "payload, chunks of 16 x 16: exponents: one is not between -32 and 0")
    _refuse(plan, change(body, len(body) - 2, 0xFF), "exponents: that of an empty set must be zero")


def change(body: bytes, place: int, bits: int) -> bytes:
    return body[:place] + bytes([body[place] ^ bits]) + body[place + 1 :]


def test_positions_that_are_no_set_are_refused() -> None:
    area, topk, low_bits = 256, 41, 2
    row_bits = topk + ((area - 1) >> low_bits) + 1
    coder = EliasFanoCoder(area, topk, low_bits, row_bits)
    low_size = (topk * low_bits + 7) // 8

    def forge(lows: dict[int, int], marks: list[int]) -> np.ndarray:
        low = sum(value << (2 * entry) for entry, value in lows.items())
        row = sum(1 << place for place in marks)
        return np.frombuffer(low.to_bytes(low_size, "little") + row.to_bytes((row_bits + 7) // 8, "little"), np.uint8)

    assert coder.decode(forge({0: 3, 1: 1}, [0, 2]), 1)[0, :3].tolist() == [3, 5, 256]
    for raw, message in (
        (forge({}, list(range(topk + 1))), f"more than {topk} in a chunk"),
        (forge({}, [row_bits - 1]), "one is not below 256"),
        (forge({0: 3, 1: 3}, [0, 1]), "must rise"),
        (forge({0: 3, 1: 2}, [0, 1]), "must rise"),
        (forge({0: 3, 1: 1}, [0]), "low parts at or above the set's size"),
        (forge({}, [row_bits]), "padding bits must be zero"),
        (forge({topk: 1}, []), "padding bits must be zero"),
    ):
        with pytest.raises(WireError, match=message):
            coder.check(raw, 1)


@given(st.data())
@settings(max_examples=draw(60))
def test_whatever_bytes_are_accepted_encode_back_to_themselves(data: st.DataObject) -> None:
    coding, k = data.draw(st.sampled_from(CODINGS)), data.draw(st.sampled_from([2, 60]))
    plan = compute_plan({"w": (16, 16), "v": (8,)}, 16, k, one_bit=coding[0], scaled_bits=coding[1])
    body = bytearray(encode_payload(plan, make_sets(plan, seed=data.draw(st.integers(0, 99)))))
    for place in data.draw(st.lists(st.integers(0, 8 * len(body) - 1), max_size=3)):
        body[place // 8] ^= 1 << place % 8
    try:
        sets = decode_payload(plan, bytes(body))
    except WireError:
        with pytest.raises(WireError):
            validate_payload(plan, bytes(body))
    else:
        validate_payload(plan, bytes(body))
        assert encode_payload(plan, sets) == body


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("distro.codec", "torch"),
        ("trainer.process, psyche.modeling.snapshot, psyche.modeling.trainer.failure", "torch transformers numpy"),
    ],
    ids=["codec", "what the client's process imports"],
)
def test_the_parent_imports_no_torch(modules: str, absent: str) -> None:
    code = f"import sys, psyche.modeling.{modules}; sys.exit(bool({{*{absent!r}.split()}} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
