"""The bytes and hashes of weights: blobs, manifest, weight part of the digest (`docs/protocol-reference.md` S2)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from psyche.core.encoding.manifest import FileEntry, TensorEntry, compute_slice_chunks, encode_manifest, encode_slice
from psyche.core.state.limits import FULL_DIGEST_MAX_PARAMETERS, HASH_BYTES
from psyche.wire.crypto import BLOB_CHUNK_BYTES, blake3_hash, blob_id_of

_CHUNK_ELEMENTS = BLOB_CHUNK_BYTES // 4


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor whose values several ranks hold; `read` fetches elements [start, stop) of it as a flat tensor."""

    shape: tuple[int, ...]
    read: Callable[[int, int], torch.Tensor]

    def numel(self) -> int:
        return math.prod(self.shape)

    def detach(self) -> torch.Tensor:
        return self.read(0, self.numel()).view(self.shape)


Tensors = Mapping[str, torch.Tensor | Stored]


def get_bytes(tensor: torch.Tensor | Stored) -> memoryview:
    """The values as fp32, little-endian, row-major; on a CPU without a copy where the tensor is so already."""
    flat = tensor.detach().to("cpu", torch.float32).contiguous().reshape(-1)
    array = flat.numpy().astype("<f4", copy=False)
    return memoryview(array.data).cast("B")


def compute_entries(tensors: Tensors, on_progress: Callable[[], None] = lambda: None) -> list[TensorEntry]:
    entries: list[TensorEntry] = []
    for name, tensor in tensors.items():
        entries.append(TensorEntry(name, tuple(tensor.shape), blob_id_of(get_bytes(tensor))))
        on_progress()
    return entries


def compute_weight_root(
    tensors: Tensors, files: Sequence[FileEntry], on_progress: Callable[[], None] = lambda: None
) -> bytes:
    """The full weight part: BLAKE3 of the manifest of all tensors and small files (32 bytes)."""
    return blake3_hash(encode_manifest(compute_entries(tensors, on_progress), files))


def compute_blank_root(tensors: Tensors, files: Sequence[FileEntry]) -> bytes:
    """The weight part in full-value mode: it covers names, shapes and files but no values, so it never changes."""
    entries = tuple(TensorEntry(name, tuple(tensor.shape), bytes(HASH_BYTES)) for name, tensor in tensors.items())
    return blake3_hash(encode_manifest(entries, files))


def get_chunk_count(tensor: torch.Tensor | Stored) -> int:
    return -(-tensor.numel() // _CHUNK_ELEMENTS)


def compute_slice_root(tensors: Tensors, files: Sequence[FileEntry], random_seed: int) -> bytes:
    """The weight part of a round's slice: the chunks whose number modulo 64 equals that of the seed, and all files.

    Chunks are numbered across all tensors, in manifest order; the last chunk of a tensor may be shorter.
    """
    total = sum(get_chunk_count(t) for t in tensors.values())
    wanted = iter(sorted(compute_slice_chunks(total, random_seed)))
    number = next(wanted, None)
    first = 0
    items: list[tuple[int, bytes]] = []
    for tensor in tensors.values():
        end = first + get_chunk_count(tensor)
        while number is not None and number < end:
            start = (number - first) * _CHUNK_ELEMENTS
            items.append((number, blake3_hash(get_bytes(_read(tensor, start, start + _CHUNK_ELEMENTS)))))
            number = next(wanted, None)
        first = end
    return blake3_hash(encode_slice(items, files))


def _read(tensor: torch.Tensor | Stored, start: int, stop: int) -> torch.Tensor:
    if isinstance(tensor, Stored):
        return tensor.read(start, min(stop, tensor.numel()))
    return tensor.detach().reshape(-1)[start:stop]


def compute_weight_part(
    tensors: Tensors, files: Sequence[FileEntry], *, is_exact: bool, full: bool, random_seed: int
) -> tuple[bytes, bool]:
    """The weight part of D(h), and whether it is full: it is up to 100M parameters, otherwise if `full` is set.

    `files` are the manifest's entries for the small files, which do not change during a run. In full-value mode, which
    is not exact, the digest leaves out the tensors' values (S2).
    """
    if not is_exact:
        return compute_blank_root(tensors, files), True
    count = sum(t.numel() for t in tensors.values())
    if full or count <= FULL_DIGEST_MAX_PARAMETERS:
        return compute_weight_root(tensors, files), True
    return compute_slice_root(tensors, files, random_seed), False
