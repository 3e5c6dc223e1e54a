"""Payloads and weights as docs/peer-training.md has them: plan, sets, exact apply, manifest. Nothing of psyche."""

import hashlib
import math
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

MIB = 1 << 20
ZERO = bytes(32)
Tensors = dict[str, NDArray[np.float32]]
Entries = dict[int, float]  # of a chunk: position, and sign or value


def hash3(*parts: bytes) -> bytes:
    return blake3(b"".join(parts)).digest()


def hash_chunks(data: bytes) -> bytes:
    return b"".join(hash3(data[i : i + MIB]) for i in range(0, len(data), MIB))


def get_blob_id(data: bytes) -> bytes:
    return hash3(b"psyche/blob/1", struct.pack("<QI", len(data), MIB), hash_chunks(data))


# --- weights --------------------------------------------------------------------------------------------


def encode_manifest(tensors: Tensors, files: Mapping[str, bytes], *, blank: bool = False) -> bytes:
    """The manifest; `blank`, of a run with full values, has zeros as the tensors' hashes."""
    raw = b"psyche/model/2" + struct.pack("<I", len(tensors))
    for name, values in sorted(tensors.items()):
        raw += encode_shape(name, values.shape) + (ZERO if blank else get_blob_id(values.tobytes()))
    return raw + encode_files(files)


def encode_files(files: Mapping[str, bytes]) -> bytes:
    raw = struct.pack("<I", len(files))
    for name, content in sorted(files.items()):
        raw += struct.pack("<H", len(name)) + name.encode() + struct.pack("<Q", len(content)) + get_blob_id(content)
    return raw


def encode_slice(tensors: Tensors, files: Mapping[str, bytes], random_seed: int) -> bytes:
    """The slice of a large model."""
    blobs = [values.tobytes() for _, values in sorted(tensors.items())]
    pieces = [hash3(blob[place : place + MIB]) for blob in blobs for place in range(0, len(blob), MIB)]
    chosen = range(random_seed % 64, len(pieces), 64)
    listed = [struct.pack("<I", number) + pieces[number] for number in chosen]
    return b"psyche/model/2" + struct.pack("<I", len(listed)) + b"".join(listed) + encode_files(files)


def encode_shape(name: str, dims: Sequence[int]) -> bytes:
    encoded = name.encode()
    return struct.pack(f"<H{len(encoded)}sB{len(dims)}I", len(encoded), encoded, len(dims), *dims)


def read_manifest(raw: bytes) -> tuple[list[tuple[str, tuple[int, ...], bytes]], list[tuple[str, int, bytes]]]:
    """The tensors (name, dimensions, blob id) and the files (name, bytes, blob id) of a manifest."""
    assert raw[:14] == b"psyche/model/2"
    at = 14

    def take(form: str) -> Any:
        nonlocal at
        found = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return found

    def take_name() -> str:
        (size,) = take("H")
        return take(f"{size}s")[0].decode()

    tensors: list[tuple[str, tuple[int, ...], bytes]] = []
    for _ in range(take("I")[0]):
        name = take_name()
        dims = take(f"{take('B')[0]}I")
        tensors.append((name, dims, take("32s")[0]))
    files: list[tuple[str, int, bytes]] = []
    for _ in range(take("I")[0]):
        name = take_name()
        files.append((name, *take("Q32s")))
    assert at == len(raw), "bytes are left over"
    return tensors, files


def compute_digest(chain: bytes, manifest: bytes) -> bytes:
    return hash3(b"psyche/state/1", chain, hash3(manifest))


def compute_chain(
    before: bytes, epoch: int, height: int, step: int, lr_bits: int, applied: Sequence[tuple[int, bytes]]
) -> bytes:
    pairs = [struct.pack("<H", member) + commitment for member, commitment in applied]
    return hash3(b"psyche/chain/1", before, struct.pack("<HIII", epoch, height, step, lr_bits), *pairs)


# --- the plan -------------------------------------------------------------------------------------------


