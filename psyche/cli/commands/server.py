"""`psyche server`: the coordinator of a run."""

import contextlib
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli.helpers.common import make_group, run_async, say
from psyche.cli.helpers.options import LOGGING, Logging
from psyche.cli.helpers.remote import MANIFEST, SOURCES, Remote
from psyche.cli.helpers.target import command
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from psyche.config.load import LoadedData, LoadedRun
    from psyche.server.server import BoundServer, ServerSettings
    from psyche.telemetry.console import Console
    from psyche.telemetry.events import EventLog
    from psyche.wire.access import Access
    from psyche.wire.crypto import Identity

group = make_group(
    "Run the coordinator of a training run. `psyche run` shows the run and commands it.",
    "psyche server validate-config --state my-run",
    "psyche server run --state my-run --server-port 19400 --state-dir server",
)

State = Annotated[Path, typer.Option(help="run.toml or state.toml, or its folder.")]
DataConfig = Annotated[
    Path | None, typer.Option(help="data.toml of the data server. Default: the one beside the run's file.")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        "--save-state-dir",
        envvar="STATE_DIR",
        help="Journal and key of the server; a run found there continues. Default: psyche-data/server-RUN_ID.",
    ),
]


@command(
    group,
    "run",
    "psyche server run --state my-run --server-port 19400 --state-dir server",
    "psyche server run --state my-run/run.toml --data-config my-run/data.toml \\",
    "    --state-dir other-server --logs json",
    shared=SOURCES | MANIFEST | LOGGING,
)
def run(
    *,
    state: State,
    server_port: Annotated[
        int, typer.Option("--server-port", "-s", min=0, max=65535, help="Port for clients; 0: any free one.")
    ] = 0,
    bind_ip: Annotated[str, typer.Option(help="Address to listen on; 127.0.0.1 keeps strangers out.")] = "0.0.0.0",  # noqa: S104
    data_config: DataConfig = None,
    state_dir: StateDir = None,
    identity_secret_key_path: Annotated[
        Path | None,
        typer.Option("--identity-secret-key-path", "-i", help="The server's key. Default: made in the state folder."),
    ] = None,
    owner: Annotated[
        list[str] | None, typer.Option(help="Public key that may command the run; default: the server's own.")
    ] = None,
    withdraw_on_disconnect: Annotated[
        bool, typer.Option(help="A client that stays away for 15 s leaves the epoch.")
    ] = True,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Public key that may join, besides those of [access] in the run's file; may be repeated."),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Give up the journal's records behind a damaged place; says how many, and keeps the damaged files.",
        ),
    ] = False,
    tui: Annotated[
        bool, typer.Option("--tui", help="A screen, as --logs tui; there the run is paused and resumed too.")
    ] = False,
    remote: Remote,
    logging: Logging,
) -> None:
    """Keep the record of a run until Ctrl-C.

    Every change is in a journal before anybody hears of it: killed and started again with the same folder, the server
    goes on where it was, and no epoch is lost. Only keys that the owner allows may join: see `psyche run allow`.
    Exits with 0 after Ctrl-C.
    """
    from psyche.cli.helpers.serving import leaving_nothing_unless_started
    from psyche.server.server import ServerSettings
    from psyche.telemetry import types
    from psyche.telemetry.console import Console
    from psyche.telemetry.logging import configure_logging

    console, logging = Console(), replace(logging, logs="tui") if tui else logging
    logging.wants_screen()
    configure_logging(logging.lines, logging.log, console=console, write_log=logging.write_log)
    loaded, data = load_runnable(state, data_config, remote.data_manifest)
    folder = state_dir or Path("psyche-data") / f"server-{loaded.run_id}"
    with leaving_nothing_unless_started(folder, logging.find_folder(folder, "server")) as on_start:
        events = logging.open_events(folder, "server")
        identity, owners = load_keys(folder, identity_secret_key_path, owner or [])
        settings = ServerSettings(
            run=loaded, identity=identity, state_dir=folder, host=bind_ip, port=server_port, owners=owners,
            access=add_allowed(loaded.access, allow or []), withdraw_on_disconnect=withdraw_on_disconnect,
            accept_loss=accept_loss, model_folder=loaded.model_folder, storage=remote.get_options(),
            data_files=data, sink=events, data_manifest=loaded.data_manifest,
            read_history=lambda: chain(events.read_kind(types.RoundOver), events.read_kind(types.ChallengeEnded)),
        )  # fmt: skip
        key = ["-i", str(identity_secret_key_path)] if identity_secret_key_path else ["--state-dir", str(folder)]
        serve(settings, events, console, logging, on_start, key)


