"""`/psyche/hello/1`: peers introduce themselves and check that they belong to the same run.

Three frames: the dialer's hello; the answer, with the other side's verdict and hello; the dialer's verdict.
Both sides admit each other only when both verdicts are yes.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from psyche.core.state.state import ZERO32
from psyche.errors import NetworkError, WireError
from psyche.network.limits import HELLO_BYTES
from psyche.network.streams import ByteStream, read_frame, write_frame
from psyche.wire.address_record import AddressRecord, check_address_record
from psyche.wire.msgpack import UNREADABLE

HELLO_VERSION: Final = 1
CAPABILITIES: Final = ("blob/1", "gossip/1", "sync/1")
MAX_CAPABILITIES: Final = 16
MAX_REASON: Final = 200


class HelloRefused(NetworkError):
    """One side refused the other; the message is the reason."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """What a node says about itself; unknown trailing fields are ignored."""

    version: int
    run_uid: bytes
    plan_hash: bytes  # zeros: not known yet
    capabilities: list[str]
    record: AddressRecord


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
    return Hello(HELLO_VERSION, run_uid, plan_hash, list(CAPABILITIES), record)


def check_hello(hello: Hello, key: bytes) -> None:
    """Refuse a hello that breaks a limit or whose address record is not of the connected `key`."""
    if len(hello.run_uid) != len(ZERO32) or len(hello.plan_hash) != len(ZERO32):
        raise WireError("hello: run_uid and plan_hash must have 32 bytes")
    if len(hello.capabilities) > MAX_CAPABILITIES:
        raise WireError(f"hello: {len(hello.capabilities)} capabilities, at most {MAX_CAPABILITIES}")
    if hello.record.p2p != key:
        raise WireError("hello: the address record is of another key")
    check_address_record(hello.record)


def get_refusal(mine: Hello, theirs: Hello) -> str:
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
    """Run the dialer's side; `judge` returns a reason to refuse the other hello, or an empty text."""
    await write_frame(stream, _encode(mine))
    answer = await _read(stream, _answer)
    if answer.reason:
        raise HelloRefused(answer.reason[:MAX_REASON])
    reason = judge(answer.hello)
    await write_frame(stream, _encode(_Verdict(reason)))
    await stream.close()
    if reason:
        raise HelloRefused(reason)
    return answer.hello


async def answer(stream: ByteStream, get_mine: Callable[[], Hello], judge: Callable[[Hello], str]) -> Hello:
    """Run the dialed side, as `offer` does the other; a refusal is sent before `HelloRefused` is raised."""
    theirs = await _read(stream, _hello)
    reason = judge(theirs)
    await write_frame(stream, _encode(_Answer(reason, get_mine())))
    if reason:
        raise HelloRefused(reason)
    verdict = await _read(stream, _verdict)
    if verdict.reason:
        raise HelloRefused(verdict.reason[:MAX_REASON])
    return theirs


_T = TypeVar("_T")


async def _read(stream: ByteStream, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    raw = await read_frame(stream, HELLO_BYTES, "hello")
    try:
        return decoder.decode(raw)
    except UNREADABLE as error:
        raise WireError(f"hello: not the expected fields: {error}") from error
