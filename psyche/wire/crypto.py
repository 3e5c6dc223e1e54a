"""Keys, signatures and BLAKE3 hashes: all off-chain cryptography (`docs/protocol-reference.md` 2.1)."""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from blake3 import blake3

from psyche.core.encoding.gossip import RESULT_TAG
from psyche.core.state.state import ZERO32
from psyche.errors import ConfigError

BLOB_TAG: Final = b"psyche/blob/1"
BLOB_CHUNK_BYTES: Final = 1 << 20
MAX_BLOB_BYTES: Final = 4 << 30
VERDICTS_KEPT: Final = 4_096  # verdicts on signatures that are cached, about 2 MB


class Identity:
    """An Ed25519 key pair made from a 32-byte seed; signs gossip, results and handshakes (M1)."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != len(ZERO32):
            raise ConfigError(f"identity: the secret seed has {len(seed)} bytes, must be 32")
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # not all need a key

        self.seed = seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def parse_hex(name: str, text: str) -> bytes:
    """Parse 64 hex digits as 32 bytes.

    Raises:
        ConfigError: the text has another form; the message names `name`.
    """
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != len(ZERO32):
        raise ConfigError(f"{name}: must be 64 hex digits")
    return key


@lru_cache(maxsize=VERDICTS_KEPT)
def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is that of `public` over `message`; false for malformed input.

    Recent verdicts are cached, because the same announcement arrives by gossip, by sync and in witnesses' tables.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def blake3_hash(*parts: bytes | memoryview) -> bytes:
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def compute_commitment(header: bytes) -> bytes:
    """Compute the commitment of a result: BLAKE3(`psyche/result/1` | header) (R1)."""
    return blake3_hash(RESULT_TAG, header)


def compute_chunk_hashes(data: bytes | memoryview) -> bytes:
    """Compute the concatenated BLAKE3 hashes of a blob's 1 MiB chunks."""
    view = memoryview(data)
    return b"".join(blake3_hash(view[i : i + BLOB_CHUNK_BYTES]) for i in range(0, len(view), BLOB_CHUNK_BYTES))


def compute_blob_id(size_bytes: int, chunk_hashes: bytes) -> bytes:
    """Compute a blob's id: BLAKE3(tag | u64 size | u32 chunk size | chunk hashes)."""
    return blake3_hash(BLOB_TAG, struct.pack("<QI", size_bytes, BLOB_CHUNK_BYTES), chunk_hashes)


def blob_id_of(data: bytes | memoryview) -> bytes:
    return compute_blob_id(len(data), compute_chunk_hashes(data))


def compute_data_hash(tokens: bytes, *, has_labels: bool = False) -> bytes:
    """Compute the BLAKE3 hash of the tokens trained on, in order: u32 ids or, after a tag of its own, with labels."""
    return blake3_hash(b"psyche/labels/1", tokens) if has_labels else blake3_hash(tokens)


def compute_state_digest(chain: bytes, weight_part: bytes) -> bytes:
    """Compute D(h) = BLAKE3(`psyche/state/1` | c(h) | weight part) (S2)."""
    return blake3_hash(b"psyche/state/1", chain, weight_part)


def compute_chain_digest(
    previous: bytes, epoch: int, height: int, step: int, lr_bits: int, applied: Iterable[tuple[int, bytes]]
) -> bytes:
    """Compute c(h) over the results applied at the start of round h, in order of application (S1)."""
    head = struct.pack("<HIII", epoch, height, step, lr_bits)
    items = b"".join(struct.pack("<H", member) + commitment for member, commitment in applied)
    return blake3_hash(b"psyche/chain/1", previous, head, items)
