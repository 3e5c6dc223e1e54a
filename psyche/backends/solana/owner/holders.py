"""Where a wallet holds tokens: its associated token account, or another one that a person names."""

from typing import NamedTuple

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address

from psyche.backends.solana.interface.tokens import TOKEN_BYTES, build_token_account, read_token_account
from psyche.backends.solana.session import ChainSession
from psyche.errors import ConfigError, WireError


class TokenTarget(NamedTuple):
    """A token account, with what makes it if it is not there, and what that deposits."""

    account: Pubkey
    making: tuple[Instruction, ...]
    deposit_lamports: int


async def find_token_deposit(session: ChainSession, owner: Pubkey, mint: Pubkey) -> int:
    """The deposit that the owner's associated token account still needs; 0 if it is there."""
    if await session.rpc.get_account(get_associated_token_address(owner, mint)) is not None:
        return 0
    return await session.rpc.get_deposit(TOKEN_BYTES)


async def find_target(session: ChainSession, to: Pubkey, mint: Pubkey) -> TokenTarget:
    """Find where tokens of a mint go: `to` is a wallet, or a token account."""
    account = await session.rpc.get_account(to)
    if account is None or account.owner != TOKEN:
        deposit = await find_token_deposit(session, to, mint)
        making = (build_token_account(session.key, to, mint),) if deposit else ()
        return TokenTarget(get_associated_token_address(to, mint), making, deposit)
    try:
        holds = read_token_account(account.owner, account.data).mint
    except WireError as error:
        raise ConfigError(f"--to {to}: is neither a wallet nor a token account") from error
    if holds != mint:
        raise ConfigError(f"--to {to}: is an account of the token {holds}, not of {mint}; name a wallet instead")
    return TokenTarget(to, (), 0)
