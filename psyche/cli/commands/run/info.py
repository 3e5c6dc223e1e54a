"""`psyche run info`: how a run goes."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli.commands.run.group import ADDRESS, ON_CHAIN, OWNED, WALLET, owner_command
from psyche.cli.helpers.owners import Owner, make_person

if TYPE_CHECKING:
    from psyche.wire.backend import RunStatus


@owner_command(
    "info",
    f"psyche run info {ADDRESS}",
    f"psyche run info {OWNED} --watch",
    f"psyche run info {ADDRESS} --json",
    f"psyche run info {ON_CHAIN}",
)
def info(
    *,
    owner: Owner,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show it again every two seconds, until the run is finished. Ctrl-C ends it, with exit code 0.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object; with --watch one on each line. docs/owner.md lists its keys.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="Only what a run on Solana knows of this wallet, as JSON.")
    ] = None,
) -> None:
    """Show how a run goes. Anybody may ask.

    With an owner's key also its members: what each says that it does, waits for and achieves, and its last error.
    Clients of the run may see that too, without the errors. Exit code 1 if the server does not answer.
    """
    from psyche.cli.helpers.watching import ask_once, watch_until_signal

    with_members, write = owner.target.shows_members, owner.target.write_command
    if address:
        show_what_is_known(owner, address)
    elif watch:
        owner.run(
            lambda backend: watch_until_signal(backend, with_members, as_json, write), as_anybody=True, is_quiet=True
        )
    else:
        typer.echo(owner.run(lambda backend: ask_once(backend, with_members, as_json, write), as_anybody=True))


def show_what_is_known(owner: Owner, address: str) -> None:
    from psyche.errors import ConfigError

    if owner.target.open_wallets is None:
        raise ConfigError("--address: is for a run on Solana; `psyche run info` with an owner's key shows all clients")
    opening = owner.target.open_wallets(make_person(yes=owner.yes))
    plain = owner.call(lambda backend: backend.describe_wallet(address), opening)
    typer.echo(json.dumps(plain, indent=2))


@owner_command("json-info-dump", f"psyche run info {ON_CHAIN} --json", hidden=True)
@owner_command("json-dump-run", f"psyche run info {ON_CHAIN} --json", hidden=True)
def dump_run(*, owner: Owner) -> None:
    """Print the state of a run as JSON; `psyche run info --json` does the same."""
    info(owner=owner, as_json=True)


@owner_command("json-dump-user", f"psyche run info {ON_CHAIN} \\", f"    --address {WALLET}", hidden=True)
def dump_wallet(
    *,
    owner: Owner,
    address: Annotated[str, typer.Option("--address", "--wallet", "--user", help="The wallet to look up.")],
) -> None:
    """Print what a run knows of a wallet as JSON; `psyche run info --address` does the same."""
    show_what_is_known(owner, address)


def show_status(owner: Owner, status: "RunStatus") -> None:
    from psyche.cli.helpers.watching import format_run

    typer.echo(format_run(status, spell=owner.target.write_command))
