"""`/psyche/blob/1` as bytes: fixed requests of 41 bytes, replies of status, length and body.

`M` id: requests the chunk list, which is the u64 size and the BLAKE3 hash of every 1 MiB chunk.
`R` id first count: requests the bytes of `count` <= 16 chunks, starting at chunk `first`.
Requests may be pipelined; replies come in the order of the requests. A blob of one chunk needs no
chunk list: its id can be computed from its bytes.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from psyche.errors import WireError
from psyche.network.limits import RANGE_CHUNKS
from psyche.network.streams import Readable, read_exactly
from psyche.wire.crypto import BLOB_CHUNK_BYTES, MAX_BLOB_BYTES

_REQUEST: Final = struct.Struct("<c32sII")
_REPLY: Final = struct.Struct("<BQ")
_SIZE: Final = struct.Struct("<Q")
REQUEST_BYTES: Final = _REQUEST.size
REPLY_HEAD_BYTES: Final = _REPLY.size
HASH_BYTES: Final = 32


class Status(IntEnum):
    OK = 0
    UNKNOWN = 1  # the source does not have the blob, or has it no longer
    REFUSED = 2  # the request breaks a rule


_STATUSES: Final = frozenset(map(int, Status))


@dataclass(frozen=True, slots=True)
class BlobRequest:
    """A request for a range of chunks, or for the chunk list if `count` is 0."""

    blob_id: bytes
    first: int = 0
    count: int = 0


def compute_chunk_count(size_bytes: int) -> int:
    return -(-size_bytes // BLOB_CHUNK_BYTES)


def compute_range_bytes(size_bytes: int, first: int, count: int) -> int:
    return min(count * BLOB_CHUNK_BYTES, size_bytes - first * BLOB_CHUNK_BYTES)


def compute_chunk_list_bytes(size_bytes: int) -> int:
    return _SIZE.size + HASH_BYTES * compute_chunk_count(size_bytes)


def compute_reply_bytes(size_bytes: int, first: int, count: int) -> int:
    return compute_range_bytes(size_bytes, first, count) if count else compute_chunk_list_bytes(size_bytes)


def encode_blob_request(request: BlobRequest) -> bytes:
    return _REQUEST.pack(b"R" if request.count else b"M", request.blob_id, request.first, request.count)


def decode_blob_request(raw: bytes) -> BlobRequest:
    kind, blob_id, first, count = _REQUEST.unpack(raw)
    if kind == b"M" and (first, count) == (0, 0):
        return BlobRequest(blob_id)
    if kind == b"R" and 1 <= count <= RANGE_CHUNKS:
        return BlobRequest(blob_id, first, count)
    raise WireError(f"blob request: kind {kind!r} with count {count}")


def encode_chunk_list(size_bytes: int, hashes: bytes) -> bytes:
    return _SIZE.pack(size_bytes) + hashes


def decode_chunk_list(body: bytes, size_bytes: int) -> bytes:
    (size,) = _SIZE.unpack_from(body)
    if size != size_bytes:
        raise WireError(f"blob chunk list: {size} bytes, must be {size_bytes}")
    return body[_SIZE.size :]


def encode_reply_head(status: Status, size_bytes: int = 0) -> bytes:
    return _REPLY.pack(status, size_bytes)


async def read_reply_head(stream: Readable, expected_bytes: int) -> Status:
    """Read status and length; a length other than `expected_bytes` is refused before anything is allocated."""
    status, size = _REPLY.unpack(await read_exactly(stream, _REPLY.size))
    if status not in _STATUSES:
        raise WireError(f"blob reply: unknown status {status}")
    if size != (expected_bytes if status == Status.OK else 0):
        raise WireError(f"blob reply: {size} bytes announced, must be {expected_bytes}")
    return Status(status)


def check_blob_size(size_bytes: int) -> None:
    if not 0 <= size_bytes <= MAX_BLOB_BYTES:
        raise WireError(f"blob: {size_bytes} bytes, at most {MAX_BLOB_BYTES}")
