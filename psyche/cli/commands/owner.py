"""The owner's commands to a running server: pause, rates, allow list, earnings (`psyche server`; M7, M11, M12)."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from psyche.cli.commands.server import (
    SERVER_KEY_NAME,
    OwnerAddr,
    Timeout,
    group,
    load_server_identity,
    say,
    show_status,
)
from psyche.cli.helpers.common import format_examples, parse_hex, run_async

if TYPE_CHECKING:
    from psyche.backends.tcp.dial import ServerAddress
    from psyche.wire.backend import RunStatus
    from psyche.wire.crypto import Identity

_Found = TypeVar("_Found")
OwnerStateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", "--save-state-dir", envvar="STATE_DIR", help="The server's state folder, which holds its key."
    ),
]
OwnerKey = Annotated[
    Path | None,
    typer.Option(
        "--identity-secret-key-path",
        "-i",
        envvar="IDENTITY_SECRET_KEY_PATH",
        help="File with an owner's secret key, if it is not the server's.",
    ),
]
ServerKey = Annotated[
    str | None,
    typer.Option(
        envvar="SERVER_KEY",
        help="The server's public key, 64 hex digits, if --state-dir does not hold it; any other is refused.",
    ),
]
MAX_RATE = (1 << 63) - 1
ARGUMENTS = frozenset({"key"})  # parameters that are not options


def open_owner(
    server_addr: str, server_key: str | None, identity_secret_key_path: Path | None, state_dir: Path | None
) -> "tuple[ServerAddress, Identity]":
    """Resolve the options to the server's address, its key if known, and the owner's identity (K6).

    Raises:
        ConfigError: no key is named, its file is missing, or two options name different servers.
        BackendError: the address is malformed.
    """
    from psyche.backends.tcp.dial import parse_server

    identity = load_server_identity(state_dir, identity_secret_key_path, create=False)
    key = _find_server_key(server_key, state_dir)
    if key is None:
        say(
            "warning: the server's identity cannot be checked: name the server's key with "
            "--server-key HEX (`psyche server run` prints it)"
        )
    return parse_server(server_addr, key=key), identity


def _find_server_key(server_key: str | None, state_dir: Path | None) -> bytes | None:
    """Return the server's public key from --server-key or the state folder; None if neither has it."""
    from psyche.errors import ConfigError
    from psyche.wire.key_file import read_key_file

    named = parse_hex("--server-key", server_key) if server_key else None
    file = state_dir / SERVER_KEY_NAME if state_dir else None
    if file is None or not file.exists():
        return named
    found = read_key_file(file).public
    if named not in (None, found):
        raise ConfigError(f"--server-key {server_key} is not the key of {file}: name one of the two servers")
    return found


@group.command(
    "status",
    epilog=format_examples(
        "psyche server status --server-addr 127.0.0.1:19400",
        "psyche server status --server-addr 127.0.0.1:19400 --state-dir psyche-data/server-demo   # and its members",
        "psyche server status --server-addr 127.0.0.1:19400 --json",
    ),
)
def status(
    *,
    server_addr: OwnerAddr,
    server_key: ServerKey = None,
    identity_secret_key_path: OwnerKey = None,
    state_dir: OwnerStateDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    timeout: Timeout = 10.0,
) -> None:
    """Show the state of a run. Anybody may ask.

    With the owner's key also its members: what each says that it does, waits for and achieves, and its last error.
    Clients of the run may see that too, without the errors. Exit code 1 where the server does not answer.
    """
    from psyche.backends.tcp.dial import parse_server
    from psyche.backends.tcp.owner import ask_members, get_run_status
    from psyche.wire.backend import NotOwner
    from psyche.wire.key_file import make_identity

    members = None
    if state_dir is None and identity_secret_key_path is None:
        key = parse_hex("--server-key", server_key) if server_key else None
        address, identity = parse_server(server_addr, key=key), make_identity()
    else:
        address, identity = open_owner(server_addr, server_key, identity_secret_key_path, state_dir)
    found = run_async(partial(get_run_status, address, identity, timeout, say=say))
    if state_dir is not None or identity_secret_key_path is not None:
        try:
            members = run_async(partial(ask_members, address, identity, timeout, say=say))
        except NotOwner as error:
            say(f"warning: {error}")
    show_status(found, members, as_json=as_json)


