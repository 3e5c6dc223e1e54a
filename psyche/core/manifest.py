"""Canonical lists of a model's weights, whose hashes are the weight part of a state digest (S2)."""

import itertools
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from psyche.core.limits import HASH_BYTES
from psyche.core.reader import Reader, encode_shape
from psyche.errors import WireError

MODEL_TAG: Final = b"psyche/model/1"
SLICES: Final = 64  # a slice digest covers one 64th of the weights, so 64 rounds cover most of them


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its name, its dimensions, and the blob id (32 bytes) of its fp32 little-endian bytes."""

    name: str
    dims: tuple[int, ...]
    blob_id: bytes


def encode_manifest(entries: Iterable[TensorEntry]) -> bytes:
    """The manifest's canonical bytes, whatever the order of `entries`.

    Tag | tensors u32 | per tensor in order of names: name length u16, name, dimensions u8, each u32,
    blob id 32.

    Raises:
        WireError: two tensors of one name, or a value that the format cannot hold.
    """
    ordered = sorted(entries, key=lambda entry: entry.name)
    for before, after in itertools.pairwise(ordered):
        if before.name == after.name:
            raise WireError(f"manifest: tensor {after.name!a} appears twice")
    if any(len(entry.blob_id) != HASH_BYTES for entry in ordered):
        raise WireError(f"manifest: every blob id must have {HASH_BYTES} bytes")
    body = b"".join(encode_shape(entry.name, entry.dims) + entry.blob_id for entry in ordered)
    return MODEL_TAG + struct.pack("<I", len(ordered)) + body


def decode_manifest(raw: bytes) -> tuple[TensorEntry, ...]:
    """Read a manifest, in order of names; what is accepted encodes back to the same bytes.

    Raises:
        WireError: another tag, cut off, bytes too many, names not UTF-8 or not rising.
    """
    reader = Reader(raw, "manifest")
    reader.expect(MODEL_TAG, "tag")
    entries: list[TensorEntry] = []
    for _ in range(reader.u32("number of tensors")):
        entry = TensorEntry(reader.name("name"), reader.dims("dimensions"), reader.take(HASH_BYTES, "blob id"))
        if entries and entry.name <= entries[-1].name:
            raise reader.fail(f"names do not rise at {entry.name!a}")
        entries.append(entry)
    reader.finish()
    return tuple(entries)


def compute_slice_chunks(total_chunks: int, random_seed: int) -> range:
    """The numbers of the 1 MiB chunks that a round's slice digest covers, rising (S2).

    Chunks count through the whole manifest in its order, from 0.
    """
    return range(random_seed % SLICES, total_chunks, SLICES)


def encode_slice(items: Iterable[tuple[int, bytes]]) -> bytes:
    """The canonical bytes of a slice: tag | their number u32 | (chunk number u32, chunk hash 32) each, rising.

    Raises:
        WireError: a number twice, one over 32 bits, or a hash of another length.
    """
    ordered = sorted(items)
    if len(dict(ordered)) != len(ordered):
        raise WireError("slice: a chunk number appears twice")
    if any(len(chunk_hash) != HASH_BYTES or not 0 <= number < 1 << 32 for number, chunk_hash in ordered):
        raise WireError(f"slice: every item is a number of 32 bits and a hash of {HASH_BYTES} bytes")
    body = b"".join(struct.pack("<I", number) + chunk_hash for number, chunk_hash in ordered)
    return MODEL_TAG + struct.pack("<I", len(ordered)) + body
