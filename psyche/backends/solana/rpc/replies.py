"""What endpoints answer, checked before it is used: accounts, slots, block hashes, statuses."""

import base64
import binascii
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
import zstandard
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM

from psyche.backends.solana.interface.accounts import AccountKind
from psyche.errors import WireError

MAX_ACCOUNT_BYTES: Final = 10 << 20  # the chain's own limit
SMALL_BYTES: Final = 1 << 18  # such as a run's account
MAX_FEES: Final = 1_000
MAX_WINDOW_BYTES: Final = 16 << 20  # of zstd; its usual levels use at most 8 MiB
CLOCK: Final = struct.Struct("<QqQQq")  # slot, start of the epoch, epoch, next epoch with leaders, unix time
U64: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Value = TypeVar("_Value")


class _Context(msgspec.Struct):
    slot: U64


class Answer(msgspec.Struct, Generic[_Value]):
    """What many calls answer: a value, as it is at a slot."""

    context: _Context
    value: _Value


def read_as(kind: Any, reply: Any, what: str) -> Any:
    """Read what an endpoint answers, which may be anything, as a type; fields that it has beside are passed over."""
    try:
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError as error:
        raise WireError(f"{what}: {error}") from None


def reads(kind: Any, method: str) -> Callable[[Any], Any]:
    return lambda reply: read_as(kind, reply, method)


@dataclass(frozen=True, slots=True)
class ChainAccount:
    slot: int
    owner: Pubkey  # the program
    lamports: int
    data: bytes


def get_data(kind: AccountKind, key: Pubkey, account: ChainAccount | None) -> bytes | None:
    """The bytes of an account that must be of this kind; None if it is not there.

    An address that never was an account belongs to the system program as soon as anybody sends it lamports.
    """
    if account is None or (account.owner == SYSTEM and not account.data):
        return None
    kind.check(key, account.owner, account.data)
    return account.data


class Blockhash(NamedTuple):
    """What a transaction names to be taken: a recent block's hash, and the last block height that takes it."""

    hash: Hash
    last_height: int


class SignatureStatus(msgspec.Struct, rename="camel"):
    """What became of a transaction."""

    slot: U64
    err: Any  # None if it succeeded
    confirmation_status: str | None = None

    @property
    def level(self) -> str:
        """How far it is: processed, confirmed or finalized."""
        return self.confirmation_status or "processed"


class SimulationReply(msgspec.Struct):
    """What a transaction would do; None where an endpoint does not say."""

    err: Any  # None if it would succeed
    logs: list[str] | None = None
    units: U64 | None = msgspec.field(name="unitsConsumed", default=None)
    loaded_bytes: U64 | None = msgspec.field(name="loadedAccountsDataSize", default=None)  # of all its accounts
    accounts: Any = None

    @property
    def lamports(self) -> int | None:
        """What the payer, whose account was asked for, would have afterwards."""
        match self.accounts:
            case [{"lamports": int(lamports)}]:
                return lamports
        return None


class _Account(msgspec.Struct):
    data: tuple[str, str]  # and its encoding
    owner: str
    lamports: U64


def read_account(value: Any, slot: int, *, limit_bytes: int = MAX_ACCOUNT_BYTES) -> ChainAccount | None:
    """An account in base64 or base64+zstd of at most `limit_bytes`; None if there is none."""
    found: _Account | None = read_as(_Account | None, value, "account")
    if found is None:
        return None
    data = _read_data(*found.data, limit_bytes)
    return ChainAccount(slot, read_key(found.owner, "account.owner"), found.lamports, data)


def read_account_answer(reply: Any, *, limit_bytes: int = MAX_ACCOUNT_BYTES) -> tuple[int, ChainAccount | None]:
    """The slot of an answer, and the account that it shows."""
    answer: Answer[Any] = read_as(Answer, reply, "account")
    return answer.context.slot, read_account(answer.value, answer.context.slot, limit_bytes=limit_bytes)


