"""The transform plan: how a model's tensors are cut into chunks, and how long a payload is.

Pure data, made from names and shapes; its hash stands in every result header, so that peers with
different plans refuse each other at once.

**Chunks.** Leading dimensions are batch, the last two are chunked, a 1-D tensor along its only
dimension (edges 1 x w), a scalar is one chunk of 1 x 1. Within a tensor chunks count row-major:
batch, then chunk rows, then chunk columns.

**Groups.** All chunks of one shape form a group: tensors in plan order (ascending names), chunks of
a tensor in the order above.

**Payload.** The groups in ascending (h, w); of each group its planes one after another
(`PlanGroup.planes`), each plane holding all chunks of the group, rounded up to whole bytes:

- enumerative sets (at most 128 bits): the rank's low bits as u64 planes, then u16 planes, then what
  is left, packed: 81 bits are planes of 64, 16 and 1;
- Elias-Fano sets (above): k times `low_bits` low bits, then the unary part of `high_bits`;
- then k sign bits (1-bit mode), or k float32 values of which the unused are zero.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from psyche.core.encoding.reader import Reader, encode_shape
from psyche.errors import ConfigError

PLAN_TAG: Final = b"psyche/plan/1"
BASIS_HASH: Final = bytes.fromhex("85592481274a8c14cff7cf882e2ced148ab36f37ef349c1752d118b134dd147d")
MAX_CHUNK_EDGE: Final = 128  # the integer bases that the basis hash covers end here
MAX_SET_BITS: Final = 128  # a rank is at most two u64 words; larger sets are Elias-Fano coded
VALUE_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class PlanTensor:
    """One trainable tensor: its name, dimensions and chunk edges (h, w)."""

    name: str
    dims: tuple[int, ...]
    edges: tuple[int, int]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Batch, chunk rows and chunk columns."""
        batch, rows, columns = _get_matrix(self.dims)
        return batch, rows // self.edges[0], columns // self.edges[1]

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return math.prod(self.grid)


