"""A payload as bytes and back: what one trainer sends for one round.

A payload is, per chunk of the plan, a set of 0 to k rising positions with a sign each (1-bit mode)
or a float32 value each. Equal sets are equal bytes, and only those bytes decode: everything else is
refused, before anything is allocated where the length gives it away.

NumPy only: the client's parent validates payloads without torch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from psyche.core.encoding.plan import PlanGroup, TransformPlan, get_payload_bytes
from psyche.errors import WireError
from psyche.modeling.distro.bits import get_packed_bytes, is_padding_zero, pack_rows, unpack_rows
from psyche.modeling.distro.elias_fano import EliasFanoCoder
from psyche.modeling.distro.enumerative import EnumerativeCoder

Coder = EnumerativeCoder | EliasFanoCoder
_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True)
class ChunkSets:
    """The sets of one group.

    `indices` int32 [chunks, k]: rising positions in the chunk, padded with the chunk's area.
    `values` [chunks, k]: int8 +1 or -1 in 1-bit mode, float32 otherwise; 0 where there is no entry.
    """

    indices: NDArray[np.int32]
    values: NDArray[np.int8] | NDArray[np.float32]


def encode_payload(plan: TransformPlan, sets: Sequence[ChunkSets]) -> bytes:
    """The body of a result; `sets` stand in the order of `plan.groups`.

    Values are taken as they are in full-value mode; in 1-bit mode their signs are.
    """
    assert len(sets) == len(plan.groups), "one ChunkSets per group"
    parts: list[bytes] = []
    for group, chosen in zip(plan.groups, sets, strict=True):
        assert chosen.indices.shape == (group.chunks, group.k), "sets must have the shape of the plan"
        parts.append(get_coder(group).encode(chosen.indices))
        parts.append(_encode_values(group, chosen))
    body = b"".join(parts)
    assert len(body) == get_payload_bytes(plan), "the coders and the plan agree on lengths"
    return body


def decode_payload(plan: TransformPlan, body: bytes) -> list[ChunkSets]:
    """The sets of a payload, in the order of `plan.groups`.

    Raises:
        WireError: wrong length, a rank at or above the number of sets (or positions that are no set),
            signs or values at or above a set's size, padding that is not zero, values that are zero or
            not finite. The message names group and rule.
    """
    return [_decode_group(group, raw) for group, raw in _split_groups(plan, body)]


def validate_payload(plan: TransformPlan, body: bytes) -> None:
    """Check all that `decode_payload` checks, at about a tenth of its cost (R4).

    Raises:
        WireError: as `decode_payload`.
    """
    for group, raw in _split_groups(plan, body):
        with _naming(group):
            sets, values = _split_values(group, raw)
            sizes = get_coder(group).check(sets, group.chunks)
            _check_values(group, values, sizes)


@lru_cache(maxsize=16)
def _make_coder(area: int, topk: int, low_bits: int, high_bits: int, *, is_enumerative: bool) -> Coder:
    if is_enumerative:
        return EnumerativeCoder(area, topk)
    return EliasFanoCoder(area, topk, low_bits, high_bits)


def get_coder(group: PlanGroup) -> Coder:
    """The coder of a group's sets, with its tables, made once."""
    return _make_coder(group.area, group.k, group.low_bits, group.high_bits, is_enumerative=group.is_enumerative)


@contextmanager
def _naming(group: PlanGroup) -> Iterator[None]:
    """Put the group's name before the message of a refusal."""
    try:
        yield
    except WireError as error:
        height, width = group.edges
        raise WireError(f"payload, chunks of {height} x {width}: {error}") from None


def _split_groups(plan: TransformPlan, body: bytes) -> Iterator[tuple[PlanGroup, NDArray[np.uint8]]]:
    """The bytes of each group; refuses a wrong length before anything else."""
    if len(body) != get_payload_bytes(plan):
        raise WireError(f"payload: {len(body)} bytes, the plan says {get_payload_bytes(plan)}")
    raw = np.frombuffer(body, dtype=np.uint8)
    at = 0
    for group in plan.groups:
        size = group.payload_bytes
        yield group, raw[at : at + size]
        at += size


def _split_values(group: PlanGroup, raw: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A group's bytes as those of its sets and those of its signs or values."""
    split = get_coder(group).get_size_bytes(group.chunks)
    return raw[:split], raw[split:]


def _decode_group(group: PlanGroup, raw: NDArray[np.uint8]) -> ChunkSets:
    with _naming(group):
        sets, values = _split_values(group, raw)
        indices = get_coder(group).decode(sets, group.chunks)
        present = indices < group.area
        _check_values(group, values, None if present.all() else present.sum(axis=1))
        return ChunkSets(indices, _decode_values(group, values, present))


def _encode_values(group: PlanGroup, chosen: ChunkSets) -> bytes:
    """Sign bits (1 is negative) or little-endian float32 values, entry by entry."""
    if group.one_bit:
        return pack_rows(chosen.values < 0).tobytes()
    return chosen.values.astype("<f4", copy=False).tobytes()


def _decode_values(
    group: PlanGroup, raw: NDArray[np.uint8], present: NDArray[np.bool_]
) -> NDArray[np.int8] | NDArray[np.float32]:
    if not group.one_bit:
        return raw.view("<f4").reshape(group.chunks, group.k).astype(np.float32)
    signs = unpack_rows(raw, group.chunks, group.k).view(np.int8)
    signs *= -2
    signs += 1
    signs *= present
    return signs


def _check_values(group: PlanGroup, raw: NDArray[np.uint8], sizes: NDArray[np.int64] | None) -> None:
    """Refuse signs or values that the set does not have; `sizes` None: all sets are full."""
    if group.one_bit:
        _check_signs(group, raw, sizes)
    else:
        _check_floats(group, raw, sizes)


def _check_signs(group: PlanGroup, raw: NDArray[np.uint8], sizes: NDArray[np.int64] | None) -> None:
    assert raw.size == get_packed_bytes(group.chunks * group.k), "the caller checks lengths"
    if not is_padding_zero(raw, group.chunks * group.k):
        raise WireError("signs: padding bits must be zero")
    if sizes is None or int(sizes.min()) == group.k:
        return
    extra = np.arange(group.k) >= sizes[:, None]
    if (unpack_rows(raw, group.chunks, group.k) & extra).any():
        raise WireError("signs: bits at or above the set's size must be zero")


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
