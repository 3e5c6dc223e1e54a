"""Address records: a node's own signed statement of where it can be reached (M2, N1)."""

import struct
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from psyche.core.state.limits import HASH_BYTES, MAX_ADDRESSES
from psyche.errors import WireError
from psyche.wire.crypto import Identity, verify

ADDRESS_TAG: Final = b"psyche/address/1"
MAX_ADDRESS_BYTES: Final = 128


class AddressRecord(msgspec.Struct, frozen=True, array_like=True):
    """Where a node can be reached, signed by its p2p key; the same on every wire.

    `signature` covers `address_record_bytes`; the receiver of a record checks it.
    """

    p2p: Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
    addresses: Annotated[  # multiaddrs without /p2p
        tuple[Annotated[str, msgspec.Meta(max_length=MAX_ADDRESS_BYTES)], ...],
        msgspec.Meta(max_length=MAX_ADDRESSES),
    ]
    expires_unix: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    signature: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


def address_record_bytes(p2p: bytes, addresses: Sequence[str], expires_unix: int) -> bytes:
    encoded = [a.encode("ascii") for a in addresses]
    body = b"".join(struct.pack("<B", len(a)) + a for a in encoded)
    return ADDRESS_TAG + p2p + struct.pack("<QB", expires_unix, len(encoded)) + body


def sign_address_record(identity: Identity, addresses: Sequence[str], expires_unix: int) -> AddressRecord:
    """Sign a record of the addresses at which the owner of `identity` can be reached."""
    signature = identity.sign(address_record_bytes(identity.public, addresses, expires_unix))
    return AddressRecord(identity.public, tuple(addresses), expires_unix, signature)


def check_address_record(record: AddressRecord) -> None:
    """Refuse a record that breaks a limit or is not signed by its key.

    Raises:
        WireError: the record is invalid; the message names the field.
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
