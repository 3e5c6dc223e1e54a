"""`psyche dev airdrop` and `mint`: what a wallet needs to try a run on a chain."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli.chain.commands import LOCAL, ChainAccess, chain_command
from psyche.cli.commands.dev import group
from psyche.cli.commands.run.group import WALLET
from psyche.cli.helpers.owners import say

if TYPE_CHECKING:
    from psyche.backends.solana.session import ChainSession

DECIMALS = 6


@chain_command(
    group,
    "airdrop",
    f"psyche dev airdrop --amount 5 {LOCAL}",
    f"psyche dev airdrop --to {WALLET} \\",
    f"    {LOCAL}",
)
def airdrop(
    *,
    chain: ChainAccess,
    amount: Annotated[str, typer.Option(help="How many SOL. A test cluster gives few at a time.")] = "1",
    to: Annotated[str | None, typer.Option(help="The wallet that gets them. Default: yours.")] = None,
) -> None:
    """Get SOL that are worth nothing, for a wallet.

    They come from the faucet of a local chain, of devnet or of testnet; mainnet-beta has none.
    """
    from psyche.backends.solana.amounts import SOL_DECIMALS, format_sol, parse_amount
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.owner.faucet import request_lamports
    from psyche.errors import ConfigError

    lamports = parse_amount(amount, SOL_DECIMALS, "--amount")
    if not lamports:
        raise ConfigError("--amount: must be more than 0")
    named = parse_key(to, "--to") if to else None

    async def do(session: "ChainSession") -> None:
        key = named or session.key
        typer.echo(f"{key} has {format_sol(await request_lamports(session.rpc, key, lamports))}")

    replace(chain, reads=named is not None).run(do)


@chain_command(
    group,
    "mint",
    f"psyche dev mint --amount 1000 {LOCAL}",
    f"psyche dev mint --to {WALLET} \\",
    f"    --decimals 0 --amount 50 {LOCAL}",
)
def mint(
    *,
    chain: ChainAccess,
    amount: Annotated[str | None, typer.Option(help="How many tokens to mint, such as 250.5.")] = None,
    to: Annotated[
        str | None, typer.Option(help="The wallet that gets them, or an account of this token. Default: your wallet.")
    ] = None,
    mint: Annotated[str | None, typer.Option(help="Mint more of this token. Default: a new one is made.")] = None,
    decimals: Annotated[
        int | None, typer.Option(min=0, max=9, help=f"Digits behind the point, of a new token. Default: {DECIMALS}.")
    ] = None,
) -> None:
    """Make a token that a run can pay its members in, or mint more.

    It is a token of the SPL Token program. Your wallet alone can mint it; nobody can freeze it.
    Prints the token's address alone on standard output, for `psyche run create --treasurer-collateral-mint`.
    """
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.owner.minting import plan_mint, plan_token
    from psyche.errors import ConfigError

    named, target = (parse_key(text, f"--{name}") if text else None for name, text in (("mint", mint), ("to", to)))
    if named is not None and (amount is None or decimals is not None):
        raise ConfigError("--mint: that token is there; name the --amount to mint of it, and no --decimals")

    async def do(session: "ChainSession") -> None:
        to = target or session.key
        if named is None:
            token, plan = await plan_token(session, DECIMALS if decimals is None else decimals, amount, to)
        else:
            token, plan = named, await plan_mint(session, named, amount or "", to)
        await session.carry_out(plan)
        say("done")
        typer.echo(str(token))

    chain.run(do)
