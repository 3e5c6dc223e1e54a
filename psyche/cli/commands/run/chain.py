"""The commands of `psyche run` that only a chain has: a run from its beginning to its end there."""

import json
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from psyche import __version__
from psyche.cli.commands.run.group import group
from psyche.cli.helpers.remote import MANIFEST, SOURCES, Remote
from psyche.cli.helpers.target import (
    CHAIN,
    CHAIN_AND_WALLET,
    LOCAL,
    WALLET,
    Access,
    RunId,
    carry_out,
    command,
    tell_return,
)
from psyche.core.state.state import ZERO32
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.backends.solana.owner.creation import Creation
    from psyche.backends.solana.session import ChainSession
    from psyche.config.load import LoadedRun
    from psyche.core.state.state import Checkpoint

_command = partial(command, group, shared=CHAIN_AND_WALLET)
NewId = Annotated[
    str, typer.Option("--run-id", "-r", envvar="RUN_ID", help="The run's id on the chain. Default: that of the file.")
]


@_command(
    "create",
    f"psyche run create --state my-run {LOCAL}",
    f"psyche run create --state my-run --run-id another-run {LOCAL} --yes",
    aliases=((group, "create-run"),),
    shared=CHAIN_AND_WALLET | SOURCES | MANIFEST,
)
def create(
    *,
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
    access: Access,
    remote: Remote,
) -> None:
    """Create a run on Solana. The wallet pays, and owns it.

    Its accounts, settings and texts are written in as few transactions as have room for them. If one of them fails,
    run the command again: it goes on where it stopped. If the model's folder is here, or the model is on the Hub or in
    a bucket, its weights are put on record: the run begins with no others. The run waits then: `psyche auth create`
    says who may join, and `psyche run resume` starts it.
    """
    from psyche.backends.solana.interface.addresses import get_instance_address, parse_key
    from psyche.backends.solana.owner.creation import Creation, plan_create

    if treasurer_index is not None and treasurer_collateral_mint is None:
        raise ConfigError("--treasurer-index: needs --treasurer-collateral-mint, the token that the run pays in")
    file, first_weights = (None, ZERO32) if state is None else load_new(state, access, remote)
    run_id = run_id or (file.run_id if file else "")
    if not run_id:
        raise ConfigError("name the run with --run-id, or with --state the file of its settings, which names it")
    get_instance_address(run_id)
    texts = {"name": name, "description": description}
    new = Creation(
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

    access.run_on_chain(do)


def load_new(state: Path, access: Access, remote: Remote) -> "tuple[LoadedRun, bytes]":
    """Load a file of settings, and the digest of the model that it names, zero if that is not here (S11)."""
    from psyche.cli.helpers.updates import load_settings, read_first_weights

    file = load_settings(state, access.chain, remote.data_manifest).file
    first = read_first_weights(file, remote.get_options())
    return replace(file, model=replace(file.model, checkpoint=first.source)), first.digest


def list_next(session: "ChainSession", new: "Creation") -> list[str]:
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


@_command("close", f"psyche run close --run-id my-run {LOCAL}", aliases=((group, "close-run"),))
def close(*, access: Access, run_id: RunId) -> None:
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

    access.run_on_chain(do)


Json = Annotated[bool, typer.Option("--json", help="JSON for programs.")]
Authorizer = Annotated[
    str | None,
    typer.Option(
        help="The wallet that was authorized, if the one that wants to join is its delegate. Default: the one that "
        "wants to join, or everybody."
    ),
]


@_command("tick", f"psyche run tick --run-id my-run --count 1 {LOCAL}")
def tick(
    *,
    run_id: RunId,
    ms_interval: Annotated[int, typer.Option(min=1, help="Milliseconds between two looks at the record.")] = 1000,
    count: Annotated[int | None, typer.Option(min=1, help="How many times to look. Default: until Ctrl-C.")] = None,
    access: Access,
) -> None:
    """Move a run on Solana along.

    Otherwise its clients do that.
    A tick is sent, and paid for, only if it changes the record.
    """
    from psyche.backends.solana.member.ticking import tick_run

    access.run_on_chain(lambda session: tick_run(session, run_id, ms_interval / 1000, count, typer.echo))


@_command("checkpoint", f"psyche run checkpoint --run-id my-run --repo ada/my-model {LOCAL}")
def checkpoint(
    *,
    run_id: RunId,
    repo: Annotated[str | None, typer.Option(help="Repository of the Hugging Face Hub that has the weights.")] = None,
    revision: Annotated[str | None, typer.Option(help="Its revision. Default: the newest.")] = None,
    gcs_bucket: Annotated[str | None, typer.Option(help="Bucket that has the weights, instead of --repo.")] = None,
    gcs_prefix: Annotated[str | None, typer.Option(help="What the names of its objects begin with.")] = None,
    access: Access,
) -> None:
    """Put a place of the run's weights on record. The wallet must be a member of the last epoch.

    Clients load the weights from there too, and from each other. It must have the certified weights: clients use no
    others.
    """
    from psyche.backends.solana.member.ticking import plan_checkpoint

    source = parse_place(repo, revision, gcs_bucket, gcs_prefix)
    done = f"the checkpoint of run {run_id!r} is on record"
    access.carry_out(lambda session: plan_checkpoint(session, run_id, source), done, "it is on record already")


def parse_place(repo: str | None, revision: str | None, bucket: str | None, prefix: str | None) -> "Checkpoint":
    from psyche.core.state.state import Checkpoint, CheckpointKind

    if bool(repo) == bool(bucket):
        raise ConfigError("name one place: --repo OWNER/NAME or --gcs-bucket NAME")
    if revision is not None and not repo:
        raise ConfigError("--revision: belongs to --repo")
    if prefix is not None and not bucket:
        raise ConfigError("--gcs-prefix: belongs to --gcs-bucket")
    if repo:
        return Checkpoint(CheckpointKind.HUB, repo, revision)
    return Checkpoint(CheckpointKind.GCS, bucket or "", prefix)


@_command(
    "list", f"psyche run list {LOCAL}", f"psyche run list {LOCAL} --json", shared=CHAIN, aliases=((group, "list-runs"),)
)
def list_runs(
    *,
    authorizer: Annotated[str | None, typer.Option(help="Only runs whose join authority this wallet is.")] = None,
    as_json: Json = False,
    access: Access,
) -> None:
    """List the runs on a chain."""
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.joining import list_rows
    from psyche.telemetry.text import format_table

    only = parse_key(authorizer, "--authorizer") if authorizer else None
    rows = access.run_on_chain(lambda session: list_rows(session, only))
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif not rows:
        typer.echo("there is no run on this chain")
    else:
        head = ("run", "state", "step", "members", "owner")
        table = [
            (r["run_id"], r["state"], f"{r['step']} of {r['total_steps']}", str(r["members"]), r["owner"]) for r in rows
        ]
        typer.echo(format_table(head, table, left=5))


@_command("can-join", f"psyche run can-join --run-id my-run {LOCAL} \\", f"    --address {WALLET}", shared=CHAIN)
def can_join(
    *,
    run_id: RunId,
    address: Annotated[str, typer.Option("--address", "--wallet", "--user", help="The wallet that wants to join.")],
    authorizer: Authorizer = None,
    as_json: Json = False,
    access: Access,
) -> None:
    """Say whether a wallet may join a run now.

    If it may not, say what stands against it, and the command that mends it; the exit code is 1 then.
    """
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.joining import judge_join

    wallet = parse_key(address, "--address")
    grantee = parse_key(authorizer, "--authorizer") if authorizer else None
    verdict = access.run_on_chain(lambda session: judge_join(session, run_id, wallet, grantee))
    typer.echo(json.dumps({"can_join": not verdict.problem, "reason": verdict.reason}) if as_json else verdict.reason)
    if verdict.problem:
        raise typer.Exit(1)
