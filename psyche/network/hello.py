"""`/psyche/hello/1`: who is there, and whether both sides belong to the same run.

Three frames: the dialer's hello; the answer, with a verdict and the other hello; the dialer's verdict.
Both sides admit each other only when both verdicts are yes.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from psyche.core.limits import MAX_ADDRESSES
from psyche.core.state import ZERO32
from psyche.errors import NetworkError, WireError
from psyche.network.limits import HELLO_BYTES
from psyche.network.streams import ByteStream, read_frame, write_frame
from psyche.wire.crypto import check_address_record
from psyche.wire.ports import AddressRecord

HELLO_VERSION: Final = 1
CAPABILITIES: Final = ("blob/1", "gossip/1", "sync/1")
MAX_CAPABILITIES: Final = 16
MAX_REASON: Final = 200


class Refused(NetworkError):
    """The other side does not want us; the message is its reason."""


class _Record(msgspec.Struct, frozen=True, array_like=True):
    p2p: bytes
    addresses: list[str]
    expires_unix: int
    signature: bytes


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of itself; unknown later fields are ignored."""

    version: int
    run_uid: bytes
    plan_hash: bytes  # zero: not known yet
    capabilities: list[str]
    record: _Record


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    reason: str  # empty: accepted
    hello: Hello


class _Verdict(msgspec.Struct, frozen=True, array_like=True):
    reason: str


_hello = msgspec.msgpack.Decoder(Hello)
_answer = msgspec.msgpack.Decoder(_Answer)
_verdict = msgspec.msgpack.Decoder(_Verdict)
_encode = msgspec.msgpack.encode


def build_hello(run_uid: bytes, plan_hash: bytes, record: AddressRecord) -> Hello:
    """The hello of a node of this version."""
    wire = _Record(record.p2p, list(record.addresses), record.expires_unix, record.signature)
    return Hello(HELLO_VERSION, run_uid, plan_hash, list(CAPABILITIES), wire)


def get_record(hello: Hello) -> AddressRecord:
    """The address record of a hello."""
    r = hello.record
    return AddressRecord(r.p2p, tuple(r.addresses), r.expires_unix, r.signature)


def check_hello(hello: Hello, key: bytes) -> None:
    """Refuse a hello that breaks a limit or whose record is not of the connected `key`.

    Raises:
        WireError: naming the field.
    """
    if len(hello.run_uid) != len(ZERO32) or len(hello.plan_hash) != len(ZERO32):
        raise WireError("hello: run_uid and plan_hash have 32 bytes")
    if len(hello.capabilities) > MAX_CAPABILITIES or len(hello.record.addresses) > MAX_ADDRESSES:
        raise WireError("hello: too many capabilities or addresses")
    if hello.record.p2p != key:
        raise WireError("hello: the address record is of another key")
    check_address_record(get_record(hello))


def get_refusal(mine: Hello, theirs: Hello) -> str:
    """Why the two do not belong together; empty if they do."""
    if theirs.version != mine.version:
        return f"protocol version {theirs.version}, here {mine.version}"
    if mine.run_uid == ZERO32:
        return "this node does not know its run yet"
    if theirs.run_uid != mine.run_uid:
        return f"another run: {theirs.run_uid.hex()[:16]}, here {mine.run_uid.hex()[:16]}"
    known = ZERO32 not in {mine.plan_hash, theirs.plan_hash}
    if known and theirs.plan_hash != mine.plan_hash:
        return f"another transform plan: {theirs.plan_hash.hex()[:16]}, here {mine.plan_hash.hex()[:16]}"
    return ""


async def offer(stream: ByteStream, mine: Hello, judge: Callable[[Hello], str]) -> Hello:
    """The dialer's side; `judge` gives the reason against the other, or nothing.

    Raises:
        Refused: by the other side, or by `judge`.
        WireError: the other side does not speak the protocol.
        StreamError: it ended.
    """
    await write_frame(stream, _encode(mine))
    answer = await _read(stream, _answer)
    if answer.reason:
        raise Refused(answer.reason[:MAX_REASON])
    reason = judge(answer.hello)
    await write_frame(stream, _encode(_Verdict(reason)))
    await stream.close()
    if reason:
        raise Refused(reason)
    return answer.hello


async def answer(stream: ByteStream, get_mine: Callable[[], Hello], judge: Callable[[Hello], str]) -> Hello:
    """The side that was dialed; as `offer`, and the other side hears the reason before `Refused` is raised."""
    theirs = await _read(stream, _hello)
    reason = judge(theirs)
    await write_frame(stream, _encode(_Answer(reason, get_mine())))
    if reason:
        raise Refused(reason)
    verdict = await _read(stream, _verdict)
    if verdict.reason:
        raise Refused(verdict.reason[:MAX_REASON])
    return theirs


_T = TypeVar("_T")


async def _read(stream: ByteStream, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    raw = await read_frame(stream, HELLO_BYTES, "hello")
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError("hello: not the expected fields") from error
