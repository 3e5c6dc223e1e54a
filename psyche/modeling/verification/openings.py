"""The momentum root and its openings: single chunks of a member's momentum, shown to a verifier (V5, V11).

The root is that of a Merkle tree over all chunks of all groups of the plan, in its order. An opening has the
coefficients of the chunks that the seed names, and for each of them the hashes beside its way up. Its length follows
from plan and seed, so nothing else is read.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from blake3 import blake3

from psyche.core.encoding.plan import TransformPlan
from psyche.core.encoding.reader import Reader
from psyche.core.state.limits import HASH_BYTES
from psyche.core.state.state import ZERO32
from psyche.errors import WireError

OPEN_TAG: Final = b"psyche/open/1"
_NODE: Final = b"\x01"
_NUMBER_BYTES: Final = 4
_FLOAT_BYTES: Final = 4
Bytes: TypeAlias = bytes | memoryview


class Chunk(NamedTuple):
    """The place of a chunk: its group, its number in the group, and its number among all chunks."""

    group: int
    chunk: int
    leaf: int


class Opening(NamedTuple):
    """A chunk, and its fp32 coefficients as the root says."""

    place: Chunk
    coefficients: bytes


def compute_leaf(group: int, chunk: int, coefficients: Bytes) -> bytes:
    """The hash of one chunk: BLAKE3(tag | group u32 | chunk u32 | fp32 coefficients)."""
    place = group.to_bytes(_NUMBER_BYTES, "little") + chunk.to_bytes(_NUMBER_BYTES, "little")
    return blake3(b"".join((OPEN_TAG, place, coefficients))).digest()


class MomentumTree:
    """The hashes over the coefficients of all groups, each the bytes of its chunks one after another.

    It does not keep them: who opens chunks passes them again, as they were.
    """

    def __init__(self, plan: TransformPlan, groups: Sequence[Bytes]) -> None:
        self._plan = plan
        leaves: list[bytes] = []
        for number, (group, raw) in enumerate(zip(plan.groups, groups, strict=True)):
            size = group.area * _FLOAT_BYTES
            assert len(raw) == group.chunks * size, "a group's coefficients are those of all its chunks"
            leaves += (compute_leaf(number, c, raw[c * size : (c + 1) * size]) for c in range(group.chunks))
        self._levels: list[list[bytes]] = [leaves]
        while len(self._levels[-1]) > 1:
            self._levels.append(_compute_parents(self._levels[-1]))

    @property
    def root(self) -> bytes:
        return self._levels[-1][0] if self._levels[-1] else ZERO32

    def open(self, places: Sequence[Chunk], groups: Sequence[Bytes]) -> bytes:
        """The coefficients of these chunks, each with its way up."""
        parts: list[Bytes] = []
        for place in places:
            size = self._plan.groups[place.group].area * _FLOAT_BYTES
            parts.append(groups[place.group][place.chunk * size : (place.chunk + 1) * size])
            parts += (level[min(place.leaf >> k ^ 1, len(level) - 1)] for k, level in enumerate(self._levels[:-1]))
        return b"".join(parts)


def _compute_parents(level: list[bytes]) -> list[bytes]:
    whole = level + level[-1:] * (len(level) % 2)
    return [blake3(_NODE + a + b).digest() for a, b in zip(whole[::2], whole[1::2], strict=True)]


def draw_chunks(plan: TransformPlan, seed: bytes, opened_chunks: int) -> list[Chunk]:
    """The chunks that a seed opens: as many different ones as there are, at most `opened_chunks` (V11)."""
    ends = list(accumulate(group.chunks for group in plan.groups))
    total = ends[-1] if ends else 0
    drawn: dict[int, None] = {}
    key, number = hashlib.sha256(OPEN_TAG + seed).digest(), 0
    while len(drawn) < min(opened_chunks, total):
        digest = hashlib.sha256(key + number.to_bytes(_NUMBER_BYTES, "little")).digest()
        drawn[int.from_bytes(digest[:8], "little") % total] = None
        number += 1
    groups = [bisect_right(ends, leaf) for leaf in drawn]
    return [
        Chunk(group, leaf - ends[group] + plan.groups[group].chunks, leaf)
        for group, leaf in zip(groups, drawn, strict=True)
    ]


def get_opening_bytes(plan: TransformPlan, places: Sequence[Chunk]) -> int:
    """The length of an opening of these chunks: what is longer need not be fetched."""
    way = _compute_height(sum(group.chunks for group in plan.groups)) * HASH_BYTES
    return sum(plan.groups[place.group].area * _FLOAT_BYTES + way for place in places)


def decode_opening(plan: TransformPlan, places: Sequence[Chunk], root: bytes, raw: bytes) -> list[Opening]:
    """Read an opening of these chunks, and check every way up to the root.

    Raises:
        WireError: the length is another one, or a chunk is not one that the root covers at its place.
    """
    if len(raw) != (size_bytes := get_opening_bytes(plan, places)):
        raise WireError(f"opening: {len(raw)} bytes, must be {size_bytes} for {len(places)} chunks")
    reader = Reader(raw, "opening")
    leaves = sum(group.chunks for group in plan.groups)
    found: list[Opening] = []
    for place in places:
        coefficients = reader.take(plan.groups[place.group].area * _FLOAT_BYTES)
        node, width, at = compute_leaf(place.group, place.chunk, coefficients), leaves, place.leaf
        while width > 1:
            beside = reader.take(HASH_BYTES)
            node = blake3(_NODE + (beside + node if at & 1 else node + beside)).digest()
            at, width = at >> 1, (width + 1) // 2
        if node != root:
            raise WireError(f"opening: chunk {place.chunk} of group {place.group} is not under the momentum root")
        found.append(Opening(place, coefficients))
    return found


def get_pair_bytes(plan: TransformPlan, places: Sequence[Chunk], before: bytes) -> int:
    """The length of an opening of the momenta before and after a result: of one with a zero root there is nothing."""
    return get_opening_bytes(plan, places) * (1 + (before != ZERO32))


def decode_pair(
    plan: TransformPlan, places: Sequence[Chunk], before: bytes, after: bytes, raw: bytes
) -> tuple[list[Opening], list[Opening]]:
    """Read an opening of the momenta before and after a result, under their roots; WireError as `decode_opening`."""
    size = get_opening_bytes(plan, places) if before != ZERO32 else 0
    first = decode_opening(plan, places, before, raw[:size]) if size else []
    return first, decode_opening(plan, places, after, raw[size:])


def _compute_height(leaves: int) -> int:
    return max(0, leaves - 1).bit_length()
