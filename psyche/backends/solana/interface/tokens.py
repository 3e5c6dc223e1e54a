"""Tokens: their mints, and the accounts that hold them."""

import struct
from typing import Final, NamedTuple

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM
from solders.system_program import CreateAccountParams, create_account
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address
from solders.token.state import Mint, TokenAccount

from psyche.backends.solana.interface.addresses import ASSOCIATED_TOKEN
from psyche.backends.solana.interface.calls import reads, signs, writes
from psyche.errors import ConfigError, WireError

MINT_BYTES: Final = 82
TOKEN_BYTES: Final = 165
_CREATE_IF_MISSING: Final = b"\1"
_MINT_TO: Final = 7
_INITIALIZE_MINT: Final = 20


class TokenHolding(NamedTuple):
    mint: Pubkey
    owner: Pubkey
    amount: int  # in base units


def read_mint(owner: Pubkey, data: bytes, mint: Pubkey) -> Mint:
    if owner != TOKEN or len(data) != MINT_BYTES:
        raise ConfigError(f"token {mint}: is no mint of the SPL Token program (Token-2022 cannot pay members)")
    return Mint.from_bytes(data)


def read_token_account(owner: Pubkey, data: bytes) -> TokenHolding:
    if owner != TOKEN or len(data) != TOKEN_BYTES:
        raise WireError(f"{len(data)} bytes of {owner} are no token account")
    try:
        account = TokenAccount.from_bytes(data)
    except ValueError as error:
        raise WireError(f"token account: {error}") from error
    return TokenHolding(account.mint, account.owner, account.amount)


def build_token_account(payer: Pubkey, owner: Pubkey, mint: Pubkey) -> Instruction:
    """Make the owner's associated token account, unless it is there; the payer signs."""
    accounts = [
        signs(payer, writable=True), writes(get_associated_token_address(owner, mint)), reads(owner), reads(mint),
        reads(SYSTEM), reads(TOKEN),
    ]  # fmt: skip
    return Instruction(ASSOCIATED_TOKEN, _CREATE_IF_MISSING, accounts)


def build_mint(payer: Pubkey, mint: Pubkey, decimals: int, deposit: int) -> tuple[Instruction, Instruction]:
    """Make a token that the payer alone can mint and nobody can freeze; payer and the key of the mint sign."""
    params = CreateAccountParams(
        from_pubkey=payer, to_pubkey=mint, lamports=deposit, space=MINT_BYTES, owner=TOKEN
    )  # fmt: skip
    body = bytes([_INITIALIZE_MINT, decimals, *bytes(payer), 0])
    return create_account(params), Instruction(TOKEN, body, [writes(mint)])


def build_mint_to(authority: Pubkey, mint: Pubkey, account: Pubkey, amount: int) -> Instruction:
    """Mint base units of a token into a token account; who may mint it signs."""
    accounts = [writes(mint), writes(account), signs(authority)]
    return Instruction(TOKEN, struct.pack("<BQ", _MINT_TO, amount), accounts)
