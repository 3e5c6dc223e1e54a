"""Tokens as JSON-RPC shows them: amounts, token accounts and their mints, of SPL Token and Token-2022."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from solders.account import Account
from solders.pubkey import Pubkey
from solders.token.state import Mint, TokenAccount

TOKEN: Final = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
TOKEN_2022: Final = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
PROGRAMS: Final = frozenset({TOKEN, TOKEN_2022})
MINT_BYTES: Final = 82
ACCOUNT_BYTES: Final = 165
_KIND_AT: Final = ACCOUNT_BYTES  # in longer accounts of Token-2022: 1 is a mint, 2 an account
_ACCOUNT_KIND: Final = 2


class Holding(NamedTuple):
    program: Pubkey
    mint: Pubkey
    owner: Pubkey
    amount: int


def read_holding(account: Account | None) -> Holding | None:
    if account is None or account.owner not in PROGRAMS or len(account.data) < ACCOUNT_BYTES:
        return None
    data = bytes(account.data)
    if len(data) > ACCOUNT_BYTES and data[_KIND_AT] != _ACCOUNT_KIND:
        return None
    try:
        read = TokenAccount.from_bytes(data[:ACCOUNT_BYTES])
    except ValueError:
        return None
    return Holding(account.owner, read.mint, read.owner, read.amount)


def find_mint(account: Account | None) -> Mint | None:
    if account is None or account.owner not in PROGRAMS or len(account.data) < MINT_BYTES:
        return None
    try:
        return Mint.from_bytes(bytes(account.data)[:MINT_BYTES])
    except ValueError:
        return None


def describe_amount(amount: int, decimals: int) -> dict[str, Any]:
    digits = str(amount).rjust(decimals + 1, "0")
    whole, fraction = (digits[:-decimals], digits[-decimals:].rstrip("0")) if decimals else (digits, "")
    text = f"{whole}.{fraction}" if fraction else whole
    return {"amount": str(amount), "decimals": decimals, "uiAmount": float(text), "uiAmountString": text}


def find_token_balances(
    keys: Sequence[Pubkey], get_account: Callable[[Pubkey], Account | None]
) -> list[dict[str, Any]]:
    """The token accounts among a transaction's accounts, if it calls a token program."""
    if PROGRAMS.isdisjoint(keys):
        return []
    balances: list[dict[str, Any]] = []
    for index, key in enumerate(keys):
        holding = read_holding(get_account(key))
        mint = None if holding is None else find_mint(get_account(holding.mint))
        if holding is not None and mint is not None:
            balances.append(
                {
                    "accountIndex": index,
                    "mint": str(holding.mint),
                    "owner": str(holding.owner),
                    "programId": str(holding.program),
                    "uiTokenAmount": describe_amount(holding.amount, mint.decimals),
                }
            )
    return balances
