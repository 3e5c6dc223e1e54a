"""Lamports and tokens for wallets: from a faucet, from a mint of one's own, and where tokens are held."""

from typing import Final, NamedTuple

import trio
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address
from solders.token.state import Mint

from psyche.backends.solana.amounts import format_amount, format_sol, parse_amount
from psyche.backends.solana.interface.tokens import (
    MINT_BYTES,
    TOKEN_BYTES,
    build_mint,
    build_mint_to,
    build_token_account,
    read_mint,
    read_token_account,
)
from psyche.backends.solana.programs.vouching import name_cluster
from psyche.backends.solana.rpc.client import Rpc
from psyche.backends.solana.session import ChainPlan, ChainSession, Step
from psyche.core.state.limits import U64_MAX
from psyche.errors import BackendError, ConfigError, WireError


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


async def plan_token(session: ChainSession, decimals: int, amount: str | None, to: Pubkey) -> tuple[Pubkey, ChainPlan]:
    """Plan a new token that the wallet alone can mint and nobody can freeze, and a first amount."""
    key = Keypair()
    mint = key.pubkey()
    deposit = await session.rpc.get_deposit(MINT_BYTES)
    step = Step("the token", build_mint(session.key, mint, decimals, deposit))
    says, steps, kept = f"makes the token {mint}", (step,), 0
    if amount is not None:
        first = await _plan_amount(session, mint, Mint(None, 0, decimals, is_initialized=True), amount, to)
        says, steps, kept = f"{says} and {first.says}", (step, *first.steps), first.kept_lamports
    return mint, ChainPlan(says, steps, deposit, "it stays with the token for good", (key,), kept_lamports=kept)


async def plan_mint(session: ChainSession, mint: Pubkey, amount: str, to: Pubkey) -> ChainPlan:
    """Plan to mint more of a token to a wallet or a token account."""
    account = await session.rpc.get_account(mint)
    if account is None:
        raise ConfigError(f"--mint {mint}: there is no such token on this chain")
    token = read_mint(account.owner, account.data, mint)
    if token.mint_authority != session.key:
        who = f"{token.mint_authority} alone" if token.mint_authority else "nobody any more"
        raise ConfigError(f"--mint {mint}: {who} can mint this token, and the wallet here is {session.key}")
    return await _plan_amount(session, mint, token, amount, to)


async def _plan_amount(session: ChainSession, mint: Pubkey, token: Mint, amount: str, to: Pubkey) -> ChainPlan:
    units = parse_amount(amount, token.decimals, "--amount")
    if not 0 < units <= U64_MAX - token.supply:
        most = format_amount(U64_MAX - token.supply, token.decimals)
        raise ConfigError(f"--amount {amount}: must be more than 0 and at most {most}")
    target = await find_target(session, to, mint)
    step = Step("mint", (*target.making, build_mint_to(session.key, mint, target.account, units)))
    says = f"mints {format_amount(units, token.decimals)} tokens of {mint} to {to}"
    return ChainPlan(says, (step,), kept_lamports=target.deposit_lamports)


POLL_S: Final = 0.1
FUND_S: Final = 60.0


async def request_lamports(rpc: Rpc, key: Pubkey, lamports: int) -> int:
    """Ask the faucet for lamports; return what the wallet has once they are there."""
    where = name_cluster(await rpc.get_genesis_hash())
    if where == "mainnet-beta":
        raise BackendError("mainnet-beta has no faucet: somebody who has SOL must send it")
    before = await rpc.get_balance(key)
    try:
        await rpc.call("requestAirdrop", str(key), lamports)
    except BackendError as error:
        elsewhere = "; https://faucet.solana.com gives some in a browser" if where else ""
        raise BackendError(
            f"the faucet gives no {format_sol(lamports)} now ({error}): ask for less{elsewhere}"
        ) from error
    with trio.move_on_after(FUND_S):
        while (after := await rpc.get_balance(key)) < before + lamports:  # noqa: ASYNC110  # the chain alone knows
            await trio.sleep(POLL_S)
        return after
    raise BackendError(f"the faucet has promised {key} lamports that are not there after {FUND_S:.0f} s; ask again")
