"""`psyche run create` and `close`: a run on a chain from its beginning to its end."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from psyche import __version__
from psyche.cli.chain.commands import LOCAL, ChainAccess, carry_out, chain_command, tell_return
from psyche.cli.commands.run.group import RunId, group
from psyche.core.state.state import ZERO32

if TYPE_CHECKING:
    from psyche.backends.solana.owner.creation import Founding
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
        Path | None,
        typer.Option(
            "--state",
            "--config-path",
            help="run.toml or state.toml with its settings, or its folder. Without it they come later, by "
            "`psyche run update-config`.",
        ),
    ] = None,
    run_id: NewId = "",
    name: Annotated[str | None, typer.Option(help="The run's name for people, instead of the file's.")] = None,
    description: Annotated[str | None, typer.Option(help="What the run is for, instead of the file's.")] = None,
    client_version: Annotated[
        str, typer.Option("--client-version", "-c", help="The version that clients must have; latest: any.")
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
    from psyche.backends.solana.interface.addresses import get_instance_address, parse_key
    from psyche.backends.solana.owner.creation import Founding, plan_create
    from psyche.errors import ConfigError

    if treasurer_index is not None and treasurer_collateral_mint is None:
        raise ConfigError("--treasurer-index: needs --treasurer-collateral-mint, the token that the run pays in")
    file, first_weights = (None, ZERO32) if state is None else load_new(state, chain)
    run_id = run_id or (file.run_id if file else "")
    if not run_id:
        raise ConfigError("name the run with --run-id, or with --state the file of its settings, which names it")
    get_instance_address(run_id)
    texts = {"name": name, "description": description}
    new = Founding(
        run_id,
        file,
        client_version,
        parse_key(join_authority, "--join-authority") if join_authority else None,
        parse_key(treasurer_collateral_mint, "--treasurer-collateral-mint") if treasurer_collateral_mint else None,
        treasurer_index,
        first_weights,
        {key: text for key, text in texts.items() if text is not None},
    )
    done = f"run {run_id!r} is there, and waits"

    async def do(session: "ChainSession") -> None:
        await carry_out(session, await plan_create(session, new), done, done)
        typer.echo("\n".join(["next:", *(f"  {line}" for line in list_next(session, new))]))

    chain.run(do)


def load_new(state: Path, chain: ChainAccess) -> "tuple[LoadedRun, bytes]":
    """Load a file of settings, and the digest of the model that it names, zero if that is not here (S11)."""
    from psyche.cli.chain.changes import load_settings
    from psyche.cli.chain.first_weights import read_first_weights

    file = load_settings(state, chain.target).file
    return file, read_first_weights(file)


def list_next(session: "ChainSession", new: "Founding") -> list[str]:
    """The commands that begin a run, as they can be run: who may join, the start, and a client of each member."""
    write, run_id = session.writer.write, new.run_id
    grantor = new.join_authority or session.key
    is_own = grantor == session.key
    whose = "" if is_own else f" With the wallet {grantor}."
    settings = ["# write its settings", write("run update-config --state FILE", run_id)]
    folder = "FOLDER" if new.file is None else shlex.quote(str(new.file.folder))
    return [
        *([] if new.file else settings),
        f"# let everybody join, or the wallet of each member instead of everybody.{whose}",
        write("auth create --authorizer everybody", signed=is_own),
        "# start the run",
        write("run resume", run_id),
        "# take part; each member with a wallet of its own",
        f"{write('client train', run_id)} --local-root {folder} --data-dir client-1",
    ]


@chain_command(group, "close", f"psyche run close --run-id my-run {LOCAL}", aliases=((group, "close-run"),))
def close(*, chain: ChainAccess, run_id: RunId) -> None:
    """Close a run on Solana, and get its deposits back.

    The run must be paused, finished or new. What its members have earned is collected first; a run with a treasurer
    pays them too, and what its token account holds beyond that goes to the wallet. The record is gone then, for good.
    `psyche rewards close` gives back the deposits in what members were paid from.
    """
    from psyche.backends.solana.lookup import find_run
    from psyche.backends.solana.owner.creation import plan_close
    from psyche.backends.solana.owner.deposits import find_deposits

    async def do(session: "ChainSession") -> None:
        before = await session.rpc.get_balance(session.key)
        plan = await plan_close(session, await find_run(session, run_id))
        await carry_out(session, plan, f"run {run_id!r} is closed", "")
        await tell_return(session, before)
        for line in (await find_deposits(session)).describe_next(session):
            typer.echo(line)

    chain.run(do)