@dataclass(frozen=True)
class Owner:
    """The owner's options: which server to command, and with which key."""

    server_addr: str
    server_key: str | None
    identity_secret_key_path: Path | None
    state_dir: Path | None
    timeout_s: float

    def command(self, function: Callable[..., Awaitable[_Found]], **arguments: object) -> _Found:
        """Run a command of `psyche.backends.tcp.owner` and return the server's answer.

        Raises:
            ConfigError, BackendError: see `open_owner`.
        """
        opened = open_owner(self.server_addr, self.server_key, self.identity_secret_key_path, self.state_dir)
        return run_async(partial(function, *opened, self.timeout_s, say=say, **arguments))


def _build_parameters() -> list[inspect.Parameter]:
    """Build the options that all owner's commands share, the server's address first."""
    options: list[tuple[str, object, object]] = [
        ("server_addr", OwnerAddr, inspect.Parameter.empty),
        ("server_key", ServerKey, None),
        ("identity_secret_key_path", OwnerKey, None),
        ("state_dir", OwnerStateDir, None),
        ("timeout", Timeout, 10.0),
    ]
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in options
    ]


def owner_command(name: str, *examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function into a command: five options fill its argument `owner`, the others are its own."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        address, *others = _build_parameters()
        own = [p for p in inspect.signature(function).parameters.values() if p.name != "owner"]
        parameters = [*(p for p in own if p.name in ARGUMENTS), address, *(p for p in own if p.name not in ARGUMENTS)]

        def run(  # typer reads the signature below
            *, server_addr: str, server_key: str | None, identity_secret_key_path: Path | None, state_dir: Path | None,
            timeout: float, **arguments: object,
        ) -> None:  # fmt: skip
            owner = Owner(server_addr, server_key, identity_secret_key_path, state_dir, timeout)
            function(owner=owner, **arguments)

        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature([*parameters, *others])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in [*parameters, *others]}
        group.command(name, epilog=format_examples(*examples))(run)
        return function

    return register


@owner_command("pause", "psyche server pause --server-addr 127.0.0.1:39400 --state-dir psyche-data/server-demo")
def pause(
    *,
    owner: Owner,
) -> None:
    """Pause the run.

    At once before its first round, else when the running epoch has come to a clean early end. Needs the server's key
    (--state-dir) or that of an owner (--identity-secret-key-path).
    """
    from psyche.backends.tcp.owner import pause_run

    show_status(owner.command(pause_run))


@owner_command("resume", "psyche server resume --server-addr 127.0.0.1:39400 --state-dir psyche-data/server-demo")
def resume(
    *,
    owner: Owner,
) -> None:
    """Resume a paused run.

    From the weights it was paused with; its clients have stayed and join again by themselves. Needs the same key as
    `pause`.
    """
    from psyche.backends.tcp.owner import resume_run

    show_status(owner.command(resume_run))


@owner_command(
    "set-future-epoch-rates",
    "psyche server set-future-epoch-rates --server-addr 127.0.0.1:39400 --state-dir psyche-data/server-demo "
    "--earning-rate-total-shared 1000",
)
def set_future_epoch_rates(
    *,
    owner: Owner,
    earning_rate_total_shared: Annotated[
        int | None, typer.Option(min=0, max=MAX_RATE, help="What an epoch pays, shared among all its credits.")
    ] = None,
    slashing_rate_per_client: Annotated[
        int | None, typer.Option(min=0, max=MAX_RATE, help="What each ejected member loses.")
    ] = None,
) -> None:
    """Set what epochs pay and slash.

    For epochs that form from now on; the running one keeps its rates. A rate that is not named stays as it is. Needs
    the same key as `pause`.
    """
    from psyche.backends.tcp.owner import set_rates
    from psyche.errors import ConfigError

    if earning_rate_total_shared is None and slashing_rate_per_client is None:
        raise ConfigError("name a rate: --earning-rate-total-shared, --slashing-rate-per-client, or both")
    rates = {"earning": earning_rate_total_shared, "slashing": slashing_rate_per_client}
    show_status(owner.command(set_rates, **rates))


