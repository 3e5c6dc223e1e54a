"""The messages between a trainer's parent and child: u32 little-endian length, then one msgpack envelope.

No torch here. The parent sends `Call`, `Cancel`, `Shorten` and `Prepare`; the child `ChildStarted` once, then `Beat` at
each safe point of a call, and one `CallReply` per call, in order.
"""

import socket
from typing import Final, TypeAlias

import msgspec

from psyche.wire.line.length import LENGTH_BYTES, pack_length, read_length
from psyche.wire.msgpack import decode_msgpack
from psyche.wire.trainer import Reply, Request

REFUSED: Final = "refused"  # the kind of an error after which the same call may succeed
UNUSABLE: Final = "unusable"  # the kind of an error of the model itself
MAX_FRAME_BYTES: Final = 1 << 30  # a decided set of 256 payloads of 4 MiB; both ends are trusted


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Do what the request asks for."""

    number: int
    request: Request

    @property
    def operation(self) -> str:
        return get_operation(self.request)


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel the train, merge, audit or score call with this number at its next micro-batch, if it still runs."""

    number: int


class Shorten(msgspec.Struct, frozen=True, tag="shorten"):
    """End the train call of local steps with this number within this time, with fewer steps, if it still runs."""

    number: int
    within_s: float


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """A payload of local steps that a later call may have: decode it while others run. It has no reply."""

    payload: bytes


class ChildStarted(msgspec.Struct, frozen=True, tag="hello"):
    """The child is up: torch and transformers are imported."""

    pid: int
    threads: int


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The call with this number is alive."""

    number: int


class CallReply(msgspec.Struct, frozen=True, tag="reply"):
    """The end of a call: `body`, or an `error` with its kind ("refused", "unusable", or a `FailureKind`)."""

    number: int
    body: Reply | None = None
    kind: str = ""
    error: str = ""


ToChild: TypeAlias = Call | Cancel | Shorten | Prepare
ToParent: TypeAlias = ChildStarted | Beat | CallReply
_TO_CHILD: Final = msgspec.msgpack.Decoder(ToChild)
_TO_PARENT: Final = msgspec.msgpack.Decoder(ToParent)
encode: Final = msgspec.msgpack.encode


def get_operation(request: Request) -> str:
    """The name of what a request asks for: check, memory, load, train, merge, apply, snapshot, open, audit, score."""
    return str(request.__struct_config__.tag)


def decode_to_child(raw: bytes) -> ToChild:
    return decode_msgpack(_TO_CHILD, raw, "trainer frame")


def decode_to_parent(raw: bytes) -> ToParent:
    return decode_msgpack(_TO_PARENT, raw, "trainer frame")


def receive_frame(connection: socket.socket) -> bytes | None:
    """The next whole frame, blocking; None when the other side has closed."""
    head = _receive_exactly(connection, LENGTH_BYTES)
    if head is None:
        return None
    return _receive_exactly(connection, read_length(head, MAX_FRAME_BYTES, "trainer frame"))


def _receive_exactly(connection: socket.socket, size_bytes: int) -> bytes | None:
    buffer = bytearray(size_bytes)
    view = memoryview(buffer)
    while view:
        try:
            count = connection.recv_into(view)
        except OSError:
            return None
        if count == 0:
            return None
        view = view[count:]
    return bytes(buffer)


def send_frame(connection: socket.socket, message: ToParent) -> None:
    """Send one envelope, blocking until the parent takes it (if the parent dies, so does the child)."""
    raw = encode(message)
    connection.sendall(pack_length(len(raw)) + raw)
