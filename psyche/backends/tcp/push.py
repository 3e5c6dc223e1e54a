"""Decoding state pushes from the server (K5): full states and deltas."""

import zstandard

from psyche.core.state.limits import STATE_BYTES
from psyche.errors import WireError
from psyche.wire.backend import STATE_HASH_BYTES, FullState, StateDelta
from psyche.wire.crypto import blake3_hash


def read_full(push: FullState) -> bytes:
    try:
        if zstandard.frame_content_size(push.compressed) != STATE_BYTES:  # before anything is allocated
            raise WireError(f"full state: does not announce {STATE_BYTES} bytes")
        raw = zstandard.ZstdDecompressor().decompress(push.compressed, max_output_size=STATE_BYTES)
    except zstandard.ZstdError as error:
        raise WireError(f"full state: cannot be decompressed: {error}") from error
    return _checked(raw, push.hash, "full state")


def apply_delta(raw: bytes, nonce: int, push: StateDelta) -> bytes:
    """Apply a delta to the bytes of the state with `nonce`; return the new bytes."""
    if push.from_nonce != nonce:
        raise WireError(f"state delta: starts from nonce {push.from_nonce}, this client is at {nonce}")
    after = bytearray(raw)
    for run in push.runs:
        if run.offset + len(run.data) > len(after):
            raise WireError(f"state delta: a run of {len(run.data)} bytes at {run.offset} leaves the state")
        after[run.offset : run.offset + len(run.data)] = run.data
    return _checked(bytes(after), push.hash, "state delta")


def _checked(raw: bytes, expected: bytes, what: str) -> bytes:
    if len(raw) != STATE_BYTES:
        raise WireError(f"{what}: {len(raw)} bytes, must be {STATE_BYTES}")
    if blake3_hash(raw)[:STATE_HASH_BYTES] != expected:
        raise WireError(f"{what}: the bytes do not match their hash")
    return raw
