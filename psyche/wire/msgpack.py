"""Decoding msgpack that may come from anywhere."""

from typing import Final, TypeVar

import msgspec

from psyche.errors import WireError

_T = TypeVar("_T")

# A thousand bytes can nest a thousand arrays: without RecursionError here, such a message would end the process.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode_msgpack(decoder: msgspec.msgpack.Decoder[_T], raw: bytes, what: str) -> _T:
    """Decode a value.

    Raises:
        WireError: the bytes are no msgpack, or no value of this type; the message begins with `what`.
    """
    try:
        return decoder.decode(raw)
    except UNREADABLE as error:
        raise WireError(f"{what}: {error}") from error
