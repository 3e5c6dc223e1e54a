"""A cursor over bytes that may come from anywhere: nothing is taken that is not there."""

import struct

from psyche.errors import WireError


class Reader:
    """Takes bytes apart from their front; an error begins with `what`, then the place that the caller names."""

    def __init__(self, raw: bytes, what: str = "") -> None:
        self._raw = raw
        self._what = what
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._raw) - self._at

    def fail(self, reason: str, where: str = "") -> WireError:
        return WireError(": ".join(part for part in (self._what, where, reason) if part))

    def take(self, size_bytes: int, where: str = "") -> bytes:
        if size_bytes > self.left:
            raise self.fail(f"{self.left} bytes are left, {size_bytes} are needed", where)
        self._at += size_bytes
        return self._raw[self._at - size_bytes : self._at]

    def take_number(self, size_bytes: int, where: str = "", *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size_bytes, where), "little", signed=signed)

    def expect(self, constant: bytes, where: str) -> None:
        if self.take(len(constant), where) != constant:
            raise self.fail("does not match this protocol", where)

    def finish(self, where: str = "") -> None:
        if self.left:
            raise self.fail(f"{self.left} bytes follow the end", where)


def encode_shape(name: str, dims: tuple[int, ...]) -> bytes:
    """A tensor's name after its length as u16, and its dimensions as u32 after their number as u8.

    Raises:
        WireError: the name is longer than 65,535 bytes, or there are more than 255 dimensions or one over 32 bits.
    """
    try:
        encoded = name.encode("utf-8")
        return struct.pack("<H", len(encoded)) + encoded + struct.pack(f"<B{len(dims)}I", len(dims), *dims)
    except (struct.error, UnicodeEncodeError) as error:
        raise WireError(f"tensor {name[:80]!a} with dimensions {dims}: {error}") from error


def take_name(reader: Reader, where: str) -> str:
    raw = reader.take(reader.take_number(2, where), where)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise reader.fail("is not UTF-8", where) from error


def take_dims(reader: Reader) -> tuple[int, ...]:
    return tuple(reader.take_number(4, "dimensions") for _ in range(reader.take_number(1, "number of dimensions")))
