"""Accounts in the words of their programs: tokens and mints, deployed programs, and the clock."""

import base64
from collections.abc import Callable
from typing import Any, Final

from solders.account import Account
from solders.pubkey import Pubkey
from solders.token.state import TokenAccount

from psyche.backends.solana.programs.loader import UPGRADEABLE
from psyche.errors import WireError
from psyche.localchain.rpc.parsed_instructions import read_fields
from psyche.localchain.tokens import (
    ACCOUNT_BYTES,
    MINT_BYTES,
    TOKEN,
    TOKEN_2022,
    describe_amount,
    find_mint,
    read_holding,
)

SYSVAR: Final = Pubkey.from_string("Sysvar1111111111111111111111111111111111111")
CLOCK_BYTES: Final = 40
_PROGRAM_TEXT: Final = {1: 37, 3: 45}  # of a buffer and of a program's data, from here on
_STATE_AT: Final = 108
_STATES: Final = {1: "initialized", 2: "frozen"}

Read = Callable[[Pubkey], Account | None]
Told = tuple[str, dict[str, Any] | None]  # its type, and what there is to say about it


def parse_account(account: Account, read: Read) -> dict[str, Any] | None:
    """An account as its program means it, `read` gives others; None if that is unknown: then its bytes are shown."""
    found = _PROGRAMS.get(account.owner)
    try:
        told = None if found is None else found[1](account, read)
    except (ValueError, WireError):
        return None
    if found is None or told is None:
        return None
    kind, info = told
    parsed = {"type": kind} if info is None else {"type": kind, "info": info}
    return {"program": found[0], "parsed": parsed, "space": len(account.data)}


def _tell_token(account: Account, read: Read) -> Told | None:
    data = bytes(account.data)
    if read_holding(account) is not None:
        return _tell_holding(data, read)
    mint = find_mint(account)
    if mint is None or not mint.is_initialized or MINT_BYTES < len(data) <= ACCOUNT_BYTES:
        return None
    return "mint", {
        "mintAuthority": _show(mint.mint_authority),
        "supply": str(mint.supply),
        "decimals": mint.decimals,
        "isInitialized": True,
        "freezeAuthority": _show(mint.freeze_authority),
    }


def _tell_holding(data: bytes, read: Read) -> Told | None:
    found = TokenAccount.from_bytes(data[:ACCOUNT_BYTES])
    mint, state = find_mint(read(found.mint)), _STATES.get(data[_STATE_AT])
    if mint is None or state is None:
        return None
    delegated = None if found.delegate is None else describe_amount(found.delegated_amount, mint.decimals)
    reserve = None if found.is_native is None else describe_amount(found.is_native, mint.decimals)
    info = {
        "mint": str(found.mint),
        "owner": str(found.owner),
        "tokenAmount": describe_amount(found.amount, mint.decimals),
        "state": state,
        "isNative": found.is_native is not None,
        "delegate": _show(found.delegate),
        "delegatedAmount": delegated,
        "rentExemptReserve": reserve,
        "closeAuthority": _show(found.close_authority),
    }
    return "account", {name: value for name, value in info.items() if value is not None}


def _tell_program(account: Account, _read: Read) -> Told | None:
    data = bytes(account.data)
    kind = int.from_bytes(data[:4], "little")
    match kind:
        case 0:
            return "uninitialized", None
        case 1:
            name, words = "buffer", "authority:key?"
        case 2:
            return "program", read_fields(["programData:key"], data[4:])
        case 3:
            name, words = "programData", "slot:u64 authority:key?"
        case _:
            return None
    text = base64.b64encode(data[_PROGRAM_TEXT[kind] :]).decode()
    return name, {**read_fields(words.split(), data[4:]), "data": [text, "base64"]}


def _tell_sysvar(account: Account, _read: Read) -> Told | None:
    if len(account.data) != CLOCK_BYTES:
        return None
    words = "slot:u64 epochStartTimestamp:i64 epoch:u64 leaderScheduleEpoch:u64 unixTimestamp:i64"
    return "clock", read_fields(words.split(), bytes(account.data))


def _show(key: Pubkey | None) -> str | None:
    return None if key is None else str(key)


_PROGRAMS: Final[dict[Pubkey, tuple[str, Callable[[Account, Read], Told | None]]]] = {
    TOKEN: ("spl-token", _tell_token),
    TOKEN_2022: ("spl-token-2022", _tell_token),
    UPGRADEABLE: ("bpf-upgradeable-loader", _tell_program),
    SYSVAR: ("sysvar", _tell_sysvar),
}
