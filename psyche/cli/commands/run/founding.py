"""`psyche run create` and `close`: a run on a chain from its beginning to its end."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from psyche import __version__
from psyche.cli.chain.commands import LOCAL, ChainAccess, carry_out, chain_command, tell_return
from psyche.cli.commands.run.group import RunId, group

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from psyche.backends.solana.session import ChainSession
    from psyche.config.load import LoadedRun

NewId = Annotated[
    str, typer.Option("--run-id", "-r", envvar="RUN_ID", help="The run's id on the chain. Default: that of the file.")
]


@chain_command(
    group,
    "create",
    f"psyche run create --state my-run {LOCAL}",
    f"psyche run create --state my-run --run-id another-run {LOCAL} --yes",
    aliases=((group, "create-run"),),
)
def create(
    *,
    chain: ChainAccess,
    state: Annotated[
        Path, typer.Option("--state", "--config-path", help="run.toml or state.toml with its settings, or its folder.")
    ],
    run_id: NewId = "",
    client_version: Annotated[
        str, typer.Option("--client-version", "-c", help="The version that clients must have.")
    ] = __version__,
    treasurer_collateral_mint: Annotated[
        str | None, typer.Option(help="The SPL token that the run pays its members in. Default: it pays nobody.")
    ] = None,
    treasurer_index: Annotated[
        int | None, typer.Option(min=0, help="Its number among your runs at the treasurer. Default: from the run id.")
    ] = None,
    join_authority: Annotated[
        str | None, typer.Option(help="The wallet that says who may join. Default: the owner's.")
    ] = None,
) -> None:
    """Create a run on Solana. The wallet pays, and owns it.

    Its accounts, settings and texts are written in as few transactions as have room for them. If one of them fails,
    run the command again: it goes on where it stopped. If the model's folder is here, its weights are put on record:
    the run begins with no others. The run waits then: `psyche auth create` says who may join, and `psyche run resume`
    starts it.
    """
    from psyche.backends.solana.founding import Founding, plan_create
    from psyche.chain.addresses import get_instance_address, parse_key
    from psyche.cli.chain.files import load_chain_run
    from psyche.cli.chain.first_weights import read_first_weights
    from psyche.errors import ConfigError

    if treasurer_index is not None and treasurer_collateral_mint is None:
        raise ConfigError("--treasurer-index: needs --treasurer-collateral-mint, the token that the run pays in")
    file = load_chain_run(state)
    file = replace(file, run_id=run_id or file.run_id)
    get_instance_address(file.run_id)
    new = Founding(
        file,
        client_version,
        parse_key(join_authority, "--join-authority") if join_authority else None,
        parse_key(treasurer_collateral_mint, "--treasurer-collateral-mint") if treasurer_collateral_mint else None,
        treasurer_index,
        read_first_weights(file),
    )
    done = f"run {file.run_id!r} is there, and waits"

    async def do(session: "ChainSession") -> None:
        await carry_out(session, await plan_create(session, new), done, done)
        grantor = new.join_authority or session.key
        typer.echo("\n".join(["next:", *(f"  {line}" for line in list_next(session, new.file, grantor))]))

    chain.run(do)


def list_next(session: "ChainSession", file: "LoadedRun", grantor: "Pubkey") -> list[str]:
    """The commands that begin a run, as they can be run: who may join, the start, and a client of each member."""
    spell, run_id = session.spelling.spell, file.run_id
    is_own = grantor == session.key
    whose = "" if is_own else f" With the wallet {grantor}."
    folder = f"--local-root {shlex.quote(str(file.folder))} --data-dir client-1"
    return [
        f"# let everybody join, or the wallet of each member instead of everybody.{whose}",
        spell("auth create --authorizer everybody", signed=is_own),
        "# start the run",
        spell("run resume", run_id),
        "# take part; each member with a wallet of its own",
        f"{spell('client train', run_id)} {folder}",
    ]


@chain_command(
    group,
    "close",
    f"psyche run close --run-id my-run {LOCAL}",
    aliases=((group, "close-run"),),
)
def close(*, chain: ChainAccess, run_id: RunId) -> None:
    """Close a run on Solana, and get its deposits back.

    The run must be paused, finished or new. What its members have earned is collected first; a run with a treasurer
    pays them too, and what its token account holds beyond that goes to the wallet. The record is gone then, for good.
    `psyche rewards close` gives back the deposits in what members were paid from.
    """
    from psyche.backends.solana.deposits import find_deposits
    from psyche.backends.solana.founding import plan_close
    from psyche.backends.solana.lookup import find_run

    async def do(session: "ChainSession") -> None:
        before = await session.rpc.get_balance(session.key)
        plan = await plan_close(session, await find_run(session, run_id))
        await carry_out(session, plan, f"run {run_id!r} is closed", "")
        await tell_return(session, before)
        for line in (await find_deposits(session)).describe_next(session):
            typer.echo(line)

    chain.run(do)
