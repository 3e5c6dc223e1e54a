"""Tokens of one's own: what a run pays its members in, for those who try that out."""

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.state import Mint

from psyche.backends.solana.amounts import format_amount, parse_amount
from psyche.backends.solana.interface.tokens import MINT_BYTES, build_mint, build_mint_to, read_mint
from psyche.backends.solana.owner.holders import find_target
from psyche.backends.solana.packing import Step
from psyche.backends.solana.session import ChainPlan, ChainSession
from psyche.core.state.limits import U64_MAX
from psyche.errors import ConfigError


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
