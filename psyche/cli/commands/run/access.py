"""`psyche run allow`, `disallow`, `allowed` and `collect`: who may join, and what they have earned (M11, M12)."""

from functools import partial
from string import hexdigits
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.commands.run.group import group
from psyche.cli.helpers.common import say
from psyche.cli.helpers.target import OWNED, Access, command
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection

    from psyche.backends.port import AccessAdministration
    from psyche.wire.backend import AllowedKeys, RunStatus

_command = partial(command, group)
MIN_DIGITS: Final = 8
ON_A_CHAIN: Final = (
    "`psyche auth create --authorizer WALLET`, with the address that its owner tells you: a chain has no list of those "
    "who wait"
)
Key = Annotated[
    str,
    typer.Argument(
        help="Public key, 64 hex digits: `psyche client show-identity` prints it. Of one that waits, or that is to be "
        f"disallowed, the first {MIN_DIGITS} are enough.",
        show_default=False,
    ),
]


@_command(
    "allow",
    f"psyche run allow --waiting {OWNED}",
    'psyche run allow "$(psyche client show-identity --data-dir ada)" \\',
    f"    {OWNED}",
    'psyche run allow "$(psyche client show-identity --data-dir ada)" \\',
    '    --delegate "$(psyche client show-identity --data-dir ben)" \\',
    f"    {OWNED}",
)
def allow_key(
    *,
    key: Key = "",
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Show which clients ask to join and are not allowed.")
    ] = False,
    delegate: Annotated[
        list[str] | None, typer.Option(help="Public key of a machine that may join in KEY's name; may be repeated.")
    ] = None,
    access: Access,
) -> None:
    """Let a key join the run, or show which ones wait.

    The server remembers it, also after a restart. A client that waits for permission joins by itself. The run's join
    authority may do this too.
    """
    from psyche.wire.access import MAX_DELEGATES, Allow
    from psyche.wire.crypto import parse_hex

    if not key:
        if not waiting:
            raise ConfigError("name a KEY, or --waiting to see who asks to join")
        show_waiting(access)
        return
    delegates = tuple(parse_hex("--delegate", one) for one in delegate or ())
    if len(delegates) > MAX_DELEGATES:
        raise ConfigError(
            f"--delegate: {len(delegates)} keys, at most {MAX_DELEGATES} at a time; run the command again"
        )

    async def let_in(backend: "AccessAdministration") -> None:
        lists, known = await find_known(backend)
        grantee = complete_key(key, dict(lists.waiting))
        show_allowed(await backend.command(Allow(grantee, delegates)))
        if grantee not in known:
            typer.echo("nobody has asked to join with this key yet; if nobody comes, check its digits")

    access.run_with_list(let_in, ON_A_CHAIN)


@_command("disallow", 'psyche run disallow "$(psyche client show-identity --data-dir ben)" \\', f"    {OWNED}")
def disallow_key(*, key: Key, access: Access) -> None:
    """Stop a key and its delegates from joining.

    A member stays until its epoch ends, and is not in the next one. This works in open runs too, and for keys that
    the run's file allows. The run's join authority may do this too.
    """
    from psyche.wire.access import Disallow

    async def keep_out(backend: "AccessAdministration") -> None:
        _, known = await find_known(backend)
        denied = complete_key(key, known)
        show_allowed(await backend.command(Disallow(denied)))
        if denied not in known:
            typer.echo("nobody with this key is here, was allowed or has asked to join: check its digits")

    access.run_with_list(keep_out, "`psyche auth delete`")


async def find_known(backend: "AccessAdministration") -> "tuple[AllowedKeys, set[bytes]]":
    """Ask a server for its lists, and for all keys that it has heard of."""
    lists, members = await backend.get_allowed(), await backend.get_members()
    named = {key for grantee, delegates in lists.authorizations for key in (grantee, *delegates)}
    here = (one.key for one in members.members)
    return lists, {*named, *lists.disallowed, *dict(lists.waiting), *here}


def complete_key(text: str, known: "Collection[bytes]") -> bytes:
    """Parse a public key, of which the first digits are enough if one known key begins so."""
    from psyche.telemetry.text import format_number
    from psyche.wire.access import KEY_BYTES
    from psyche.wire.crypto import parse_hex

    digits = text.strip().lower()
    if len(digits) >= 2 * KEY_BYTES or set(digits) - set(hexdigits):
        return parse_hex("KEY", text)
    found = [key for key in known if key.hex().startswith(digits)]
    if len(found) != 1 or len(digits) < MIN_DIGITS:
        begin = format_number(len(found), "known key begins", "known keys begin")
        raise ConfigError(f"KEY {digits}: {begin} so; write at least {MIN_DIGITS} of its digits, or all of them")
    return found[0]


def show_waiting(access: Access) -> None:
    lists = access.run_with_list(lambda backend: backend.get_allowed(), ON_A_CHAIN)
    list_waiting(lists)
    if not lists.waiting:
        typer.echo("nobody waits to be allowed")
        return
    first = lists.waiting[0][0].hex()[:MIN_DIGITS]
    typer.echo(f"the first one is let in by {access.target.write_command(f'run allow {first}')}")


def list_waiting(lists: "AllowedKeys") -> None:
    from psyche.telemetry.text import format_seconds

    for key, age_s in lists.waiting:
        was = ", was disallowed" if key in lists.disallowed else ""
        typer.echo(f"waits {key.hex()}, asked {format_seconds(age_s)} ago{was}")


def show_allowed(status: "RunStatus") -> None:
    from psyche.telemetry.text import format_number

    everybody = "everybody who was not disallowed may join; " if status.is_open else ""
    typer.echo(f"run {status.run_id!r}: {everybody}{format_number(status.allowed or 0, 'key')} on the allow list")


@_command("allowed", f"psyche run allowed {OWNED}")
def allowed(*, access: Access) -> None:
    """List who may join the run.

    First the allowed keys, each with its delegates, then the keys that were disallowed, then those that ask to join and
    are not allowed. The run's join authority may ask too.
    """
    found = access.run_with_list(lambda backend: backend.get_allowed(), "`psyche auth read`")
    typer.echo(f"join authority {found.join_authority.hex()}")
    typer.echo("open: everybody may join" if found.is_open else "only these keys may join:")
    for grantee, delegates in found.authorizations:
        typer.echo(grantee.hex() + "".join(f"\n  delegate {key.hex()}" for key in delegates))
    for key in found.disallowed:
        typer.echo(f"disallowed {key.hex()}")
    list_waiting(found)


@_command(
    "collect",
    f"psyche run collect --all {OWNED}",
    'psyche run collect "$(psyche client show-identity --data-dir ada)" \\',
    f"    {OWNED}",
)
def collect(
    *,
    key: Annotated[
        str, typer.Argument(help="Public key whose earnings to collect; 64 hex digits.", show_default=False)
    ] = "",
    everybody: Annotated[bool, typer.Option("--all", help="Collect what everybody has earned.")] = False,
    access: Access,
) -> None:
    """Take earnings out of the record to pay them.

    Prints one line for each key: the key and the amount that it has earned. What is printed is no longer on record:
    it is up to you to pay it.
    """
    from psyche.wire.crypto import parse_hex

    if bool(key) == everybody:
        raise ConfigError("name a KEY, or --all")
    signer = parse_hex("KEY", key) if key else None
    claims = access.run_with_list(lambda backend: backend.collect(signer), "`psyche rewards claim`")
    for earner, amount in claims:
        typer.echo(f"{earner.hex()} {amount}")
    if not claims:
        say("all earnings are collected already")
