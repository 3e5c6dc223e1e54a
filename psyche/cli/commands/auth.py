"""`psyche auth create`, `read`, `delegate` and `delete`."""

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli.commands.run.group import group as run_group
from psyche.cli.helpers.common import make_group
from psyche.cli.helpers.target import CHAIN, CHAIN_AND_WALLET, LOCAL, WALLET, Access, carry_out, command
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.backends.solana.session import ChainSession

EVERYBODY = "everybody"
group = make_group(
    "Say who may join runs on Solana.\n\n"
    "A run's join authority, which is its owner unless `psyche run create --join-authority` names another wallet, "
    "authorizes wallets, or everybody. Who is authorized may name delegates: wallets of its machines, which join in "
    "its name.",
    f"psyche auth create --authorizer {EVERYBODY} {LOCAL}",
    f"psyche auth create --authorizer {WALLET} \\",
    f"    {LOCAL}",
    "psyche auth read \\",
    f"    --join-authority {WALLET} \\",
    f"    {LOCAL}",
)
_command = partial(command, group, shared=CHAIN_AND_WALLET)
Authorizer = Annotated[
    str,
    typer.Option(
        "--authorizer", "--authorization", help="The wallet that is authorized; `everybody` stands for all wallets."
    ),
]
JoinAuthority = Annotated[str, typer.Option(help="The wallet that authorizes: the join authority of a run.")]


@_command(
    "create",
    f"psyche auth create --authorizer {WALLET} \\",
    f"    {LOCAL}",
    f"psyche auth create --authorizer {EVERYBODY} {LOCAL} --yes",
    aliases=((run_group, "join-authorization-create"), (group, "join-authorization-create")),
)
def create_authorization(*, access: Access, authorizer: Authorizer) -> None:
    """Let a wallet, or everybody, join your runs.

    They are the runs whose join authority your wallet is.
    """
    from psyche.backends.solana.joining import parse_grantee, plan_grant

    grantee = parse_grantee(authorizer)
    done = f"{authorizer} may join"
    access.carry_out(lambda session: plan_grant(session, grantee), done, f"{done} already")


@_command(
    "read",
    "psyche auth read \\",
    f"    --join-authority {WALLET} \\",
    f"    {LOCAL}",
    "psyche auth read \\",
    f"    --join-authority {WALLET} \\",
    f"    {LOCAL} --json",
    shared=CHAIN,
    aliases=((run_group, "join-authorization-read"), (group, "join-authorization-read")),
)
def read_authorization(
    *,
    join_authority: JoinAuthority,
    authorizer: Authorizer = EVERYBODY,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
    access: Access,
) -> None:
    """Show an authorization: whether it is on, and its delegates."""
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.joining import describe_authorization, find_authorization, parse_grantee

    grantor, grantee = parse_key(join_authority, "--join-authority"), parse_grantee(authorizer)
    found = access.run_on_chain(lambda session: find_authorization(session, grantor, grantee))
    if found is None:
        create = access.chain.writer.write(f"auth create --authorizer {authorizer}", signed=False)
        raise ConfigError(f"{grantor} has not authorized {authorizer}; with its wallet `{create}` does that")
    plain = describe_authorization(found)
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
        return
    typer.echo(f"{plain['grantee']} {'may' if found.active else 'may NOT'} join runs of {grantor}")
    for key in plain["delegates"]:
        typer.echo(f"delegate {key}")


@_command(
    "delegate",
    "psyche auth delegate \\",
    f"    --join-authority {WALLET} \\",
    f"    --delegates-added {WALLET} \\",
    f"    {LOCAL}",
    aliases=((run_group, "join-authorization-delegate"), (group, "join-authorization-delegate")),
)
def delegate(
    *,
    join_authority: JoinAuthority,
    delegates_clear: Annotated[bool, typer.Option("--delegates-clear", help="Remove all delegates first.")] = False,
    delegates_added: Annotated[
        list[str] | None,
        typer.Option("--delegates-added", "--delegate-added", help="A wallet that may join; may be repeated."),
    ] = None,
    access: Access,
) -> None:
    """Let other wallets join in your wallet's name.

    The join authority must have authorized your wallet.
    """
    from psyche.backends.solana.interface.addresses import parse_key
    from psyche.backends.solana.joining import plan_delegates

    if not delegates_added and not delegates_clear:
        raise ConfigError("name what changes: --delegates-added WALLET, --delegates-clear, or both")
    grantor = parse_key(join_authority, "--join-authority")
    added = [parse_key(text, "--delegates-added") for text in delegates_added or ()]
    access.carry_out(
        lambda session: plan_delegates(session, grantor, added, clear=delegates_clear),
        "the delegates are on record", "these are delegates already",
    )  # fmt: skip


@_command(
    "delete",
    f"psyche auth delete --authorizer {WALLET} \\",
    f"    {LOCAL}",
    aliases=((run_group, "join-authorization-delete"), (group, "join-authorization-delete")),
)
def delete(*, access: Access, authorizer: Authorizer) -> None:
    """Stop a wallet, or everybody, from joining.

    The deposit comes back too.
    An authorization with delegates is turned off at once; its deposit can be had 30 days later, by the same command.
    """
    from psyche.backends.solana.joining import parse_grantee, plan_revoke

    grantee = parse_grantee(authorizer)

    async def do(session: "ChainSession") -> None:
        plan, rest = await plan_revoke(session, grantee)
        await carry_out(session, plan, f"{authorizer} may join no longer", f"{authorizer} may not join")
        if rest:
            typer.echo(rest)

    access.run_on_chain(do)
