"""Weights as bytes: blobs, the manifest, and the weight part of the state digest (`docs/protocol-reference.md` S2)."""

from collections.abc import Callable, Mapping

import torch

from psyche.core.limits import FULL_DIGEST_MAX_PARAMETERS
from psyche.core.manifest import TensorEntry, compute_slice_chunks, encode_manifest, encode_slice
from psyche.wire.crypto import BLOB_CHUNK_BYTES, blake3_hash, blob_id_of

_CHUNK_ELEMENTS = BLOB_CHUNK_BYTES // 4


def get_bytes(tensor: torch.Tensor) -> memoryview:
    """A tensor's fp32 little-endian bytes, row-major; a view where the tensor lies so in memory already."""
    flat = tensor.detach().to("cpu", torch.float32).contiguous().reshape(-1)
    array = flat.numpy().astype("<f4", copy=False)
    return memoryview(array.data).cast("B")


def compute_entries(
    parameters: Mapping[str, torch.Tensor], on_progress: Callable[[], None] = lambda: None
) -> list[TensorEntry]:
    """The manifest's entries; `parameters` in ascending name order. `on_progress` is called per tensor."""
    entries: list[TensorEntry] = []
    for name, tensor in parameters.items():
        entries.append(TensorEntry(name, tuple(tensor.shape), blob_id_of(get_bytes(tensor))))
        on_progress()
    return entries


def compute_weight_root(
    parameters: Mapping[str, torch.Tensor], on_progress: Callable[[], None] = lambda: None
) -> bytes:
    """The full weight part: BLAKE3 of the manifest."""
    return blake3_hash(encode_manifest(compute_entries(parameters, on_progress)))


def get_chunk_count(tensor: torch.Tensor) -> int:
    """How many 1 MiB chunks a tensor's blob has."""
    return -(-tensor.numel() // _CHUNK_ELEMENTS)


def compute_slice_root(parameters: Mapping[str, torch.Tensor], random_seed: int) -> bytes:
    """The weight part over the slice of a round: the chunks whose number is random_seed modulo 64.

    Chunks are numbered through all tensors in manifest order; a tensor's last chunk may be shorter.
    """
    total = sum(get_chunk_count(t) for t in parameters.values())
    wanted = iter(sorted(compute_slice_chunks(total, random_seed)))
    number = next(wanted, None)
    first = 0
    items: list[tuple[int, bytes]] = []
    for tensor in parameters.values():
        end = first + get_chunk_count(tensor)
        flat = tensor.detach().reshape(-1)
        while number is not None and number < end:
            start = (number - first) * _CHUNK_ELEMENTS
            items.append((number, blake3_hash(get_bytes(flat[start : start + _CHUNK_ELEMENTS]))))
            number = next(wanted, None)
        first = end
    return blake3_hash(encode_slice(items))


def compute_weight_part(parameters: Mapping[str, torch.Tensor], *, full: bool, random_seed: int) -> tuple[bytes, bool]:
    """The weight part of D(h) and whether it covers all tensors: always up to 100M parameters, else where asked."""
    count = sum(t.numel() for t in parameters.values())
    if full or count <= FULL_DIGEST_MAX_PARAMETERS:
        return compute_weight_root(parameters), True
    return compute_slice_root(parameters, random_seed), False
