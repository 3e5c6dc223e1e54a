"""The transform plan: how a model's tensors are cut into chunks, and how long a payload is.

A plan is pure data, computed from names and shapes. Every result header carries its hash, so peers with
different plans refuse each other's results at once.

**Chunks.** The last two dimensions of a tensor are cut into chunks of h x w; the leading ones are batch. A 1-D
tensor is cut along its only dimension (1 x w), a scalar is one chunk of 1 x 1. The chunks of a tensor are numbered
row-major: batch, then chunk rows, then chunk columns.

**Groups.** All chunks of one shape form a group: tensors in plan order (ascending names), the chunks of each tensor
in the order above.

**Payload.** A payload holds the groups in ascending (h, w) and, for each group, its planes (`PlanGroup.planes`). A
plane holds one part of the code of every chunk of the group, rounded up to whole bytes:

- enumerative sets (at most 128 bits): the rank's low bits as u64 planes, then as u16 planes, then the remaining
  bits, packed: 81 bits become planes of 64, 16 and 1;
- Elias-Fano sets (more than 128 bits): k times `low_bits` low bits, then the unary part of `high_bits`;
- then k sign bits (1-bit mode), or k float32 values, unused ones zero;
- in plans of local steps (`scaled_bits`) k sign bits, with two bits a value k level bits, and an i8 exponent.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

from psyche.core.encoding.reader import Reader, encode_shape, take_dims, take_name
from psyche.errors import ConfigError

PLAN_TAG: Final = b"psyche/plan/1"
BASIS_HASH: Final = bytes.fromhex("85592481274a8c14cff7cf882e2ced148ab36f37ef349c1752d118b134dd147d")
MAX_CHUNK_EDGE: Final = 128  # the largest integer basis that the basis hash covers
MAX_SET_BITS: Final = 128  # a rank has at most two u64 words; larger sets are Elias-Fano coded
NO_BASIS: Final = bytes(32)  # in plans of local steps, which have no transform
VALUE_BITS: Final = 32
EXPONENT_BITS: Final = 8


@dataclass(frozen=True, slots=True)
class PlanTensor:
    """One trainable tensor: its name, dimensions and chunk edges (h, w)."""

    name: str
    dims: tuple[int, ...]
    edges: tuple[int, int]

    @property
    def grid(self) -> tuple[int, int, int]:
        batch, rows, columns = _get_matrix(self.dims)
        return batch, rows // self.edges[0], columns // self.edges[1]

    @property
    def chunks(self) -> int:
        return math.prod(self.grid)


@dataclass(frozen=True, slots=True)
class PlanGroup:
    """All chunks of one shape, and the code of their index sets."""

    edges: tuple[int, int]
    tensors: tuple[int, ...]  # indexes into the plan's tensors
    chunks: int
    k: int  # the most coefficients of a chunk that are sent
    one_bit: bool
    scaled_bits: int = 0

    @property
    def area(self) -> int:
        return self.edges[0] * self.edges[1]

    @property
    def sets(self) -> int:
        """The number of sets of 0 to k indices; exact only where `is_enumerative`."""
        return compute_sets(self.area, self.k)

    @property
    def is_enumerative(self) -> bool:
        """Whether a set is coded as its rank, a number below `sets`; otherwise it is Elias-Fano coded."""
        return compute_set_bits(self.area, self.k) <= MAX_SET_BITS

    @property
    def low_bits(self) -> int:
        """Elias-Fano: the low bits of each index, stored verbatim."""
        return (self.area // self.k).bit_length() - 1

    @property
    def high_bits(self) -> int:
        """Elias-Fano: the bits of the unary part, one per index and one per value of the high bits."""
        return self.k + ((self.area - 1) >> self.low_bits) + 1

    @property
    def set_bits(self) -> int:
        if self.is_enumerative:
            return compute_set_bits(self.area, self.k)
        return self.k * self.low_bits + self.high_bits

    @property
    def value_planes(self) -> tuple[int, ...]:
        """The bits per chunk of the planes that code a chunk's values."""
        if self.scaled_bits:
            return (self.k,) * self.scaled_bits + (EXPONENT_BITS,)
        return (self.k if self.one_bit else self.k * VALUE_BITS,)

    @property
    def planes(self) -> tuple[int, ...]:
        """The bits per chunk of each plane, in payload order."""
        if not self.is_enumerative:
            return (self.k * self.low_bits, self.high_bits, *self.value_planes)
        words, rest = divmod(self.set_bits, 64)
        halves, rest = divmod(rest, 16)
        return (64,) * words + (16,) * halves + ((rest,) if rest else ()) + self.value_planes

    @property
    def payload_bytes(self) -> int:
        return sum((self.chunks * bits + 7) // 8 for bits in self.planes)


@dataclass(frozen=True)
class TransformPlan:
    """The plan of a model: tensors sorted by name, coefficients per chunk, and how values are coded.

    With a transform they are signs (`one_bit`) or float32. Local steps have none: `scaled_bits` are the bits of each
    value, 1 (a sign) or 2 (a sign and a level), and each chunk has an exponent.
    """

    tensors: tuple[PlanTensor, ...]
    k: int
    one_bit: bool
    scaled_bits: int = 0

    @cached_property
    def groups(self) -> tuple[PlanGroup, ...]:
        members: dict[tuple[int, int], list[int]] = {}
        for place, tensor in enumerate(self.tensors):
            members.setdefault(tensor.edges, []).append(place)
        return tuple(self._make_group(edges, tuple(members[edges])) for edges in sorted(members))

    def _make_group(self, edges: tuple[int, int], places: tuple[int, ...]) -> PlanGroup:
        chunks = sum(self.tensors[place].chunks for place in places)
        return PlanGroup(edges, places, chunks, min(self.k, edges[0] * edges[1]), self.one_bit, self.scaled_bits)


def _get_matrix(dims: tuple[int, ...]) -> tuple[int, int, int]:
    """A tensor as a batch of matrices: (batch, rows, columns)."""
    rows, columns = (1, 1, *dims)[-2:]
    return math.prod(dims[:-2]), rows, columns


def compute_chunk_edge(n: int, target: int) -> int:
    """The largest divisor of `n` that is at most `target`; both must be at least 1."""
    return next(edge for edge in range(min(n, target), 0, -1) if n % edge == 0)


def compute_sets(area: int, k: int) -> int:
    """The number of sets of 0 to k of `area` indices; counting stops above 2^128."""
    total = 0
    for size in range(k + 1):
        total += math.comb(area, size)
        if total > 1 << MAX_SET_BITS:
            break
    return total


def compute_set_bits(area: int, k: int) -> int:
    """The bits of the rank of a set; a result above 128 is not exact."""
    return (compute_sets(area, k) - 1).bit_length()


def compute_plan(
    shapes: Mapping[str, tuple[int, ...]], chunk: int, topk: int, *, one_bit: bool, scaled_bits: int = 0
) -> TransformPlan:
    """Plan a model whose trainable tensors have these names and shapes (tied tensors once).

    `chunk` is the largest allowed edge of a chunk, `topk` the number of coefficients sent per chunk.

    Raises:
        ConfigError: `chunk` or `topk` is out of range, or a tensor has no elements.
    """
    if not 1 <= chunk <= MAX_CHUNK_EDGE:
        raise ConfigError(f"compression_chunk: {chunk} is not between 1 and {MAX_CHUNK_EDGE}")
    if not 1 <= topk < 1 << 16:
        raise ConfigError(f"compression_topk: {topk} is not between 1 and 65535")
    empty = next((name for name, dims in shapes.items() if not math.prod(dims)), None)
    if empty is not None:
        raise ConfigError(f"tensor {empty!a} has dimensions {shapes[empty]} and no elements to train")
    tensors = [PlanTensor(name, tuple(dims), _compute_edges(tuple(dims), chunk)) for name, dims in shapes.items()]
    return TransformPlan(tuple(sorted(tensors, key=lambda tensor: tensor.name)), topk, one_bit, scaled_bits)


class Compression(Protocol):
    """What a plan needs of a run's optimizer (`core/state/settings.py`, which imports this module)."""

    compression_chunk: int
    compression_topk: int
    quantize_1bit: bool
    value_bits: int  # of local steps; 0 for DisTrO


def compute_run_plan(shapes: Mapping[str, tuple[int, ...]], optimizer: Compression) -> TransformPlan:
    """The plan of a run's optimizer for these tensors, as `compute_plan`."""
    return compute_plan(
        shapes, optimizer.compression_chunk, optimizer.compression_topk, one_bit=optimizer.quantize_1bit,
        scaled_bits=optimizer.value_bits,
    )  # fmt: skip


def _compute_edges(dims: tuple[int, ...], chunk: int) -> tuple[int, int]:
    _, rows, columns = _get_matrix(dims)
    return compute_chunk_edge(rows, chunk), compute_chunk_edge(columns, chunk)


def encode_plan(plan: TransformPlan) -> bytes:
    """The plan's canonical bytes, whose BLAKE3 is the plan_hash.

    Raises:
        WireError: the format cannot hold a name or dimension.
    """
    tensors = b"".join(encode_shape(t.name, t.dims) + struct.pack("<HH", *t.edges) for t in plan.tensors)
    head = PLAN_TAG + struct.pack("<I", len(plan.tensors))
    basis = NO_BASIS if plan.scaled_bits else BASIS_HASH
    return head + tensors + struct.pack("<HB", plan.k, plan.scaled_bits or plan.one_bit) + basis


def decode_plan(raw: bytes) -> TransformPlan:
    """Read a plan; an accepted plan encodes back to the same bytes.

    Raises:
        WireError: the tag or basis is wrong, bytes are missing or left over, names are not in ascending order,
            edges do not divide a tensor, k is zero, or the value coding is unknown.
    """
    reader = Reader(raw, "plan")
    reader.expect(PLAN_TAG, "tag")
    tensors: list[PlanTensor] = []
    for _ in range(reader.take_number(4, "number of tensors")):
        tensor = _read_tensor(reader)
        if tensors and tensor.name <= tensors[-1].name:
            raise reader.fail(f"names do not rise at {tensor.name!a}")
        tensors.append(tensor)
    k, coding = reader.take_number(2, "k"), reader.take_number(1, "value coding")
    basis = reader.take(len(BASIS_HASH), "basis hash")
    reader.finish()
    is_scaled = basis == NO_BASIS
    if not is_scaled and basis != BASIS_HASH:
        raise reader.fail("does not match this protocol", "basis hash")
    if not k or coding not in ((1, 2) if is_scaled else (0, 1)):
        raise reader.fail("k is zero, or the value coding is neither 0 nor 1, or without a basis neither 1 nor 2")
    if is_scaled:
        return TransformPlan(tuple(tensors), k, one_bit=False, scaled_bits=coding)
    return TransformPlan(tuple(tensors), k, one_bit=bool(coding))


def _read_tensor(reader: Reader) -> PlanTensor:
    name, dims = take_name(reader, "name"), take_dims(reader)
    tensor = PlanTensor(name, dims, (reader.take_number(2, "edge"), reader.take_number(2, "edge")))
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
