"""`psyche rewards claim`, `top-up`, `withdraw`, `show` and `close`."""

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from psyche.cli.commands.run.group import group as run_group
from psyche.cli.helpers.common import make_group
from psyche.cli.helpers.target import CHAIN, CHAIN_AND_WALLET, LOCAL, Access, RunId, carry_out, command, tell_return
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.backends.solana.lookup import FoundRun
    from psyche.backends.solana.session import ChainPlan, ChainSession

RUN = "--run-id my-run"  # in examples
group = make_group(
    "Pay the members of a run on Solana.\n\n"
    "A run that was created with --treasurer-collateral-mint pays in that token. Anybody may pay in; members claim, or "
    "the owner claims for them, before the run is closed. After that, each gets its deposits back.",
    f"psyche rewards show {RUN} {LOCAL}",
    f"psyche rewards top-up {RUN} --collateral-amount 9.5 {LOCAL}",
    f"psyche rewards claim {RUN} {LOCAL}",
    f"psyche rewards close {LOCAL}",
)
_command = partial(command, group, shared=CHAIN_AND_WALLET)
TreasurerIndex = Annotated[
    int | None, typer.Option(min=0, hidden=True, help="The run's index at the treasurer, which is found without it.")
]


async def _find(session: "ChainSession", run_id: str, treasurer_index: int | None) -> "FoundRun":
    from psyche.backends.solana.owner.administration import find_administration

    return await (await find_administration(session, run_id, treasurer_index)).find()


@_command("claim", f"psyche rewards claim {RUN} {LOCAL}", aliases=((run_group, "treasurer-claim-rewards"),))
def claim(
    *,
    run_id: RunId,
    address: Annotated[
        str | None,
        typer.Option(help="The member that is paid, if the run's owner claims for it. Default: your wallet."),
    ] = None,
    treasurer_index: TreasurerIndex = None,
    access: Access,
) -> None:
    """Get paid what you have earned in a run.

    To the last unit, as far as the run holds it.
    Your token account, and the record of what you were paid, are made if they are not there.
    """
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.owner.rewards import find_earner, plan_claim

    async def plan(session: "ChainSession") -> "ChainPlan":
        found = await _find(session, run_id, treasurer_index)
        key = parse_key(address, "--address") if address else session.key
        if key != session.key:
            found.check_owner(session.key)
        return await plan_claim(session, found, await find_earner(session, found, key))

    access.carry_out(plan, "paid")


@_command(
    "top-up",
    f"psyche rewards top-up {RUN} --collateral-amount 9.5 {LOCAL}",
    aliases=((run_group, "treasurer-top-up-rewards"), (run_group, "treasurer-top-up-reward")),
)
def top_up(
    *,
    run_id: RunId,
    collateral_amount: Annotated[str, typer.Option(help="How many tokens to pay in, such as 250.5.")],
    treasurer_index: TreasurerIndex = None,
    access: Access,
) -> None:
    """Pay tokens into a run, for its members. Anybody may."""
    from psyche.backends.solana.amounts import parse_amount
    from psyche.backends.solana.owner.rewards import find_treasury, plan_top_up

    async def plan(session: "ChainSession") -> "ChainPlan":
        found = await _find(session, run_id, treasurer_index)
        treasury = await find_treasury(session, found)
        amount = parse_amount(collateral_amount, treasury.decimals, "--collateral-amount")
        if not amount:
            raise ConfigError("--collateral-amount: must be more than 0")
        return await plan_top_up(session, found, treasury, amount)

    access.carry_out(plan, "paid in")


@_command(
    "withdraw",
    f"psyche rewards withdraw {RUN} --collateral-amount 2.5 \\",
    f"    {LOCAL}",
    f"psyche rewards withdraw {RUN} {LOCAL}  # all",
)
def withdraw(
    *,
    run_id: RunId,
    collateral_amount: Annotated[
        str | None, typer.Option(help="How many tokens to take. Default: all that the run does not owe.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="The wallet that gets them, or an account of the token. Default: your wallet.")
    ] = None,
    treasurer_index: TreasurerIndex = None,
    access: Access,
) -> None:
    """Take tokens out of your run that it does not owe.

    What members have earned stays, with what the running epoch pays at its end.
    """
    from psyche.backends.solana.amounts import parse_amount
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.owner.rewards import find_treasury, plan_withdraw

    target = parse_key(to, "--to") if to else None

    async def plan(session: "ChainSession") -> "ChainPlan":
        found = await _find(session, run_id, treasurer_index)
        treasury = await find_treasury(session, found)
        text = collateral_amount
        amount = None if text is None else parse_amount(text, treasury.decimals, "--collateral-amount")
        return await plan_withdraw(session, found, treasury, amount, target or session.key)

    access.carry_out(plan, "withdrawn")


@_command("show", f"psyche rewards show {RUN} {LOCAL}", f"psyche rewards show {RUN} {LOCAL} --json", shared=CHAIN)
def show(
    *,
    run_id: RunId,
    treasurer_index: TreasurerIndex = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs; amounts are base units.")] = False,
    access: Access,
) -> None:
    """Show what members have earned and were paid.

    And what the run holds for them, if it has a treasurer.
    """
    from psyche.backends.solana.owner.rewards import describe_rewards, format_rewards

    async def ask(session: "ChainSession") -> dict[str, Any]:
        return await describe_rewards(session, await _find(session, run_id, treasurer_index))

    plain = access.run_on_chain(ask)
    typer.echo(json.dumps(plain, indent=2) if as_json else format_rewards(plain))


@_command("close", f"psyche rewards close {LOCAL}")
def close_records(*, access: Access) -> None:
    """Get your deposits back after your runs are closed.

    They are in the records of what you have earned, which you alone can close, and of what you and those whose
    deposits you paid were paid. The lamports go to whoever deposited them. Claim first: a closed record proves nothing.
    """
    from psyche.backends.solana.owner.deposits import find_deposits, plan_return

    async def do(session: "ChainSession") -> None:
        before = await session.rpc.get_balance(session.key)
        found = await find_deposits(session)
        if found.closable:
            await carry_out(session, plan_return(found), "closed", "")
            await tell_return(session, before)
        else:
            typer.echo(f"{session.key} has nothing to close now")
        for line in found.describe_rest(session):
            typer.echo(line)

    access.run_on_chain(do)