def read_key(text: Any, what: str) -> Pubkey:
    """A key in base58."""
    try:
        return Pubkey.from_string(text)
    except (TypeError, ValueError) as error:
        raise WireError(f"{what}: {str(text)[:60]!r} is no key of 32 bytes in base58") from error


def _read_data(text: str, encoding: str, limit_bytes: int) -> bytes:
    if len(text) > limit_bytes * 7 // 5 + 1_024:  # base64, and what zstd adds to noise
        raise WireError(f"account.data: {len(text)} characters, for at most {limit_bytes} bytes")
    try:
        raw = base64.b64decode(text, validate=True)
        read = _unpack_again if limit_bytes <= SMALL_BYTES else unpack
        data = read(raw, limit_bytes) if encoding == "base64+zstd" else raw
    except (binascii.Error, ValueError, zstandard.ZstdError) as error:
        raise WireError(f"account.data: cannot be read as {encoding[:20]}: {error}") from error
    if encoding not in ("base64", "base64+zstd") or len(data) > limit_bytes:
        raise WireError(f"account.data: {len(data)} bytes of {encoding[:20]!r}, at most {limit_bytes} are read")
    return data


@lru_cache(maxsize=16)
def _unpack_again(raw: bytes, limit_bytes: int) -> bytes:
    """As `unpack`, for small accounts: all endpoints show the same one, and the same object is soon compared."""
    return unpack(raw, limit_bytes)


def unpack(raw: bytes, limit_bytes: int) -> bytes:
    """Unpack zstd, one byte beyond the limit at most: the length in a frame's head is not believed."""
    unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    data = bytearray()
    with unpacker.stream_reader(raw) as reader:
        while len(data) <= limit_bytes and (part := reader.read(min(1 << 16, limit_bytes + 1 - len(data)))):
            data += part
    if len(data) <= limit_bytes and not _is_whole(raw, len(data)):
        raise zstandard.ZstdError(f"it ends after {len(data)} bytes of data, before its end")
    return bytes(data)


def _is_whole(raw: bytes, size_bytes: int) -> bool:
    """Whether a frame that yields `size_bytes` of data, which are few, is there to its end: readers do not say."""
    if (told_bytes := zstandard.frame_content_size(raw)) >= 0:
        return told_bytes == size_bytes
    unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
    unpacker.decompress(raw)
    return unpacker.eof


class _Latest(msgspec.Struct, rename="camel"):
    blockhash: str
    last_valid_block_height: U64


def read_blockhash(reply: Any) -> Blockhash:
    found: _Latest = read_as(Answer[_Latest], reply, "getLatestBlockhash").value
    try:
        return Blockhash(Hash.from_string(found.blockhash), found.last_valid_block_height)
    except ValueError as error:
        raise WireError(f"blockhash: {found.blockhash[:60]!r} is no hash") from error


def read_statuses(reply: Any, count: int) -> list[SignatureStatus | None]:
    """The answer to getSignatureStatuses for so many signatures; None for each that the endpoint does not know."""
    found: list[SignatureStatus | None] = read_as(Answer[list[SignatureStatus | None]], reply, "statuses").value
    if len(found) != count:
        raise WireError(f"getSignatureStatuses: no statuses for {count} signatures")
    return found


def read_clock(data: bytes) -> tuple[int, int]:
    if len(data) != CLOCK.size:
        raise WireError(f"Clock: {len(data)} bytes, must be {CLOCK.size}")
    slot, _, _, _, unix = CLOCK.unpack(data)
    return slot, unix


class _Fee(msgspec.Struct, rename="camel"):
    prioritization_fee: U64


def read_fees(reply: Any) -> list[int]:
    """The fees of the last slots in micro-lamports per compute unit."""
    found: list[_Fee] = read_as(list[_Fee], reply, "getRecentPrioritizationFees")
    return [one.prioritization_fee for one in found[:MAX_FEES]]