Key = Annotated[str, typer.Argument(help="Public key, 64 hex digits: `psyche client show-identity` prints it.")]


@owner_command(
    "allow",
    "psyche server allow KEY --server-addr 127.0.0.1:39400 --state-dir psyche-data/server-demo",
    "psyche server allow KEY --delegate KEY --delegate KEY --server-addr 127.0.0.1:39400 --state-dir server",
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

    At once, and for good: the server keeps it in its journal. Who waits for permission comes in by itself. Needs the
    same key as `pause`, or that of the run's join authority.
    """
    from psyche.backends.tcp import owner as commands
    from psyche.errors import ConfigError
    from psyche.wire.access import MAX_DELEGATES

    delegates = tuple(parse_hex("--delegate", one) for one in delegate or ())
    if len(delegates) > MAX_DELEGATES:
        raise ConfigError(
            f"--delegate: {len(delegates)} keys, at most {MAX_DELEGATES} at a time; run the command again"
        )
    arguments = {"grantee": parse_hex("KEY", key), "delegates": delegates}
    show_allowed(owner.command(commands.allow_key, **arguments))


@owner_command("disallow", "psyche server disallow KEY --server-addr 127.0.0.1:39400 --state-dir server")
def disallow_key(
    *,
    key: Key,
    owner: Owner,
) -> None:
    """Bar a key from joining the run.

    Nor its delegates. A member stays until its epoch ends and is not in the next one, also where it has joined that
    already. Holds for keys of the run's file as well, and in an open run. Needs the same key as `allow`.
    """
    from psyche.backends.tcp import owner as commands

    show_allowed(owner.command(commands.disallow_key, key=parse_hex("KEY", key)))


def show_allowed(status: "RunStatus") -> None:
    """Print who may join after a command on the allow list."""
    from psyche.telemetry.text import format_number

    everybody = "everybody who was not disallowed may join; " if status.is_open else ""
    typer.echo(f"run {status.run_id!r}: {everybody}{format_number(status.allowed, 'key')} on the allow list")


@owner_command("allowed", "psyche server allowed --server-addr 127.0.0.1:39400 --state-dir psyche-data/server-demo")
def allowed(
    *,
    owner: Owner,
) -> None:
    """List who may join the run.

    Each grantee with its delegates, then the keys that were disallowed. Needs the same key as `allow`.
    """
    from psyche.backends.tcp.owner import get_allowed

    found = owner.command(get_allowed)
    typer.echo(f"join authority {found.join_authority.hex()}")
    typer.echo("open: everybody may join" if found.is_open else "only these keys may join:")
    for grantee, delegates in found.authorizations:
        typer.echo(grantee.hex() + "".join(f"\n  delegate {key.hex()}" for key in delegates))
    for key in found.disallowed:
        typer.echo(f"disallowed {key.hex()}")


@owner_command(
    "collect",
    "psyche server collect --all --server-addr 127.0.0.1:39400 --state-dir psyche-data/server-demo",
    "psyche server collect KEY --server-addr 127.0.0.1:39400 --state-dir psyche-data/server-demo",
)
def collect(
    *,
    key: Annotated[
        str, typer.Argument(help="Public key whose earnings to collect; 64 hex digits.", show_default=False)
    ] = "",
    everybody: Annotated[bool, typer.Option("--all", help="Collect what everybody has earned.")] = False,
    owner: Owner,
) -> None:
    """Take earnings out of the record, to pay them.

    Prints a line for each key: the key, a blank, and what it had earned. What is printed is gone from the record, and
    is yours to pay. Needs the same key as `pause`.
    """
    from psyche.backends.tcp.owner import collect_earnings
    from psyche.errors import ConfigError

    if bool(key) == everybody:
        raise ConfigError("name a KEY, or --all")
    signer = parse_hex("KEY", key) if key else None
    claims = owner.command(collect_earnings, signer=signer)
    for earner, amount in claims:
        typer.echo(f"{earner.hex()} {amount}")
    if not claims:
        say("all earnings are collected already")
