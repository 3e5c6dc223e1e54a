"""`psyche server`: the coordinator of a run."""

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli import options as opt
from psyche.cli.common import format_examples, make_group, parse_hex

if TYPE_CHECKING:
    from collections.abc import Callable

    from psyche.config.load import LoadedData, LoadedRun
    from psyche.server.server import ServerSettings
    from psyche.telemetry.console import Console
    from psyche.telemetry.events import EventLog
    from psyche.wire.backend import RunStatus
    from psyche.wire.crypto import Identity

group = make_group(
    "Run the coordinator of a training run, and command it.",
    "psyche server validate-config --state config/demo",
    "psyche server run --state config/demo --server-port 39400",
    "psyche server pause --server-addr 127.0.0.1:39400 --state-dir psyche-data/server-demo",
)

State = Annotated[Path, typer.Option(help="run.toml or state.toml, or the folder it lies in.")]
DataConfig = Annotated[
    Path | None, typer.Option(help="data.toml of the data server. Default: the one beside the run's file.")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        "--save-state-dir",
        envvar="STATE_DIR",
        help="Journal and key of the server; a run found there goes on. Default: psyche-data/server-RUN_ID.",
    ),
]
OwnerStateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", "--save-state-dir", envvar="STATE_DIR", help="The server's state folder, in which its key lies."
    ),
]
OwnerKey = Annotated[
    Path | None,
    typer.Option(
        "--identity-secret-key-path",
        "-i",
        envvar="IDENTITY_SECRET_KEY_PATH",
        help="File with the secret key of an owner, where it is not the server's own.",
    ),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to try for, where the server does not answer.")]
MAX_RATE = (1 << 63) - 1
OwnerAddr = Annotated[str, typer.Option(envvar="SERVER_ADDR", help="The coordinator server, host:port.")]


@group.callback()
def _root() -> None:
    pass


@group.command(
    "run",
    epilog=format_examples(
        "psyche server run --state config/demo --server-port 39400",
        "psyche server run --state run.toml --data-config data.toml --state-dir state --logs json",
    ),
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
    logs: opt.LogsOption = opt.Logs.console,
    log: opt.LogLevel = "info",
    write_log: opt.WriteLog = None,
    events_dir: opt.EventsDir = None,
    keep_event_files: opt.KeepEventFiles = 5,
) -> None:
    """Keep the record of a run until Ctrl-C.

    Every change is in a journal before anybody hears of it: killed and started again with the same folder, the server
    goes on where it was, and no epoch is lost. Exits with 0 after Ctrl-C.
    """
    from psyche.cli.serving import leaving_nothing_unless_started
    from psyche.server.server import ServerSettings
    from psyche.telemetry.console import Console
    from psyche.telemetry.events import EventLog
    from psyche.telemetry.logging import configure_logging

    console = Console()
    configure_logging(logs.value, log, console=console, write_log=write_log)
    loaded, data = load_runnable(state, data_config)
    owners = frozenset(parse_hex("--owner", key) for key in owner or ())
    folder = state_dir or Path("psyche-data") / f"server-{loaded.run_id}"
    events_folder = events_dir / "server" if events_dir else folder
    with leaving_nothing_unless_started(folder, events_folder) as on_start:
        events = EventLog(events_folder / "events.jsonl", node="server", keep=keep_event_files)
        settings = ServerSettings(
            run=loaded,
            identity=load_server_identity(folder, identity_secret_key_path, create=True),
            state_dir=folder,
            host=bind_ip,
            port=server_port,
            owners=owners,
            withdraw_on_disconnect=withdraw_on_disconnect,
            data_files=data,
            sink=events,
        )
        serve(settings, events, console, logs, on_start)


def serve(
    settings: "ServerSettings", events: "EventLog", console: "Console", logs: opt.Logs, on_start: "Callable[[], None]"
) -> None:
    """Serve until a signal; `on_start` is called once the server can be reached."""
    from psyche.cli.common import run_async
    from psyche.cli.serving import ServerLine, serve_until_signal
    from psyche.telemetry.live import open_live_view

    async def main() -> None:
        if logs is not opt.Logs.console:
            async with open_live_view(events, console, logs.value):
                await serve_until_signal(settings, None, on_start)
            return
        line = ServerLine(console)
        async with open_live_view(events, console, logs.value, line):
            await serve_until_signal(line.attach(settings), console, on_start)

    with contextlib.closing(events):
        run_async(main)


@group.command(
    "validate-config",
    epilog=format_examples(
        "psyche server validate-config --state config/demo",
        "psyche server validate-config --state run.toml --data-config data.toml",
    ),
)
def validate_config(*, state: State, data_config: DataConfig = None) -> None:
    """Check the configuration of a run.

    Says what is wrong, by file, line and key, and what would be right. Exit code 1 where something is wrong; warnings,
    and what cannot run yet, do not count as wrong.
    """
    from psyche.config.validate import print_report
    from psyche.config.validate import validate_config as validate

    raise typer.Exit(print_report(validate(state, data_config), typer.echo))


def _command(
    server_addr: str,
    identity_secret_key_path: Path | None,
    state_dir: Path | None,
    timeout_s: float,
    name: str,
    **arguments: int | None,
) -> "RunStatus":
    """Send an owner's command with the key that the options name."""
    from psyche.cli.common import run_async
    from psyche.server import owner
    from psyche.server.dial import parse_server

    identity = load_server_identity(state_dir, identity_secret_key_path, create=False)
    command = {"pause": owner.pause_run, "resume": owner.resume_run, "rates": owner.set_rates}[name]
    return run_async(partial(command, parse_server(server_addr), identity, timeout_s, say=say, **arguments))


def say(text: str) -> None:
    """What a command does while it takes long, on stderr."""
    typer.echo(text, err=True)


@group.command(
    "pause",
    epilog=format_examples("psyche server pause --server-addr 127.0.0.1:39400 --state-dir psyche-data/server-demo"),
)
def pause(
    *,
    server_addr: OwnerAddr,
    identity_secret_key_path: OwnerKey = None,
    state_dir: OwnerStateDir = None,
    timeout: Timeout = 10.0,
) -> None:
    """Pause the run.

    At once before its first round, else when the running epoch has come to a clean early end. Needs the server's key
    (--state-dir) or that of an owner (--identity-secret-key-path).
    """
    show_status(_command(server_addr, identity_secret_key_path, state_dir, timeout, "pause"))


@group.command(
    "resume",
    epilog=format_examples("psyche server resume --server-addr 127.0.0.1:39400 --state-dir psyche-data/server-demo"),
)
def resume(
    *,
    server_addr: OwnerAddr,
    identity_secret_key_path: OwnerKey = None,
    state_dir: OwnerStateDir = None,
    timeout: Timeout = 10.0,
) -> None:
    """Let a paused run go on.

    From the weights it was paused with; its clients have stayed and join again by themselves. Needs the same key as
    `pause`.
    """
    show_status(_command(server_addr, identity_secret_key_path, state_dir, timeout, "resume"))


@group.command(
    "set-future-epoch-rates",
    epilog=format_examples(
        "psyche server set-future-epoch-rates --server-addr 127.0.0.1:39400 --state-dir psyche-data/server-demo "
        "--earning-rate-total-shared 1000",
    ),
)
def set_future_epoch_rates(
    *,
    server_addr: OwnerAddr,
    earning_rate_total_shared: Annotated[
        int | None, typer.Option(min=0, max=MAX_RATE, help="What an epoch pays, shared among all its credits.")
    ] = None,
    slashing_rate_per_client: Annotated[
        int | None, typer.Option(min=0, max=MAX_RATE, help="What each member that is ejected loses.")
    ] = None,
    identity_secret_key_path: OwnerKey = None,
    state_dir: OwnerStateDir = None,
    timeout: Timeout = 10.0,
) -> None:
    """Set what epochs pay and slash.

    For epochs that form from now on; the running one keeps its rates. A rate that is not named stays as it is. Needs
    the same key as `pause`.
    """
    from psyche.errors import ConfigError

    if earning_rate_total_shared is None and slashing_rate_per_client is None:
        raise ConfigError("name a rate: --earning-rate-total-shared, --slashing-rate-per-client, or both")
    rates = {"earning": earning_rate_total_shared, "slashing": slashing_rate_per_client}
    show_status(_command(server_addr, identity_secret_key_path, state_dir, timeout, "rates", **rates))


@group.command(
    "status",
    epilog=format_examples(
        "psyche server status --server-addr 127.0.0.1:39400",
        "psyche server status --server-addr 127.0.0.1:39400 --json",
    ),
)
def status(
    *,
    server_addr: OwnerAddr,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    timeout: Timeout = 10.0,
) -> None:
    """Say how a run is. Anybody may ask.

    Exit code 1 where the server does not answer.
    """
    from psyche.cli.common import run_async
    from psyche.server.dial import parse_server
    from psyche.server.owner import get_run_status

    found = run_async(partial(get_run_status, parse_server(server_addr), make_identity(), timeout, say=say))
    show_status(found, as_json=as_json)


def show_status(status: "RunStatus", *, as_json: bool = False) -> None:
    """Print a run's status for people, or as JSON."""
    import json

    from psyche.cli.serving import format_members, get_phase
    from psyche.core.state import RunState
    from psyche.telemetry.events import get_plain
    from psyche.telemetry.text import format_number, format_seconds

    if as_json:
        fields = {field: get_plain(getattr(status, field)) for field in status.__struct_fields__}
        typer.echo(json.dumps(fields | {"run_state": RunState(status.run_state).name.lower()}, indent=2))
        return
    since = format_seconds(max(0, status.now_unix - status.state_start_unix))
    pausing = ", pauses at the end of this epoch" if status.pending_pause else ""
    round_ = f", round {status.height}" if status.members else ""
    typer.echo(f"run {status.run_id!r}: {get_phase(status)} for {since}{pausing}")
    typer.echo(f"epoch {status.epoch}{round_}, step {status.step} of {status.total_steps}")
    needed = f"; {format_number(status.min_clients, 'is', 'are')} needed to go on" if status.members else ""
    typer.echo(f"{format_members(status)}{needed}; {format_number(status.connections, 'connection')}")
    if status.checkpoint_sources:
        typer.echo(f"checkpoint of step {status.checkpoint_step}: {', '.join(status.checkpoint_sources)}")
    if status.earning_rate or status.slashing_rate:
        typer.echo(
            f"an epoch that forms from now on pays {status.earning_rate:,} for all its credits, and an ejected member "
            f"loses {status.slashing_rate:,}"
        )


def load_runnable(state: Path, data_config: Path | None) -> "tuple[LoadedRun, LoadedData | None]":
    """Load a run that can start, and its data.toml; say what is seldom meant.

    Raises:
        ConfigError: something breaks a rule, is not built yet, or is missing.
    """
    from psyche.config.problems import ConfigProblems
    from psyche.config.validate import validate_config as validate
    from psyche.core.state import DataLocationKind
    from psyche.errors import ConfigError

    report = validate(state, data_config)
    if report.problems or report.run is None:
        raise ConfigProblems(report.problems)
    if report.unsupported:
        raise ConfigError("\n".join(f"{report.run.path}: {problem}" for problem in report.unsupported))
    if report.data is None and report.run.model.data_location.kind is DataLocationKind.SERVER:
        raise ConfigError(
            f"{report.run.path}: the data comes from this server: put a data.toml beside this file, or name one with "
            "--data-config FILE"
        )
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return report.run, report.data


def load_server_identity(folder: Path | None, path: Path | None, *, create: bool) -> "Identity":
    """The key named, or that of a server's state folder.

    Raises:
        ConfigError: neither is named, or there is none.
    """
    from psyche.errors import ConfigError
    from psyche.wire.crypto import Identity

    if path is None and folder is None:
        raise ConfigError(
            "name the owner's key: --state-dir FOLDER (the server's state folder), or --identity-secret-key-path FILE"
        )
    key = path or (folder or Path()) / "server.key"
    if path is None and not key.exists():
        if not create:
            raise ConfigError(
                f"no key {key}: --state-dir must be the state folder of the server, which has its key; on another "
                "machine name an owner's key with --identity-secret-key-path FILE (`server run --owner` admits it)"
            )
        make_identity().save(key)
    return Identity.load(key)


def make_identity() -> "Identity":
    """A fresh key."""
    import secrets

    from psyche.wire.crypto import Identity

    return Identity(secrets.token_bytes(32))
