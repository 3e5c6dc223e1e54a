"""`psyche run tick`, `checkpoint`, `list` and `can-join`: what only a chain has."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli.chain.commands import LOCAL, ChainAccess, carry_out, chain_command
from psyche.cli.commands.run.group import WALLET, RunId, group

if TYPE_CHECKING:
    from psyche.backends.solana.session import ChainSession
    from psyche.core.state.state import Checkpoint

Json = Annotated[bool, typer.Option("--json", help="JSON for programs.")]
Authorizer = Annotated[
    str | None,
    typer.Option(
        help="The wallet that was authorized, if the one that wants to join is its delegate. Default: the one that "
        "wants to join, or everybody."
    ),
]


@chain_command(group, "tick", f"psyche run tick --run-id my-run --count 1 {LOCAL}")
def tick(
    *,
    chain: ChainAccess,
    run_id: RunId,
    ms_interval: Annotated[int, typer.Option(min=1, help="Milliseconds between two looks at the record.")] = 1000,
    count: Annotated[int | None, typer.Option(min=1, help="How many times to look. Default: until Ctrl-C.")] = None,
) -> None:
    """Move a run on Solana along.

    Otherwise its clients do that.
    A tick is sent, and paid for, only if it changes the record.
    """
    from psyche.backends.solana.member.ticking import tick_run

    chain.run(lambda session: tick_run(session, run_id, ms_interval / 1000, count, typer.echo))


@chain_command(group, "checkpoint", f"psyche run checkpoint --run-id my-run --repo ada/my-model {LOCAL}")
def checkpoint(
    *,
    chain: ChainAccess,
    run_id: RunId,
    repo: Annotated[str | None, typer.Option(help="Repository of the Hugging Face Hub that has the weights.")] = None,
    revision: Annotated[str | None, typer.Option(help="Its revision. Default: the newest.")] = None,
    gcs_bucket: Annotated[str | None, typer.Option(help="Bucket that has the weights, instead of --repo.")] = None,
    gcs_prefix: Annotated[str | None, typer.Option(help="What the names of its objects begin with.")] = None,
) -> None:
    """Put a place of the run's weights on record. The wallet must be a member of the last epoch.

    The place is for those who want the model: clients load from each other and from folders. It must have the
    certified weights, which nobody checks.
    """
    from psyche.backends.solana.member.ticking import plan_checkpoint

    source = parse_place(repo, revision, gcs_bucket, gcs_prefix)

    async def do(session: "ChainSession") -> None:
        plan = await plan_checkpoint(session, run_id, source)
        await carry_out(session, plan, f"the checkpoint of run {run_id!r} is on record", "it is on record already")

    chain.run(do)


def parse_place(repo: str | None, revision: str | None, bucket: str | None, prefix: str | None) -> "Checkpoint":
    from psyche.core.state.state import Checkpoint, CheckpointKind
    from psyche.errors import ConfigError

    if bool(repo) == bool(bucket):
        raise ConfigError("name one place: --repo OWNER/NAME or --gcs-bucket NAME")
    if revision is not None and not repo:
        raise ConfigError("--revision: belongs to --repo")
    if prefix is not None and not bucket:
        raise ConfigError("--gcs-prefix: belongs to --gcs-bucket")
    if repo:
        return Checkpoint(CheckpointKind.HUB, repo, revision)
    return Checkpoint(CheckpointKind.GCS, bucket or "", prefix)


@chain_command(
    group,
    "list",
    f"psyche run list {LOCAL}",
    f"psyche run list {LOCAL} --json",
    reads=True,
    aliases=((group, "list-runs"),),
)
def list_runs(
    *,
    chain: ChainAccess,
    authorizer: Annotated[str | None, typer.Option(help="Only runs whose join authority this wallet is.")] = None,
    as_json: Json = False,
) -> None:
    """List the runs on a chain."""
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.owner.listing import list_rows
    from psyche.telemetry.text import format_table

    only = parse_key(authorizer, "--authorizer") if authorizer else None
    rows = chain.run(lambda session: list_rows(session, only))
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


@chain_command(
    group, "can-join", f"psyche run can-join --run-id my-run {LOCAL} \\", f"    --address {WALLET}", reads=True
)
def can_join(
    *,
    chain: ChainAccess,
    run_id: RunId,
    address: Annotated[str, typer.Option("--address", "--wallet", "--user", help="The wallet that wants to join.")],
    authorizer: Authorizer = None,
    as_json: Json = False,
) -> None:
    """Say whether a wallet may join a run now.

    If it may not, say what stands against it, and the command that mends it; the exit code is 1 then.
    """
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.owner.listing import judge_join

    wallet = parse_key(address, "--address")
    grantee = parse_key(authorizer, "--authorizer") if authorizer else None
    verdict = chain.run(lambda session: judge_join(session, run_id, wallet, grantee))
    typer.echo(json.dumps({"can_join": not verdict.problem, "reason": verdict.reason}) if as_json else verdict.reason)
    if verdict.problem:
        raise typer.Exit(1)
