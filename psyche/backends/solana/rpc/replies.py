"""What endpoints answer, checked before it is used: accounts, slots, block hashes, statuses."""

import base64
import binascii
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import zstandard
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM

from psyche.backends.solana.interface.accounts import AccountKind
from psyche.errors import WireError

MAX_ACCOUNT_BYTES: Final = 10 << 20  # the chain's own limit
SMALL_BYTES: Final = 1 << 18  # such as a run's account
MAX_WINDOW_BYTES: Final = 16 << 20  # of zstd; its usual levels use at most 8 MiB
CLOCK: Final = struct.Struct("<QqQQq")  # slot, start of the epoch, epoch, next epoch with leaders, unix time
U64_MAX: Final = (1 << 64) - 1


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


class SignatureStatus(NamedTuple):
    """What became of a transaction; `level` is processed, confirmed or finalized."""

    slot: int
    level: str
    error: Any  # as JSON; None if it succeeded


class SimulationReply(NamedTuple):
    error: Any  # as JSON; None if it would succeed
    logs: tuple[str, ...]
    units: int
    loaded_bytes: int  # of all its accounts; 0 if the endpoint does not say
    lamports: int | None  # of the payer afterwards; None if the endpoint does not say


def read_integer(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= U64_MAX:
        raise WireError(f"{what}: {str(value)[:40]!r} is no number of 64 bits")
    return value


def read_context(reply: Any, what: str) -> tuple[int, Any]:
    match reply:
        case {"context": {"slot": slot}, "value": value}:
            return read_integer(slot, f"{what}.context.slot"), value
    raise WireError(f"{what}: no context and value")


def read_account(value: Any, slot: int, *, limit_bytes: int = MAX_ACCOUNT_BYTES) -> ChainAccount | None:
    """An account in base64 or base64+zstd of at most `limit_bytes`; None if there is none."""
    match value:
        case None:
            return None
        case {"data": [str(text), str(encoding)], "owner": str(owner), "lamports": lamports}:
            data = _read_data(text, encoding, limit_bytes)
            return ChainAccount(
                slot, read_key(owner, "account.owner"), read_integer(lamports, "account.lamports"), data
            )
    raise WireError("account: no data, owner and lamports")


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


def read_blockhash(reply: Any) -> Blockhash:
    match read_context(reply, "getLatestBlockhash")[1]:
        case {"blockhash": str(text), "lastValidBlockHeight": height}:
            try:
                return Blockhash(Hash.from_string(text), read_integer(height, "lastValidBlockHeight"))
            except ValueError as error:
                raise WireError(f"blockhash: {text[:60]!r} is no hash") from error
    raise WireError("getLatestBlockhash: no blockhash and lastValidBlockHeight")


def read_statuses(reply: Any, count: int) -> list[SignatureStatus | None]:
    """The answer to getSignatureStatuses for so many signatures; None for each that the endpoint does not know."""
    found = read_context(reply, "getSignatureStatuses")[1]
    if not isinstance(found, list) or len(found) != count:
        raise WireError(f"getSignatureStatuses: no statuses for {count} signatures")
    return [_read_status(one) for one in found]


def _read_status(value: Any) -> SignatureStatus | None:
    match value:
        case None:
            return None
        case {"slot": slot, "err": error, **rest}:
            return SignatureStatus(
                read_integer(slot, "status.slot"), str(rest.get("confirmationStatus") or "processed"), error
            )
    raise WireError("getSignatureStatuses: no status")


def read_simulation(reply: Any) -> SimulationReply:
    match read_context(reply, "simulateTransaction")[1]:
        case {"err": error, **rest}:
            logs = rest.get("logs")
            kept = tuple(map(str, logs)) if isinstance(logs, list) else ()
            units, loaded = (
                read_integer(rest.get(key) or 0, key) for key in ("unitsConsumed", "loadedAccountsDataSize")
            )
            match rest.get("accounts"):
                case [{"lamports": int(lamports)}]:
                    return SimulationReply(error, kept, units, loaded, lamports)
            return SimulationReply(error, kept, units, loaded, None)
    raise WireError("simulateTransaction: no err")


def read_clock(data: bytes) -> tuple[int, int]:
    if len(data) != CLOCK.size:
        raise WireError(f"Clock: {len(data)} bytes, must be {CLOCK.size}")
    slot, _, _, _, unix = CLOCK.unpack(data)
    return slot, unix


def read_fees(reply: Any) -> list[int]:
    """The fees of the last slots in micro-lamports per compute unit."""
    if not isinstance(reply, list):
        raise WireError("getRecentPrioritizationFees: no list")
    fees = [entry.get("prioritizationFee") for entry in reply[:1_000] if isinstance(entry, dict)]
    return [read_integer(fee, "prioritizationFee") for fee in fees]
