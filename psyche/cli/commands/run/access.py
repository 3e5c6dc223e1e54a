"""`psyche run allow`, `disallow`, `allowed` and `collect`: who may join, and what they have earned (M11, M12)."""

from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli.commands.run.group import OWNED, owner_command
from psyche.cli.helpers.common import parse_hex
from psyche.cli.helpers.owners import Owner, say

if TYPE_CHECKING:
    from psyche.wire.backend import RunStatus

Key = Annotated[str, typer.Argument(help="Public key, 64 hex digits: `psyche client show-identity` prints it.")]


@owner_command(
    "allow",
    'psyche run allow "$(psyche client show-identity --data-dir ada)" \\',
    f"    {OWNED}",
    'psyche run allow "$(psyche client show-identity --data-dir ada)" \\',
    '    --delegate "$(psyche client show-identity --data-dir ben)" \\',
    f"    {OWNED}",
    former="allow",
)
def allow_key(
    *,
    key: Key,
    owner: Owner,
    delegate: Annotated[
        list[str] | None, typer.Option(help="Public key of a machine that may join in KEY's name; may be repeated.")
    ] = None,
) -> None:
    """Let a key join the run.

    The server remembers it, also after a restart. A client that waits for permission joins by itself. The run's join
    authority may do this too.
    """
    from psyche.errors import ConfigError
    from psyche.wire.access import MAX_DELEGATES, Allow

    delegates = tuple(parse_hex("--delegate", one) for one in delegate or ())
    if len(delegates) > MAX_DELEGATES:
        raise ConfigError(
            f"--delegate: {len(delegates)} keys, at most {MAX_DELEGATES} at a time; run the command again"
        )
    allow = Allow(parse_hex("KEY", key), delegates)
    show_allowed(owner.run_at_server(lambda home: home.command(allow), "`psyche auth create`"))


@owner_command(
    "disallow",
    'psyche run disallow "$(psyche client show-identity --data-dir ben)" \\',
    f"    {OWNED}",
    former="disallow",
)
def disallow_key(*, key: Key, owner: Owner) -> None:
    """Stop a key and its delegates from joining.

    A member stays until its epoch ends, and is not in the next one. This works in open runs too, and for keys that
    the run's file allows. The run's join authority may do this too.
    """
    from psyche.wire.access import Disallow

    disallow = Disallow(parse_hex("KEY", key))
    show_allowed(owner.run_at_server(lambda home: home.command(disallow), "`psyche auth delete`"))


def show_allowed(status: "RunStatus") -> None:
    """Print who may join after a command on the allow list."""
    from psyche.telemetry.text import format_number

    everybody = "everybody who was not disallowed may join; " if status.is_open else ""
    typer.echo(f"run {status.run_id!r}: {everybody}{format_number(status.allowed, 'key')} on the allow list")


@owner_command("allowed", f"psyche run allowed {OWNED}", former="allowed")
def allowed(*, owner: Owner) -> None:
    """List who may join the run.

    First the allowed keys, each with its delegates, then the keys that were disallowed. The run's join authority may
    ask too.
    """
    found = owner.run_at_server(lambda home: home.get_allowed(), "`psyche auth read`")
    typer.echo(f"join authority {found.join_authority.hex()}")
    typer.echo("open: everybody may join" if found.is_open else "only these keys may join:")
    for grantee, delegates in found.authorizations:
        typer.echo(grantee.hex() + "".join(f"\n  delegate {key.hex()}" for key in delegates))
    for key in found.disallowed:
        typer.echo(f"disallowed {key.hex()}")


@owner_command(
    "collect",
    f"psyche run collect --all {OWNED}",
    'psyche run collect "$(psyche client show-identity --data-dir ada)" \\',
    f"    {OWNED}",
    former="collect",
)
def collect(
    *,
    key: Annotated[
        str, typer.Argument(help="Public key whose earnings to collect; 64 hex digits.", show_default=False)
    ] = "",
    everybody: Annotated[bool, typer.Option("--all", help="Collect what everybody has earned.")] = False,
    owner: Owner,
) -> None:
    """Take earnings out of the record to pay them.

    Prints one line for each key: the key and the amount that it has earned. What is printed is no longer on record:
    it is up to you to pay it.
    """
    from psyche.errors import ConfigError

    if bool(key) == everybody:
        raise ConfigError("name a KEY, or --all")
    signer = parse_hex("KEY", key) if key else None
    claims = owner.run_at_server(lambda home: home.collect(signer), "`psyche rewards claim`")
    for earner, amount in claims:
        typer.echo(f"{earner.hex()} {amount}")
    if not claims:
        say("all earnings are collected already")
