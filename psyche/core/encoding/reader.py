"""A reader of canonical lists from untrusted bytes: every read is checked against the end."""

import struct
from typing import Final

from psyche.errors import WireError

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class Reader:
    """A cursor over bytes; `what` begins every error message."""

    def __init__(self, raw: bytes, what: str) -> None:
        self._raw = raw
        self._what = what
        self._offset = 0

    def fail(self, reason: str) -> WireError:
        """Build the error to raise; it names the current byte offset."""
        return WireError(f"{self._what}: {reason} (byte {self._offset})")

    def take(self, size_bytes: int, field: str) -> bytes:
        """Take the next `size_bytes` bytes.

        Raises:
            WireError: fewer are left.
        """
        end = self._offset + size_bytes
        if end > len(self._raw):
            raise self.fail(f"{field} is cut off: it needs {size_bytes} bytes")
        taken = self._raw[self._offset : end]
        self._offset = end
        return taken

    def expect(self, constant: bytes, field: str) -> None:
        """Take the next bytes and refuse anything but `constant`."""
        if self.take(len(constant), field) != constant:
            raise self.fail(f"{field} does not match this protocol")

    def u8(self, field: str) -> int:
        """One byte."""
        return self.take(1, field)[0]

    def u16(self, field: str) -> int:
        """Two bytes, little-endian."""
        return int(_U16.unpack(self.take(2, field))[0])

    def u32(self, field: str) -> int:
        """Four bytes, little-endian."""
        return int(_U32.unpack(self.take(4, field))[0])

    def u64(self, field: str) -> int:
        """Eight bytes, little-endian."""
        return int(_U64.unpack(self.take(8, field))[0])

    def name(self, field: str) -> str:
        """A UTF-8 string after its length as u16."""
        raw = self.take(self.u16(f"{field} length"), field)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{field} is not UTF-8") from error

    def dims(self, field: str) -> tuple[int, ...]:
        """Dimensions as u32 after their number as u8."""
        return tuple(self.u32(field) for _ in range(self.u8(f"number of {field}")))

    def finish(self) -> None:
        """Refuse bytes after the end."""
        if self._offset != len(self._raw):
            raise self.fail(f"{len(self._raw) - self._offset} bytes follow the end")


def encode_shape(name: str, dims: tuple[int, ...]) -> bytes:
    """A tensor's name and dimensions as `Reader.name` and `Reader.dims` read them.

    Raises:
        WireError: the name is longer than 65,535 bytes, or there are more than 255 dimensions or one over 32 bits.
    """
    try:
        encoded = name.encode("utf-8")
        return _U16.pack(len(encoded)) + encoded + struct.pack(f"<B{len(dims)}I", len(dims), *dims)
    except (struct.error, UnicodeEncodeError) as error:
        raise WireError(f"tensor {name[:80]!a} with dimensions {dims}: {error}") from error
