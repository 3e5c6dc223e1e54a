"""The compiled coding beside the NumPy code: equal bytes, equal sets, and what one refuses the other refuses too."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from distro_kit import make_plan, make_sets
from kits.tier import few

from psyche.core.encoding.plan import TransformPlan
from psyche.errors import WireError
from psyche.modeling.distro import codec_kernels, compiled
from psyche.modeling.distro.codec import ChunkSets, decode_payload, encode_payload, get_coder, validate_payload
from psyche.modeling.distro.enumerative import EnumerativeCoder

SHAPES = {"a": (48, 32), "b": (20,), "c": (3, 7, 16), "d": (16, 37), "e": (13, 64), "f": (), "g": (512, 64)}
CODINGS = [(False, 0), (True, 0), (False, 1), (False, 2)]  # one_bit and scaled_bits
SIZES = few([(16, 16), (64, 8), (64, 64), (8, 300), (16, 1), (64, 256), (64, 7), (16, 14)], 5)


@contextmanager
def coding(least_bytes: int) -> Iterator[None]:
    """With 0 the compiled coding is used for everything, with more than a payload has for nothing."""
    usual, compiled.LEAST_BYTES = compiled.LEAST_BYTES, least_bytes
    try:
        yield
    finally:
        compiled.LEAST_BYTES = usual


COMPILED, NUMPY = 0, 1 << 60


def read(plan: TransformPlan, body: bytes, least_bytes: int) -> tuple[list[ChunkSets] | str, str]:
    """What decoding and checking say: sets or a refusal, and a refusal or nothing."""
    refused = ""
    with coding(least_bytes):
        try:
            validate_payload(plan, body)
        except WireError as error:
            refused = str(error)
        try:
            return decode_payload(plan, body), refused
        except WireError as error:
            return str(error), refused


def are_equal(one: list[ChunkSets] | str, other: list[ChunkSets] | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return all(
        np.array_equal(a.indices, b.indices)
        and np.array_equal(a.values, b.values)
        and a.values.dtype == b.values.dtype
        and np.array_equal(np.array(a.exponents), np.array(b.exponents))
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("chunk", "k"), SIZES)
def test_both_paths_write_the_same_bytes_and_read_the_same_sets(chunk: int, k: int, threads: int) -> None:
    torch.set_num_threads(threads)
    for number, (one_bit, scaled_bits) in enumerate(CODINGS):
        plan = make_plan(SHAPES, chunk, k, one_bit, scaled_bits)
        for full in (False, True):
            sets = make_sets(plan, seed=number, full=full)
            with coding(NUMPY):
                body = encode_payload(plan, sets)
            with coding(COMPILED):
                assert encode_payload(plan, sets) == body
            found, refused = read(plan, body, COMPILED)
            assert not refused
            assert are_equal(found, sets)
    torch.set_num_threads(1)


@pytest.mark.parametrize(("chunk", "k"), few(SIZES, 3))
@pytest.mark.parametrize(("one_bit", "scaled_bits"), CODINGS)
def test_both_paths_refuse_the_same_bytes_by_the_same_rule(chunk: int, k: int, one_bit: bool, scaled_bits: int) -> None:
    plan = make_plan(SHAPES, chunk, k, one_bit, scaled_bits)
    generator = np.random.default_rng(chunk + k)
    refusals = 0
    for seed in range(30):
        body = np.frombuffer(encode_payload(plan, make_sets(plan, seed=seed, full=seed % 2 > 0)), np.uint8).copy()
        places = generator.integers(0, body.size, generator.integers(1, 4))
        body[places] ^= generator.integers(1, 256, places.size, dtype=np.uint8)
        forged = body.tobytes()
        slow, fast = read(plan, forged, NUMPY), read(plan, forged, COMPILED)
        assert are_equal(slow[0], fast[0])
        assert slow[1] == fast[1]
        refusals += bool(fast[1])
    assert refusals


@pytest.mark.parametrize(("chunk", "k"), [(64, 64), (16, 60), (16, 41)])
def test_the_compiled_loops_themselves_refuse_what_the_rules_refuse(chunk: int, k: int) -> None:
    """Not only the NumPy code behind them, which names the rule: of good sets they ask nobody."""
    plan = make_plan({"w": (chunk * 4, chunk)}, chunk, k, scaled_bits=2)
    group, coder = plan.groups[0], get_coder(plan.groups[0])
    assert not isinstance(coder, EnumerativeCoder)
    generator = np.random.default_rng(1)
    for seed in range(60):
        (sets,) = make_sets(plan, seed=seed, full=seed % 3 > 0)
        raw = np.concatenate(coder.encode(sets.indices))
        place = int(generator.integers(0, 8 * raw.size))
        raw[place // 8] ^= 1 << place % 8
        try:
            with coding(NUMPY):
                coder.check(raw, group.chunks)
            is_good = True
        except WireError as error:
            is_good = "padding" in str(error)  # is checked before
        split = coder.get_size_bytes(group.chunks) - (group.chunks * coder.row_bits + 7) // 8
        found, sizes = np.empty(sets.indices.shape, np.int32), np.empty(group.chunks, np.int64)
        bits = coder.low_bits, coder.row_bits
        assert codec_kernels.decode_positions(raw[:split], raw[split:], coder.area, *bits, found, sizes) == is_good


@pytest.mark.parametrize(("area", "topk"), [(4096, 8), (256, 16), (128, 64), (16384, 10), (9, 4), (2, 1)])
def test_compiled_ranks_are_those_of_the_tables_at_both_ends_of_each_size(area: int, topk: int) -> None:
    coder = EnumerativeCoder(area, topk)
    sets = [list(range(size)) + [area] * (topk - size) for size in range(topk + 1)]
    sets += [list(range(area - size, area)) + [area] * (topk - size) for size in range(topk + 1)]
    array = np.array(sets, dtype=np.int32)
    high, low = codec_kernels.rank(coder, array)
    assert [x.tolist() for x in (high, low)] == [x.tolist() for x in coder.rank(array)]
    raw = np.concatenate(coder.encode(array))
    assert np.array_equal(coder.decode(raw, len(sets)), array)
    found, sizes = np.empty_like(array), np.empty(len(sets), dtype=np.int64)
    assert codec_kernels.decode_ranks(coder, raw, coder.planes, found, sizes)
    assert found.tolist() == sets
    assert sizes.tolist() == (array < area).sum(axis=1).tolist()


def test_without_numba_the_log_has_one_line_that_says_what_to_install() -> None:
    code = """
import sys
sys.modules["numba"] = None
from psyche.modeling.distro import compiled
from psyche.modeling.distro.bits import pack_numbers, unpack_numbers
import numpy as np
numbers = np.arange(100_000, dtype=np.uint64)
assert (unpack_numbers(pack_numbers(numbers, 17), numbers.size, 17) == numbers).all()
assert compiled.find_kernels("psyche.modeling.local.kernels") is None
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    (line,) = (done.stdout + done.stderr).splitlines()
    assert "pip install 'numba>=0.62,<1'" in line
