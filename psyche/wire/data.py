"""The messages between a client and a data server: msgpack in frames, after a handshake for `PURPOSE`.

A client requests rows of its own batch, by (epoch, height) and sample indexes, and gets exactly those rows
or a reason for the refusal. One request at a time per connection.
"""

from typing import Annotated, Final

import msgspec

from psyche.errors import WireError
from psyche.wire.msgpack import decode_msgpack

PURPOSE: Final = "data"
MAX_REQUEST_BYTES: Final = 256
MAX_ROWS_BYTES: Final = 4 << 20  # of token ids in one reply; a larger batch takes several requests
MAX_REPLY_BYTES: Final = MAX_ROWS_BYTES + 4_096
MAX_REASON_CHARACTERS: Final = 400
# K7: serves lines from 40 kbit/s up; on slower ones a batch of a few thousand ids takes longer than a round
LEAST_RATE_BYTES_S: Final = 4 << 10

# With labels each token is three numbers of 32 bits: its id, its label, and its position in its sequence.
LABELLED_BYTES: Final = 12
NOT_COUNTED: Final = -100  # a label, signed; the first token of a sequence does not count either
BEGINS: Final = 1 << 31  # in the position of a sequence's first token

U16 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
U63 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class FetchRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Requests the rows `start` to `end`, both included, for the round (epoch, height)."""

    epoch: U16
    height: U32
    start: U63
    end: U63


class Rows(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=0):
    """Rows of `sequence_length` tokens of `token_size_bytes`, little-endian, one after another.

    Tokens of 2 or 4 bytes are ids, those of 12 have labels.
    """

    start: U63
    end: U63
    sequence_length: U32
    token_size_bytes: U16
    ids: bytes


class Refused(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The reason why there are no rows; `may_retry` if a later request can succeed."""

    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARACTERS)]
    may_retry: bool


FetchReply = Rows | Refused
_request_decoder: Final = msgspec.msgpack.Decoder(FetchRequest)
_reply_decoder: Final = msgspec.msgpack.Decoder(FetchReply)
_NO_BYTES: Final = b"\xc4\x00"  # msgpack


def encode_data_request(request: FetchRequest) -> bytes:
    return msgspec.msgpack.encode(request)


def decode_data_request(raw: bytes) -> FetchRequest:
    return decode_msgpack(_request_decoder, raw, "data request")


def encode_data_reply(reply: FetchReply) -> bytes:
    return msgspec.msgpack.encode(reply)


def encode_rows_head(start: int, end: int, sequence_length: int, token_size_bytes: int, ids_bytes: int) -> bytes:
    """Encode the head of a reply with these rows; exactly `ids_bytes` bytes of token ids must follow."""
    whole = encode_data_reply(Rows(start, end, sequence_length, token_size_bytes, b""))
    return whole[: -len(_NO_BYTES)] + b"\xc6" + ids_bytes.to_bytes(4, "big")  # msgpack's bin 32


def decode_data_reply(raw: bytes) -> FetchReply:
    """Decode a reply and check that its rows are complete.

    Raises:
        WireError: naming the field.
    """
    reply = decode_msgpack(_reply_decoder, raw, "data reply")
    if isinstance(reply, Rows):
        _check_rows(reply)
    return reply


def _check_rows(rows: Rows) -> None:
    if rows.token_size_bytes not in (2, 4, LABELLED_BYTES):
        raise WireError(f"data reply: token_size_bytes {rows.token_size_bytes}, must be 2, 4 or {LABELLED_BYTES}")
    expected = (rows.end - rows.start + 1) * rows.sequence_length * rows.token_size_bytes
    if rows.end < rows.start or len(rows.ids) != expected:
        raise WireError(f"data reply: {len(rows.ids)} bytes of ids for samples {rows.start} to {rows.end}")