@dataclass
class Cut:
    """A tensor in chunks."""

    name: str
    dims: tuple[int, ...]
    edges: tuple[int, int]

    @property
    def grid(self) -> tuple[int, int, int]:
        rows, columns = (1, 1, *self.dims)[-2:]
        return math.prod(self.dims[:-2]), rows // self.edges[0], columns // self.edges[1]

    def cut(self, values: NDArray[Any]) -> NDArray[Any]:
        """[chunks, height, width]"""
        batch, rows, columns = self.grid
        parts = values.reshape(batch, rows, self.edges[0], columns, self.edges[1])
        return parts.transpose(0, 1, 3, 2, 4).reshape(-1, *self.edges)

    def join(self, chunks: NDArray[Any]) -> NDArray[Any]:
        batch, rows, columns = self.grid
        parts = chunks.reshape(batch, rows, columns, *self.edges).transpose(0, 1, 3, 2, 4)
        return np.ascontiguousarray(parts).reshape(self.dims)


class Group:
    """All chunks of one shape."""

    def __init__(self, edges: tuple[int, int], cuts: list[Cut], topk: int, *, one_bit: bool) -> None:
        self.edges, self.cuts, self.one_bit = edges, cuts, one_bit
        self.chunks = sum(math.prod(cut.grid) for cut in cuts)
        self.area = edges[0] * edges[1]
        self.k = min(topk, self.area)
        self.sets = sum(math.comb(self.area, size) for size in range(self.k + 1))
        self.bits = (self.sets - 1).bit_length()
        self.low = (self.area // self.k).bit_length() - 1

    @property
    def is_ranked(self) -> bool:
        return self.bits <= 128

    @property
    def planes(self) -> list[int]:
        value_bits = self.k if self.one_bit else 32 * self.k
        if not self.is_ranked:
            return [self.k * self.low, self.k + ((self.area - 1) >> self.low) + 1, value_bits]
        words, rest = divmod(self.bits, 64)
        return [64] * words + [16] * (rest // 16) + [rest % 16] * bool(rest % 16) + [value_bits]

    @property
    def size(self) -> int:
        return sum((self.chunks * bits + 7) // 8 for bits in self.planes)

    def cut(self, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([cut.cut(tensors[cut.name]) for cut in self.cuts])

    def join(self, chunks: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
        at = 0
        for cut in self.cuts:
            count = math.prod(cut.grid)
            yield cut.name, cut.join(chunks[at : at + count])
            at += count


class Plan:
    """The cuts of all trained tensors."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], chunk: int, topk: int, *, one_bit: bool) -> None:
        self.topk, self.one_bit = topk, one_bit
        self.cuts = [Cut(name, dims, find_edges(dims, chunk)) for name, dims in sorted(shapes.items())]
        edges = sorted({cut.edges for cut in self.cuts})
        grouped = [(one, [cut for cut in self.cuts if cut.edges == one]) for one in edges]
        self.groups = [Group(one, cuts, topk, one_bit=one_bit) for one, cuts in grouped]

    @property
    def size(self) -> int:
        return sum(group.size for group in self.groups)

    def encode(self) -> bytes:
        raw = b"psyche/plan/1" + struct.pack("<I", len(self.cuts))
        for cut in self.cuts:
            raw += encode_shape(cut.name, cut.dims) + struct.pack("<HH", *cut.edges)
        return raw + struct.pack("<HB", self.topk, self.one_bit) + compute_basis_hash()


def find_edges(dims: tuple[int, ...], most: int) -> tuple[int, int]:
    rows, columns = (next(e for e in range(min(n, most), 0, -1) if n % e == 0) for n in (1, 1, *dims)[-2:])
    return rows, columns


@cache
def compute_dct(edge: int) -> NDArray[np.float64]:
    u, i = np.arange(edge)[:, None], np.arange(edge)[None, :]
    basis = np.sqrt(2 / edge) * np.cos(np.pi * (u * (2 * i + 1) % (4 * edge)) / (2 * edge))
    basis[0] = np.sqrt(1 / edge)
    return basis


@cache
def compute_basis(edge: int) -> NDArray[np.int64]:
    return np.rint(16_384 * compute_dct(edge)).astype(np.int64)


@cache
def compute_basis_hash() -> bytes:
    return hash3(*[compute_basis(edge).astype("<i2").tobytes() for edge in range(1, 129)])


# --- payloads -------------------------------------------------------------------------------------------


def pack_plane(numbers: Sequence[int], bits: int) -> bytes:
    whole = sum(number << place * bits for place, number in enumerate(numbers))
    return whole.to_bytes((len(numbers) * bits + 7) // 8, "little")


def unpack_plane(raw: bytes, count: int, bits: int) -> list[int]:
    whole = int.from_bytes(raw, "little")
    assert whole >> count * bits == 0, "a padding bit is set"
    return [whole >> place * bits & (1 << bits) - 1 for place in range(count)]


@cache
def list_binomials(area: int, size: int) -> list[int]:
    return [math.comb(place, size) for place in range(area + 1)]


def rank(group: Group, places: Sequence[int]) -> int:
    larger = sum(math.comb(group.area, size) for size in range(len(places) + 1, group.k + 1))
    return larger + sum(math.comb(place, number) for number, place in enumerate(places, 1))


def unrank(group: Group, number: int) -> list[int]:
    assert number < group.sets, "a rank is not below S"
    size = group.k
    while number >= (full := math.comb(group.area, size)):
        number, size = number - full, size - 1
    places: list[int] = []
    for j in range(size, 0, -1):
        places.insert(0, bisect_right(list_binomials(group.area, j), number) - 1)
        number -= math.comb(places[0], j)
    return places


def split_places(group: Group, places: Sequence[int]) -> list[int]:
    """What each plane but the last has of a chunk's positions."""
    if group.is_ranked:
        number, parts = rank(group, places), []
        for bits in group.planes[:-1]:
            parts.append(number & (1 << bits) - 1)
            number >>= bits
        return parts
    lows = sum((place & (1 << group.low) - 1) << j * group.low for j, place in enumerate(places))
    return [lows, sum(1 << (place >> group.low) + j for j, place in enumerate(places))]


def join_places(group: Group, parts: Sequence[int]) -> list[int]:
    if group.is_ranked:
        shifts = [sum(group.planes[:number]) for number in range(len(parts))]
        return unrank(group, sum(part << shift for part, shift in zip(parts, shifts, strict=True)))
    marks = [bit for bit in range(group.planes[1]) if parts[1] >> bit & 1]
    assert len(marks) <= group.k, "more than k positions"
    assert parts[0] >> len(marks) * group.low == 0, "low bits behind the last position"
    mask = (1 << group.low) - 1
    lows = [parts[0] >> j * group.low & mask for j in range(len(marks))]
    places = [(bit - j) << group.low | lows[j] for j, bit in enumerate(marks)]
    assert all(a < b for a, b in pairwise([*places, group.area])), "positions do not ascend"
    return places


def encode_values(group: Group, values: Sequence[float]) -> int:
    if group.one_bit:
        return sum((value < 0) << j for j, value in enumerate(values))
    return int.from_bytes(np.array(values, dtype="<f4").tobytes(), "little")


def decode_values(group: Group, raw: int, count: int) -> list[float]:
    if group.one_bit:
        assert raw >> count == 0, "signs behind the last position"
        return [-1 if raw >> j & 1 else 1 for j in range(count)]
    values: NDArray[np.float32] = np.frombuffer(raw.to_bytes(4 * group.k, "little"), "<f4")
    assert np.isfinite(values).all(), "a value is not finite"
    assert raw >> 32 * count == 0, "values behind the last position"
    assert values[:count].all(), "a value is zero"
    return values[:count].tolist()


def encode_payload(plan: Plan, chosen: Sequence[Sequence[Entries]]) -> bytes:
    body = b""
    for group, chunks in zip(plan.groups, chosen, strict=True):
        parts = [[*split_places(group, list(one)), encode_values(group, list(one.values()))] for one in chunks]
        for number, bits in enumerate(group.planes):
            body += pack_plane([part[number] for part in parts], bits)
    return body


def decode_payload(plan: Plan, body: bytes) -> list[list[Entries]]:
    """The entries of each chunk of each group; AssertionError for what the page has refused."""
    assert len(body) == plan.size, "another length than the plan's"
    decoded: list[list[Entries]] = []
    at = 0
    for group in plan.groups:
        planes: list[list[int]] = []
        for bits in group.planes:
            size = (group.chunks * bits + 7) // 8
            planes.append(unpack_plane(body[at : at + size], group.chunks, bits))
            at += size
        chunks: list[Entries] = []
        for *parts, values in zip(*planes, strict=True):
            places = join_places(group, parts)
            chunks.append(dict(zip(places, decode_values(group, values, len(places)), strict=True)))
        decoded.append(chunks)
    return decoded


# --- applying and training ------------------------------------------------------------------------------


def compute_means(group: Group, payloads: Sequence[Sequence[Entries]]) -> NDArray[Any]:
    """The means of the signs (integers) or of the values, [chunks, height, width]."""
    count = np.zeros((group.chunks, group.area), dtype=np.int64)
    total = np.zeros(count.shape, dtype=np.int64 if group.one_bit else np.float64)
    for chunks in payloads:
        for number, entries in enumerate(chunks):
            places = list(entries)
            count[number, places] += 1
            total[number, places] += np.array(list(entries.values()), dtype=total.dtype)
    if not group.one_bit:
        return (total / np.maximum(count, 1)).reshape(-1, *group.edges)
    return np.rint(1_024 * total / np.maximum(count, 1)).astype(np.int64).reshape(-1, *group.edges)


def invert(group: Group, payloads: Sequence[Sequence[Entries]]) -> NDArray[Any]:
    """X of each chunk, [chunks, height, width]."""
    bases: list[NDArray[Any]] = [compute_basis(edge) if group.one_bit else compute_dct(edge) for edge in group.edges]
    inverse = compute_means(group, payloads) @ bases[1]
    return bases[0].T @ inverse if group.edges[0] > 1 else inverse


def apply(plan: Plan, tensors: Tensors, bodies: Sequence[bytes], lr: np.float32, decay: np.float32) -> Tensors:
    """The tensors after the apply of decided payloads; those that are not in the plan stay."""
    payloads = [decode_payload(plan, body) for body in bodies]
    after = dict(tensors)
    if decay:
        factor = np.float32(1.0 - float(lr) * float(decay))
        after |= {cut.name: after[cut.name] * factor for cut in plan.cuts}
    for place, group in enumerate(plan.groups if payloads else ()):
        inverse = invert(group, [payload[place] for payload in payloads])
        weights = group.cut(after) - np.sign(inverse).astype(np.float32) * lr
        after |= dict(group.join(weights.astype(np.float32)))
    return after


class Momentum:
    """What is still to be sent, by group: [chunks, area]."""

    def __init__(self, plan: Plan, decay: float) -> None:
        self._plan, self._decay = plan, np.float32(decay)
        self._kept = [np.zeros((group.chunks, group.area), dtype=np.float32) for group in plan.groups]
        self._sent: list[list[Entries]] = []

    def compress(self, gradient: Tensors, lr: np.float32) -> bytes:
        """Take out what was sent, add a gradient, and choose what to send."""
        for kept, chunks in zip(self._kept, self._sent, strict=False):
            for number, entries in enumerate(chunks):
                kept[number, list(entries)] = 0
        self._sent = [self._choose(place, group, gradient, lr) for place, group in enumerate(self._plan.groups)]
        return encode_payload(self._plan, self._sent)

    def _choose(self, place: int, group: Group, gradient: Tensors, lr: np.float32) -> list[Entries]:
        height, width = (compute_dct(edge).astype(np.float32) for edge in group.edges)
        changed = (height @ group.cut(gradient) @ width.T).reshape(group.chunks, group.area)
        kept = self._kept[place] = (self._decay * self._kept[place] + lr * changed).astype(np.float32)
        chosen: list[Entries] = []
        for row in kept:
            largest = np.argsort(-np.abs(row), kind="stable")[: group.k]
            chosen.append({place: float(row[place]) for place in sorted(largest.tolist()) if row[place]})
        return chosen


def permute_row(row: int, rows: int, seed: bytes, number: int) -> int:
    """The row of sample `row` of pass `number`."""
    side, mask = math.isqrt(rows - 1) + 1, (1 << 64) - 1
    raw = hashlib.shake_256(b"psyche/shuffle/1" + struct.pack("<Q", number) + seed).digest(80)
    while True:
        left, right = divmod(row, side)
        for key in struct.unpack("<10Q", raw):
            x = (right + key) & mask
            x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
            x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
            x ^= x >> 31
            left, right = right, (left + x % side) % side
        row = left * side + right
        if row < rows:
            return row
