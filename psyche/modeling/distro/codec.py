"""The coding of payloads; a payload is the result that one trainer sends for one round.

For each chunk of the plan, a payload holds a set of 0 to k ascending positions, each with a sign (1-bit mode) or a
float32 value. In plans of local steps a value is a sign or a sign and a level, times a power of two that its chunk has.
The coding is canonical: equal sets have equal bytes, and all other bytes are refused. A wrong length is
refused before anything is allocated.

NumPy only, because the client's parent process validates payloads without torch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from psyche.core.encoding.plan import PlanGroup, TransformPlan, get_payload_bytes
from psyche.errors import WireError
from psyche.modeling.distro.bits import (
    get_bytes_of,
    get_packed_bytes,
    is_padding_zero,
    iterate_blocks,
    pack_rows,
    unpack_rows,
)
from psyche.modeling.distro.compiled import find_coding
from psyche.modeling.distro.elias_fano import EliasFanoCoder
from psyche.modeling.distro.enumerative import EnumerativeCoder

Coder = EnumerativeCoder | EliasFanoCoder
_VALUE_BYTES = 4
_BLOCK_ENTRIES: Final = 1 << 18  # that are encoded together, so that temporaries do not grow with the model
_UNIT: Final = 64  # a multiple of so many chunks begins with a whole word in every plane
PLAN_NAME = "plan.bin"  # beside payloads that are kept: what they are read by
HIGH_LEVEL: Final = 3  # the value of a level bit; without it 1
LEAST_EXPONENT: Final = -32
UNIT_BITS: Final = -LEAST_EXPONENT  # local steps add values in units of 2^-32
MEAN_BITS: Final = 38  # of a magnitude in the mean that gives an exponent: the sum of 2^14 is exact in float64


@dataclass(frozen=True, slots=True)
class ChunkSets:
    """The sets of one group.

    `indices` is int32 [chunks, k]: ascending positions in the chunk, padded with the chunk's area.
    `values` is [chunks, k]: int8 +1 or -1 in 1-bit mode, float32 otherwise; 0 in padding. In plans of local steps it
    is int8 +-1 or, with two bits, +-3, times 2 to the power of `exponents`, int8 [chunks]: -32 to 0; 0 for empty sets.
    """

    indices: NDArray[np.int32]
    values: NDArray[np.int8] | NDArray[np.float32]
    exponents: NDArray[np.int8] | None = None

    def take(self, chunks: NDArray[np.int64] | slice) -> "ChunkSets":
        """The sets of some chunks."""
        exponents = None if self.exponents is None else self.exponents[chunks]
        return ChunkSets(self.indices[chunks], self.values[chunks], exponents)


class Sets(Protocol):
    """The sets of one group."""

    def take(self, chunks: slice, /) -> ChunkSets: ...


def encode_payload(plan: TransformPlan, sets: Sequence[Sets]) -> bytes:
    """Encode the body of a result; `sets` are in the order of `plan.groups`.

    In 1-bit mode only the signs of the values are encoded, in full-value mode the values themselves.
    """
    stream = BytesIO(bytes(get_payload_bytes(plan)))  # filled in its place, so that there are no two of it
    body = np.frombuffer(stream.getbuffer(), dtype=np.uint8)
    for group, chosen in zip(plan.groups, sets, strict=True):
        _encode_group(group, chosen, body[: group.payload_bytes])
        body = body[group.payload_bytes :]
    return stream.getvalue()


def _encode_group(group: PlanGroup, chosen: Sets, body: NDArray[np.uint8]) -> None:
    for rows in iterate_blocks(group.chunks, max(1, _BLOCK_ENTRIES // group.k // _UNIT) * _UNIT):
        part, at = chosen.take(rows), 0
        assert part.indices.shape == (rows.stop - rows.start, group.k), "sets must have the shape of the plan"
        planes = [*get_coder(group).encode(part.indices), *_encode_values(group, part)]
        for bits, plane in zip(group.planes, planes, strict=True):
            where = get_bytes_of(rows, bits)
            body[at + where.start : at + where.stop] = plane
            at += get_packed_bytes(group.chunks * bits)


def decode_payload(plan: TransformPlan, body: bytes) -> list[ChunkSets]:
    """Decode the sets of a payload, in the order of `plan.groups`.

    Raises:
        WireError: the length is wrong, a rank is not below the number of sets (or positions form no set), signs,
            levels or values beyond a set's size or padding are not zero, values are zero or not finite, or an exponent
            is out of range. The message names group and rule.
    """
    return [_decode_group(group, raw) for group, raw in _split_groups(plan, body)]


def validate_payload(plan: TransformPlan, body: bytes) -> None:
    """Check all that `decode_payload` checks, at about a tenth of its cost (R4)."""
    for group, raw in _split_groups(plan, body):
        with _naming(group):
            sets, values = _split_values(group, raw)
            sizes = get_coder(group).check(sets, group.chunks)
            _check_values(group, values, sizes)


@lru_cache(maxsize=16)
def get_coder(group: PlanGroup) -> Coder:
    if group.is_enumerative:
        return EnumerativeCoder(group.area, group.k)
    return EliasFanoCoder(group.area, group.k, group.low_bits, group.high_bits)


@contextmanager
def _naming(group: PlanGroup) -> Iterator[None]:
    try:
        yield
    except WireError as error:
        height, width = group.edges
        raise WireError(f"payload, chunks of {height} x {width}: {error}") from None


def _split_groups(plan: TransformPlan, body: bytes) -> Iterator[tuple[PlanGroup, NDArray[np.uint8]]]:
    if len(body) != get_payload_bytes(plan):
        raise WireError(f"payload: {len(body)} bytes, the plan says {get_payload_bytes(plan)}")
    raw = np.frombuffer(body, dtype=np.uint8)
    at = 0
    for group in plan.groups:
        size = group.payload_bytes
        yield group, raw[at : at + size]
        at += size


def _split_values(group: PlanGroup, raw: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    split = get_coder(group).get_size_bytes(group.chunks)
    return raw[:split], raw[split:]


def _decode_group(group: PlanGroup, raw: NDArray[np.uint8]) -> ChunkSets:
    with _naming(group):
        sets, values = _split_values(group, raw)
        indices = get_coder(group).decode(sets, group.chunks)
        planes, exponents = _split_planes(group, values)
        if planes and (coding := find_coding(raw.size)) is not None:
            decoded = coding.decode_values(planes, exponents, indices, group.area)
            if decoded is not None:
                return ChunkSets(indices, decoded, exponents)
        present = indices < group.area
        _check_values(group, values, None if present.all() else present.sum(axis=1))
        return ChunkSets(indices, _decode_values(group, values, present), exponents)


def _encode_values(group: PlanGroup, chosen: ChunkSets) -> Iterator[NDArray[np.uint8]]:
    """Encode sign bits (1 is negative) or little-endian float32 values, entry by entry, a plane after the other."""
    if not (group.one_bit or group.scaled_bits):
        yield chosen.values.astype("<f4", copy=False).reshape(-1).view(np.uint8)
        return
    yield pack_rows(chosen.values < 0)
    if group.scaled_bits > 1:
        yield pack_rows(np.abs(chosen.values) == HIGH_LEVEL)
    if chosen.exponents is not None:
        yield chosen.exponents.view(np.uint8)


def _split_planes(group: PlanGroup, raw: NDArray[np.uint8]) -> tuple[list[NDArray[np.uint8]], NDArray[np.int8] | None]:
    """The planes of signs and levels (with two bits a value), and the exponents of local steps; none of full values."""
    if not group.scaled_bits:
        return ([raw] if group.one_bit else []), None
    size = get_packed_bytes(group.chunks * group.k)
    *planes, exponents = np.split(raw, [size * plane for plane in range(1, group.scaled_bits + 1)])
    return planes, exponents.view(np.int8).copy()


def _decode_values(
    group: PlanGroup, raw: NDArray[np.uint8], present: NDArray[np.bool_]
) -> NDArray[np.int8] | NDArray[np.float32]:
    planes, _ = _split_planes(group, raw)
    if not planes:
        return raw.view("<f4").reshape(group.chunks, group.k).astype(np.float32)
    signs = unpack_rows(planes[0], group.chunks, group.k).view(np.int8)
    signs *= -2
    signs += 1
    signs *= present
    if len(planes) > 1:
        levels = unpack_rows(planes[1], group.chunks, group.k).view(np.int8)
        signs *= levels * (HIGH_LEVEL - 1) + 1
    return signs


def _check_values(group: PlanGroup, raw: NDArray[np.uint8], sizes: NDArray[np.int64] | None) -> None:
    """Refuse signs or values beyond the size of their set; `sizes` None means that all sets are full."""
    planes, exponents = _split_planes(group, raw)
    for name, plane in zip(("signs", "levels"), planes, strict=False):
        _check_bits(name, group, plane, sizes)
    if exponents is not None:
        _check_exponents(exponents, sizes)
    if not planes:
        _check_floats(group, raw, sizes)


def _check_bits(name: str, group: PlanGroup, raw: NDArray[np.uint8], sizes: NDArray[np.int64] | None) -> None:
    assert raw.size == get_packed_bytes(group.chunks * group.k), "the caller checks lengths"
    if not is_padding_zero(raw, group.chunks * group.k):
        raise WireError(f"{name}: padding bits must be zero")
    if sizes is None or int(sizes.min()) == group.k:
        return
    extra = np.arange(group.k) >= sizes[:, None]
    if (unpack_rows(raw, group.chunks, group.k) & extra).any():
        raise WireError(f"{name}: bits at or above the set's size must be zero")


def _check_exponents(exponents: NDArray[np.int8], sizes: NDArray[np.int64] | None) -> None:
    if ((exponents > 0) | (exponents < LEAST_EXPONENT)).any():
        raise WireError(f"exponents: one is not between {LEAST_EXPONENT} and 0")
    if sizes is not None and exponents[sizes == 0].any():
        raise WireError("exponents: that of an empty set must be zero")


def _check_floats(group: PlanGroup, raw: NDArray[np.uint8], sizes: NDArray[np.int64] | None) -> None:
    assert raw.size == group.chunks * group.k * _VALUE_BYTES, "the caller checks lengths"
    values = raw.view("<f4").reshape(group.chunks, group.k)
    if not np.isfinite(values).all():
        raise WireError("values: all must be finite")
    extra = np.zeros(values.shape, dtype=np.bool_) if sizes is None else np.arange(group.k) >= sizes[:, None]
    if (values[~extra] == 0).any():
        raise WireError("values: zero is not sent")
    if raw.view("<u4").reshape(values.shape)[extra].any():
        raise WireError("values: those at or above the set's size must be zero")