def serve(
    settings: "ServerSettings", events: "EventLog", console: "Console", logging: Logging,
    on_start: "Callable[[], None]", key: list[str],
) -> None:  # fmt: skip
    from psyche.cli.helpers.serving import ServerView, serve_until_signal
    from psyche.telemetry.live import open_live_view
    from psyche.wire.line.descriptors import raise_limit

    async def main() -> None:
        if logging.lines != "console":
            async with open_live_view(events, console, logging.lines):
                await serve_until_signal(settings, None, on_start)
            return
        view = ServerView(console, events)
        async with open_live_view(events, console, logging.lines, view):
            await serve_until_signal(view.attach(settings), console, on_start, open_screen)

    def open_screen(bound: "BoundServer") -> "contextlib.AbstractAsyncContextManager[None]":
        host = bound.host if bound.host != "0.0.0.0" else "127.0.0.1"  # noqa: S104
        return logging.open_screen(console, str(events.path), "--server-addr", f"{host}:{bound.port}", *key)

    raise_limit()
    with contextlib.closing(events):
        run_async(main)


@command(
    group,
    "validate-config",
    "psyche server validate-config --state my-run",
    "psyche server validate-config --state my-run/run.toml \\",
    "    --data-config my-run/data.toml",
    shared=SOURCES | MANIFEST,
)
def validate_config(*, state: State, data_config: DataConfig = None, remote: Remote) -> None:
    """Check a run's configuration, model and data.

    Says what is wrong, by file, line and key, and what would be right. Exit code 1 where something is wrong; warnings,
    and what cannot run yet, do not count as wrong. All weights are read, of tokens at most 256 MiB.
    """
    from psyche.config.validate import print_report
    from psyche.server.preflight import validate_run

    report = validate_run(state, data_config, remote.data_manifest, reads_weights=True, storage=remote.get_options())
    raise typer.Exit(print_report(report, typer.echo))


def load_runnable(
    state: Path, data_config: Path | None, data_manifest: str | None = None
) -> "tuple[LoadedRun, LoadedData | None]":  # fmt: skip
    """Load a run that can start, and its data.toml; print warnings about unusual settings."""
    from psyche.config.problems import ConfigProblems
    from psyche.server.preflight import validate_run

    report = validate_run(state, data_config, data_manifest)
    if report.problems or report.run is None:
        raise ConfigProblems(report.problems)
    if found := (*report.unsupported, *report.missing):
        raise ConfigError("\n".join(f"{report.run.path}: {text}" for text in found))
    for warning in report.warnings:
        say(f"warning: {warning}")
    return report.run, report.data


def load_keys(folder: Path, path: Path | None, owners: list[str]) -> "tuple[Identity, frozenset[bytes]]":
    from psyche.backends.tcp.target import load_server_identity
    from psyche.wire.crypto import parse_hex

    return load_server_identity(folder, path, create=True), frozenset(parse_hex("--owner", key) for key in owners)


def add_allowed(access: "Access", keys: list[str]) -> "Access":
    from psyche.wire.access import MAX_KEYS, NOBODY
    from psyche.wire.crypto import parse_hex

    added = access.add(tuple(parse_hex("--allow", key) for key in keys))
    if keys and added.count_keys() > MAX_KEYS:
        raise ConfigError(f"--allow: with those of the run's file {added.count_keys():,} keys, at most {MAX_KEYS:,}")
    if any(one.grantee == NOBODY for one in added.authorizations):
        raise ConfigError(
            "--allow: the key of zeros belongs to nobody; to let everybody join, write open = true in run.toml"
        )
    return added
