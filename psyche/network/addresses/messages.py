"""Address records as the items of a reply to an "addresses" request."""

from typing import Final

import msgspec

from psyche.errors import WireError
from psyche.wire.address_record import AddressRecord
from psyche.wire.msgpack import UNREADABLE

ITEM_BYTES: Final = 1_280  # 8 addresses of 128 bytes, key, signature, and msgpack's lengths
MAX_RECORDS: Final = 32  # of one answer (N1)


_decoder = msgspec.msgpack.Decoder(AddressRecord)


def encode_address_record(record: AddressRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode_address_record(raw: bytes) -> AddressRecord:
    """Decode one item; the caller checks the signature."""
    if len(raw) > ITEM_BYTES:
        raise WireError(f"address record: {len(raw)} bytes, at most {ITEM_BYTES}")
    try:
        return _decoder.decode(raw)
    except UNREADABLE as error:
        raise WireError(f"address record: {error}") from error
