"""Keys, signatures and BLAKE3 hashes: all cryptography that stays off chain (`docs/protocol-reference.md` 2.1)."""

import secrets
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from psyche.core.encoding.gossip import RESULT_TAG
from psyche.core.state.limits import MAX_ADDRESSES
from psyche.core.state.state import ZERO32
from psyche.durable import create_file, make_folder
from psyche.errors import ConfigError, WireError
from psyche.wire.ports import MAX_ADDRESS_BYTES, AddressRecord

BLOB_TAG: Final = b"psyche/blob/1"
BLOB_CHUNK_BYTES: Final = 1 << 20
MAX_BLOB_BYTES: Final = 4 << 30
ADDRESS_TAG: Final = b"psyche/address/1"
VERDICTS_KEPT: Final = 4_096  # signatures whose check is remembered, about 2 MB


class Identity:
    """An Ed25519 key made from a 32-byte seed: signs gossip, results and handshakes (M1)."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != len(ZERO32):
            raise ConfigError(f"identity: the secret seed has {len(seed)} bytes, must be 32")
        self.seed = seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature of `message`."""
        return self._key.sign(message)

    @classmethod
    def load(cls, path: Path) -> "Identity":
        """Read a key file: 64 hex digits, or 32 raw bytes.

        Raises:
            ConfigError: the file is missing or holds neither.
        """
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"identity file {path}: {error.strerror}; make one with "
                f"`psyche client show-identity --identity-secret-key-path {path} --create`"
            ) from error
        if len(raw) != len(ZERO32):
            try:
                raw = bytes.fromhex(raw.decode("ascii").strip())
            except ValueError as error:
                raise ConfigError(f"identity file {path}: neither 64 hex digits nor 32 bytes") from error
        return cls(raw)

    def save(self, path: Path) -> None:
        """Write the seed as 64 hex digits, readable by the owner alone; never overwrites.

        Raises:
            OSError: there is such a file, or it cannot be made.
        """
        make_folder(path.parent)
        temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        temporary.touch(mode=0o600, exist_ok=False)
        create_file(path, (self.seed.hex() + "\n").encode(), temporary)  # a half key would be in everybody's way


@lru_cache(maxsize=VERDICTS_KEPT)
def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` of `message` was made by `public`; false for malformed input.

    The last verdicts are kept: the same announcement comes by gossip, by sync and in witnesses' tables.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def blake3_hash(*parts: bytes | memoryview) -> bytes:
    """BLAKE3 of the parts one after another."""
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def compute_commitment(header: bytes) -> bytes:
    """The commitment of a result: BLAKE3(`psyche/result/1` | header) (R1)."""
    return blake3_hash(RESULT_TAG, header)


def compute_chunk_hashes(data: bytes | memoryview) -> bytes:
    """The BLAKE3 hashes of the 1 MiB chunks of a blob, concatenated."""
    view = memoryview(data)
    return b"".join(blake3_hash(view[i : i + BLOB_CHUNK_BYTES]) for i in range(0, len(view), BLOB_CHUNK_BYTES))


def compute_blob_id(size_bytes: int, chunk_hashes: bytes) -> bytes:
    """A blob's id: BLAKE3(tag | u64 size | u32 chunk size | chunk hashes)."""
    return blake3_hash(BLOB_TAG, struct.pack("<QI", size_bytes, BLOB_CHUNK_BYTES), chunk_hashes)


def blob_id_of(data: bytes | memoryview) -> bytes:
    """The id of a blob that is in memory."""
    return compute_blob_id(len(data), compute_chunk_hashes(data))


def compute_data_hash(tokens_u32: bytes) -> bytes:
    """BLAKE3 of the token ids trained on (u32 little-endian, in order)."""
    return blake3_hash(tokens_u32)


def compute_state_digest(chain: bytes, weight_part: bytes) -> bytes:
    """D(h) = BLAKE3(`psyche/state/1` | c(h) | weight part) (S2)."""
    return blake3_hash(b"psyche/state/1", chain, weight_part)


def compute_chain_digest(
    previous: bytes, epoch: int, height: int, step: int, lr_bits: int, applied: Iterable[tuple[int, bytes]]
) -> bytes:
    """c(h) over what was applied at the start of round h, in order of application (S1)."""
    head = struct.pack("<HIII", epoch, height, step, lr_bits)
    items = b"".join(struct.pack("<H", member) + commitment for member, commitment in applied)
    return blake3_hash(b"psyche/chain/1", previous, head, items)


def address_record_bytes(p2p: bytes, addresses: Sequence[str], expires_unix: int) -> bytes:
    """What an address record's signature covers."""
    encoded = [a.encode("ascii") for a in addresses]
    body = b"".join(struct.pack("<B", len(a)) + a for a in encoded)
    return ADDRESS_TAG + p2p + struct.pack("<QB", expires_unix, len(encoded)) + body


def sign_address_record(identity: Identity, addresses: Sequence[str], expires_unix: int) -> AddressRecord:
    """A signed record of where the owner of `identity` can be reached."""
    signature = identity.sign(address_record_bytes(identity.public, addresses, expires_unix))
    return AddressRecord(identity.public, tuple(addresses), expires_unix, signature)


def check_address_record(record: AddressRecord) -> None:
    """Refuse a record that breaks a limit or is not signed by its key.

    Raises:
        WireError: naming the field.
    """
    if len(record.addresses) > MAX_ADDRESSES:
        raise WireError(f"address record: {len(record.addresses)} addresses, at most {MAX_ADDRESSES}")
    if any(len(a) > MAX_ADDRESS_BYTES or not a.isascii() for a in record.addresses):
        raise WireError(f"address record: an address is not ASCII of at most {MAX_ADDRESS_BYTES} bytes")
    if not 0 <= record.expires_unix < 1 << 63:
        raise WireError("address record: expires_unix is out of range")
    message = address_record_bytes(record.p2p, record.addresses, record.expires_unix)
    if not verify(record.p2p, message, record.signature):
        raise WireError("address record: the signature is not that of its key")