@dataclass(frozen=True, slots=True)
class PlanGroup:
    """All chunks of one shape, and how their sets are coded."""

    edges: tuple[int, int]
    tensors: tuple[int, ...]  # their places in the plan
    chunks: int
    k: int  # at most this many coefficients of a chunk are sent
    one_bit: bool

    @property
    def area(self) -> int:
        """Coefficients of a chunk."""
        return self.edges[0] * self.edges[1]

    @property
    def sets(self) -> int:
        """The number of sets of 0 to k indices; exact only where `is_enumerative`."""
        return compute_sets(self.area, self.k)

    @property
    def is_enumerative(self) -> bool:
        """Whether a set is one number below `sets`, else Elias-Fano coded."""
        return compute_set_bits(self.area, self.k) <= MAX_SET_BITS

    @property
    def low_bits(self) -> int:
        """Elias-Fano: bits of an index that are written as they are."""
        return (self.area // self.k).bit_length() - 1

    @property
    def high_bits(self) -> int:
        """Elias-Fano: bits of the unary part, one per index and one per value of the high bits."""
        return self.k + ((self.area - 1) >> self.low_bits) + 1

    @property
    def set_bits(self) -> int:
        """Bits of a chunk's set."""
        if self.is_enumerative:
            return compute_set_bits(self.area, self.k)
        return self.k * self.low_bits + self.high_bits

    @property
    def value_bits(self) -> int:
        """Bits of a chunk's signs, or of its values."""
        return self.k if self.one_bit else self.k * VALUE_BITS

    @property
    def planes(self) -> tuple[int, ...]:
        """Bits per chunk of every plane of the payload, in their order."""
        if not self.is_enumerative:
            return (self.k * self.low_bits, self.high_bits, self.value_bits)
        words, rest = divmod(self.set_bits, 64)
        halves, rest = divmod(rest, 16)
        return (64,) * words + (16,) * halves + ((rest,) if rest else ()) + (self.value_bits,)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the group in a payload."""
        return sum((self.chunks * bits + 7) // 8 for bits in self.planes)


@dataclass(frozen=True)
class TransformPlan:
    """The plan of a model: tensors in ascending order of names, k, and what is sent per coefficient."""

    tensors: tuple[PlanTensor, ...]
    k: int
    one_bit: bool

    @cached_property
    def groups(self) -> tuple[PlanGroup, ...]:
        """The groups, ascending by (h, w): the order of a payload."""
        members: dict[tuple[int, int], list[int]] = {}
        for place, tensor in enumerate(self.tensors):
            members.setdefault(tensor.edges, []).append(place)
        return tuple(self._make_group(edges, tuple(members[edges])) for edges in sorted(members))

    def _make_group(self, edges: tuple[int, int], places: tuple[int, ...]) -> PlanGroup:
        chunks = sum(self.tensors[place].chunks for place in places)
        return PlanGroup(edges, places, chunks, min(self.k, edges[0] * edges[1]), self.one_bit)


def _get_matrix(dims: tuple[int, ...]) -> tuple[int, int, int]:
    """A tensor as a batch of matrices: (batch, rows, columns)."""
    rows, columns = (1, 1, *dims)[-2:]
    return math.prod(dims[:-2]), rows, columns


def compute_chunk_edge(n: int, target: int) -> int:
    """The largest divisor of `n` that is at most `target`; both at least 1."""
    return next(edge for edge in range(min(n, target), 0, -1) if n % edge == 0)


def compute_sets(area: int, k: int) -> int:
    """How many sets of 0 to k of `area` indices there are; counting ends beyond 2^128."""
    total = 0
    for size in range(k + 1):
        total += math.comb(area, size)
        if total > 1 << MAX_SET_BITS:
            break
    return total


def compute_set_bits(area: int, k: int) -> int:
    """Bits of the rank of a set; anything above 128 means only that."""
    return (compute_sets(area, k) - 1).bit_length()


def compute_plan(shapes: Mapping[str, tuple[int, ...]], chunk: int, topk: int, *, one_bit: bool) -> TransformPlan:
    """The plan of a model whose trainable tensors have these names and shapes (tied ones once).

    `chunk` is the edge that chunks should have, `topk` how many coefficients of each are sent.

    Raises:
        ConfigError: `chunk` or `topk` out of range, or a tensor without elements.
    """
    if not 1 <= chunk <= MAX_CHUNK_EDGE:
        raise ConfigError(f"compression_chunk: {chunk} is not between 1 and {MAX_CHUNK_EDGE}")
    if not 1 <= topk < 1 << 16:
        raise ConfigError(f"compression_topk: {topk} is not between 1 and 65535")
    empty = next((name for name, dims in shapes.items() if not math.prod(dims)), None)
    if empty is not None:
        raise ConfigError(f"tensor {empty!a} has dimensions {shapes[empty]} and no elements to train")
    tensors = [PlanTensor(name, tuple(dims), _compute_edges(tuple(dims), chunk)) for name, dims in shapes.items()]
    return TransformPlan(tuple(sorted(tensors, key=lambda tensor: tensor.name)), topk, one_bit)


def _compute_edges(dims: tuple[int, ...], chunk: int) -> tuple[int, int]:
    _, rows, columns = _get_matrix(dims)
    return compute_chunk_edge(rows, chunk), compute_chunk_edge(columns, chunk)


def encode_plan(plan: TransformPlan) -> bytes:
    """The plan's canonical bytes, whose BLAKE3 is the plan_hash.

    Raises:
        WireError: a name or dimension that the format cannot hold.
    """
    tensors = b"".join(encode_shape(t.name, t.dims) + struct.pack("<HH", *t.edges) for t in plan.tensors)
    head = PLAN_TAG + struct.pack("<I", len(plan.tensors))
    return head + tensors + struct.pack("<HB", plan.k, plan.one_bit) + BASIS_HASH


def decode_plan(raw: bytes) -> TransformPlan:
    """Read a plan; what is accepted encodes back to the same bytes.

    Raises:
        WireError: another tag or basis, cut off, bytes too many, names not rising, edges that do not
            divide the tensor, k zero.
    """
    reader = Reader(raw, "plan")
    reader.expect(PLAN_TAG, "tag")
    tensors: list[PlanTensor] = []
    for _ in range(reader.u32("number of tensors")):
        tensor = _read_tensor(reader)
        if tensors and tensor.name <= tensors[-1].name:
            raise reader.fail(f"names do not rise at {tensor.name!a}")
        tensors.append(tensor)
    k, one_bit = reader.u16("k"), reader.u8("1-bit")
    if not k or one_bit > 1:
        raise reader.fail("k is zero, or 1-bit neither 0 nor 1")
    reader.expect(BASIS_HASH, "basis hash")
    reader.finish()
    return TransformPlan(tuple(tensors), k, bool(one_bit))


def _read_tensor(reader: Reader) -> PlanTensor:
    tensor = PlanTensor(reader.name("name"), reader.dims("dimensions"), (reader.u16("edge"), reader.u16("edge")))
    _, rows, columns = _get_matrix(tensor.dims)
    for edge, n in zip(tensor.edges, (rows, columns), strict=True):
        if not 1 <= edge <= MAX_CHUNK_EDGE or n % edge:
            raise reader.fail(f"chunk edges {tensor.edges} of {tensor.name!a} do not divide {tensor.dims}")
    if not math.prod(tensor.dims):
        raise reader.fail(f"tensor {tensor.name!a} has no elements")
    return tensor


def get_payload_bytes(plan: TransformPlan) -> int:
    """The length of every payload body of this plan, in bytes."""
    return sum(group.payload_bytes for group in plan.groups)


assert compute_sets(4_096, 8) == 1_955_414_105_242_000_351_926_785, "the golden number of sets"
