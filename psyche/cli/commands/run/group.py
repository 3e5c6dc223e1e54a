"""The group `psyche run`, and the options that its commands share."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from psyche.cli.commands.server import group as server_group
from psyche.cli.helpers import options as opt
from psyche.cli.helpers.common import format_examples, make_group
from psyche.cli.helpers.owners import Owner

ADDRESS = "--server-addr 127.0.0.1:19400"  # in examples
OWNED = f"{ADDRESS} --state-dir server"
group = make_group(
    "Own a run: watch, pause, change and extend it.\n\n"
    "The commands talk to the run's server (--server-addr). Anybody may ask for `info`. The other commands need an "
    "owner's key: that of the server, in its state folder (--state-dir), or one that `psyche server run --owner` "
    "names (--identity-secret-key-path).",
    f"psyche run info {ADDRESS}",
    f"psyche run pause {OWNED}",
    f"psyche run resume {OWNED}",
)
ServerAddr = Annotated[
    str, typer.Option(envvar="SERVER_ADDR", callback=opt.check_server_addr, help="The run's server, host:port.")
]
ServerKey = Annotated[
    str | None,
    typer.Option(
        envvar="SERVER_KEY",
        help="The server's public key, 64 hex digits, unless --state-dir holds it; any other server is refused.",
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
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", "--save-state-dir", envvar="STATE_DIR", help="The server's state folder, which holds its key."
    ),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to try a server that does not answer.")]
ARGUMENTS = frozenset({"key"})  # parameters that are not options


@group.callback()
def _root() -> None:
    pass


def _build_parameters() -> list[inspect.Parameter]:
    """Build the options that name the home and the key, the server's address first."""
    options: list[tuple[str, object, object]] = [
        ("server_addr", ServerAddr, inspect.Parameter.empty),
        ("server_key", ServerKey, None),
        ("identity_secret_key_path", OwnerKey, None),
        ("state_dir", StateDir, None),
        ("timeout", Timeout, 10.0),
    ]
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in options
    ]


def owner_command(name: str, *examples: str, former: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function into a command of `psyche run`: five options fill its argument `owner`, the others are its own.

    `former` is its name in `psyche server`, where it stays as a hidden alias.
    """

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
        if former:
            server_group.command(former, hidden=True, epilog=format_examples(*examples))(run)
        return function

    return register
