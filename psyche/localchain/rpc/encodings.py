"""Accounts as JSON: in the encodings that callers ask for, each encoded once for all who want it."""

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import base58
import zstandard
from solders.account import Account
from solders.pubkey import Pubkey

from psyche.localchain.rpc.errors import INTERNAL_ERROR, INVALID_REQUEST, CallError, InvalidParams
from psyche.localchain.rpc.params import Options
from psyche.localchain.rpc.parsed_accounts import Read, parse_account

BASE58_BYTES: Final = 128
MAX_REPLY_BYTES: Final = 64 << 20  # of account data in one reply
MAX_FILTERS: Final = 4
MAX_COMPARED_BYTES: Final = 128
_ENCODINGS: Final = ("base58", "base64", "base64+zstd", "binary", "jsonParsed")
_COMPRESSOR: Final = zstandard.ZstdCompressor(level=1)


class Form(NamedTuple):
    """In what form a caller wants accounts; `start` and `length` cut their data."""

    encoding: str
    start: int
    length: int | None

    @classmethod
    def read(cls, config: Options, default: str = "binary") -> "Form":
        cut = config.get_config("dataSlice")
        start, length = (cut.get_integer("offset"), cut.get_integer("length")) if cut else (0, None)
        if cut and (start is None or length is None):
            raise InvalidParams("Invalid params: dataSlice wants offset and length.")
        return cls(config.get_choice("encoding", _ENCODINGS, default), start or 0, length)

    def cut(self, data: bytes) -> bytes:
        return data if self.length is None else data[self.start : self.start + self.length]

    def encode(self, data: bytes) -> Any:
        """Encode data that are cut already. `jsonParsed` is base64 where a program's accounts are not explained.

        Raises:
            CallError: they are too long for base58.
        """
        if self.encoding in {"base58", "binary"}:
            if len(data) > BASE58_BYTES:
                raise CallError(
                    INVALID_REQUEST,
                    f"Encoded binary (base 58) data should be less than {BASE58_BYTES} bytes, please use Base64 "
                    "encoding.",
                )
            text = base58.b58encode(data).decode()
            return [text, "base58"] if self.encoding == "base58" else text
        if self.encoding == "base64+zstd":
            return [_compress(data), self.encoding]
        return [base64.b64encode(data).decode(), "base64"]


@lru_cache(maxsize=8)
def _compress(data: bytes) -> str:
    """The text of `base64+zstd`; many ask for the same account."""
    return base64.b64encode(_COMPRESSOR.compress(data)).decode()


def describe_account(account: Account | None, form: Form, read: Read) -> dict[str, Any] | None:
    """An account in the form that a caller wants, `read` gives others that explain it; None if there is none."""
    if account is None:
        return None
    data = bytes(account.data)
    parsed = parse_account(account, read) if form.encoding == "jsonParsed" else None
    return {
        "data": parsed or form.encode(form.cut(data)),
        "executable": account.executable,
        "lamports": account.lamports,
        "owner": str(account.owner),
        "rentEpoch": account.rent_epoch,
        "space": len(data),
    }


def describe_listed(found: Sequence[tuple[Pubkey, Account]], form: Form, read: Read) -> list[dict[str, Any]]:
    """Accounts with their addresses; check_reply_size first."""
    return [{"pubkey": str(key), "account": describe_account(account, form, read)} for key, account in found]


def check_reply_size(accounts: Sequence[Account | None], form: Form) -> None:
    """Check that accounts fit one reply, before they are encoded.

    Raises:
        CallError: they do not.
    """
    size = sum(len(form.cut(bytes(account.data))) for account in accounts if account is not None)
    check_reply_bytes(size, "the accounts", "ask for fewer, or for a part of each with dataSlice")


def check_reply_bytes(size_bytes: int, what: str, instead: str) -> None:
    """Check that what is to be told fits one reply.

    Raises:
        CallError: it does not; `instead` says what the caller can do.
    """
    if size_bytes > MAX_REPLY_BYTES:
        text = f"{what} have {size_bytes:,} bytes, and a reply at most {MAX_REPLY_BYTES:,}: {instead}"
        raise CallError(INTERNAL_ERROR, text)


class AccountFilter(NamedTuple):
    """What an account must be like: of this size, or with these bytes at this place."""

    size: int | None
    offset: int
    compared: bytes

    def accepts(self, data: bytes) -> bool:
        if self.size is not None:
            return len(data) == self.size
        return data[self.offset : self.offset + len(self.compared)] == self.compared


def read_filters(config: Options) -> tuple[AccountFilter, ...]:
    """Read `filters` of `dataSize` and `memcmp`.

    Raises:
        InvalidParams: one is neither, or there are too many.
    """
    filters = config.get_configs("filters")
    if len(filters) > MAX_FILTERS:
        raise InvalidParams(f"Too many filters provided; max {MAX_FILTERS}")
    return tuple(_read_filter(one) for one in filters)


def _read_filter(config: Options) -> AccountFilter:
    size = config.get_integer("dataSize")
    if size is not None:
        return AccountFilter(size, 0, b"")
    compare = config.get_config("memcmp")
    if compare is None:
        raise InvalidParams("Invalid params: a filter is dataSize, or memcmp with offset, bytes and encoding.")
    encoding = compare.get_choice("encoding", ("base58", "base64"), "base58")
    text = compare.get_text("bytes")
    try:
        compared = base58.b58decode(text) if encoding == "base58" else base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidParams(f"Invalid param: memcmp bytes: {error}") from None
    if len(compared) > MAX_COMPARED_BYTES:
        raise InvalidParams(f"Invalid param: memcmp bytes: at most {MAX_COMPARED_BYTES}")
    return AccountFilter(None, compare.get_integer("offset") or 0, compared)


def accept_all(filters: Sequence[AccountFilter], account: Account) -> bool:
    if not filters:
        return True
    data = bytes(account.data)
    return all(one.accepts(data) for one in filters)


CLOSED: Final = Account(0, b"", Pubkey.default())  # how subscribers see an account that was closed
