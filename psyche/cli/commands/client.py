"""`psyche client`: take part in a run."""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.helpers import options as opt
from psyche.cli.helpers.common import format_examples, make_group, parse_hex
from psyche.cli.helpers.outputs import check_source_folder, check_target_folder
from psyche.client.runtime.settings import ClientSettings
from psyche.telemetry.events import DEFAULT_KEEP

if TYPE_CHECKING:
    from psyche.backends.tcp.dial import ServerAddress
    from psyche.telemetry.console import Console
    from psyche.telemetry.events import EventLog
    from psyche.wire.crypto import Identity

GREETING_S = 3.0
DEFAULT: Final = ClientSettings(run_id="", data_dir=Path())
group = make_group(
    "Take part in a run.",
    "psyche client show-identity --run-id my-run --create",
    "psyche client train --run-id my-run --server-addr 127.0.0.1:19400",
)


@group.callback()
def _root() -> None:
    pass


@group.command(
    "train",
    epilog=format_examples(
        "psyche client train --run-id my-run --server-addr 127.0.0.1:19400",
        "psyche client train --run-id my-run --server-addr 127.0.0.1:19400 \\",
        "    --local-root my-run --data-dir ada --checkpoint-dir ada/models",
        "RUN_ID=my-run SERVER_ADDR=127.0.0.1:19400 psyche client train --logs json",
    ),
)
def train(
    *,
    run_id: opt.RunId,
    server_addr: opt.ServerAddr,
    server_key: opt.ServerKey = None,
    identity_secret_key_path: opt.IdentityPath = None,
    data_dir: opt.DataDir = None,
    bind_p2p_port: opt.BindPort = DEFAULT.bind_port,
    bind_p2p_interface: opt.BindInterface = None,
    bootstrap: opt.Bootstrap = None,
    local_root: opt.LocalRoot = Path(),
    device: opt.Device = DEFAULT.device,
    threads: opt.Threads = DEFAULT.threads,
    micro_batch_size: opt.MicroBatchSize = DEFAULT.micro_batch_size,
    checkpoint_dir: opt.CheckpointDir = None,
    keep_steps: opt.KeepSteps = DEFAULT.keep_steps,
    export: opt.Export = DEFAULT.export,
    export_dtype: opt.ExportDtype = opt.Dtype.bfloat16,
    share_checkpoints: opt.ShareCheckpoints = DEFAULT.share_checkpoints,
    logs: opt.LogsOption = opt.Logs.console,
    log: opt.LogLevel = opt.USUAL_LEVEL,
    write_log: opt.WriteLog = None,
    events_dir: opt.EventsDir = None,
    keep_event_files: opt.KeepEventFiles = DEFAULT_KEEP,
    write_gradients_dir: opt.DistroDir = None,
    node_name: opt.NodeName = DEFAULT.node_name,
) -> None:
    """Train in a run until it is finished.

    Waits for members, loads the weights (from the run's source, or from peers), trains its share of every round, and
    exits with 0 when the run is finished. Ctrl-C withdraws and ends within five seconds, with exit code 130; a second
    Ctrl-C ends at once. SIGTERM does the same, with exit code 0. Started again, it goes on where it was.
    """
    from psyche.backends.tcp.dial import parse_server
    from psyche.cli.helpers.interfaces import get_bind_ip
    from psyche.telemetry.console import Console
    from psyche.telemetry.events import EventLog
    from psyche.telemetry.logging import configure_logging

    console = Console()
    configure_logging(logs.value, log, console=console, write_log=write_log)
    data_dir = get_data_dir(data_dir, run_id)
    address = parse_server(server_addr, run_id, parse_hex("--server-key", server_key) if server_key else None)
    settings = ClientSettings(
        run_id=run_id,
        server_key=address.key,
        data_dir=data_dir,
        identity_path=identity_secret_key_path,
        bind_ip=get_bind_ip(bind_p2p_interface),
        bind_port=bind_p2p_port,
        bootstrap=opt.parse_bootstrap(bootstrap or []),
        local_root=local_root.absolute(),
        device=device,
        threads=threads,
        micro_batch_size=micro_batch_size,
        checkpoint_dir=checkpoint_dir,
        keep_steps=keep_steps,
        export=export,
        export_dtype=export_dtype.value,
        share_checkpoints=share_checkpoints,
        distro_dir=write_gradients_dir,
    )
    check_places(settings, events_dir)
    check_server(address)
    settings.node_name = node_name or find_node_name(settings)
    folder = data_dir if events_dir is None else events_dir / settings.node_name
    events = EventLog(folder / "events.jsonl", node=settings.node_name, keep=keep_event_files)
    raise typer.Exit(run(settings, address, events, console, logs))


def check_places(settings: "ClientSettings", events_dir: Path | None) -> None:
    """Check device and folders, before anything is made and anybody is asked; print a warning of old snapshots.

    Raises:
        ConfigError: there is no such device, or a folder cannot be read or written.
    """
    from psyche.modeling.device_name import check_device_name

    check_device_name(settings.device)
    check_source_folder("--local-root", settings.local_root)
    check_target_folder("--data-dir", settings.data_dir)
    check_target_folder("--checkpoint-dir", settings.checkpoint_dir)
    check_target_folder("--write-gradients-dir", settings.distro_dir)
    check_target_folder("--events-dir", events_dir)
    warn_of_former_snapshots(settings)


def warn_of_former_snapshots(settings: "ClientSettings") -> None:
    """Say where the snapshots of an older version lie, which this one does not read."""
    from psyche.client.runtime.app import find_former_snapshots

    former = find_former_snapshots(settings)
    if former is not None:
        typer.echo(
            f"warning: the snapshots of an older version in {former} are not read: snapshots are in the data folder "
            f"now. To go on from them, move that folder to {settings.snapshots_dir}",
            err=True,
        )


def find_node_name(settings: "ClientSettings") -> str:
    """Find the name of a client that was given none; makes its key if there is none yet.

    Raises:
        ConfigError: the key cannot be read.
    """
    from psyche.client.runtime.app import get_client_name, load_identity

    return get_client_name(load_identity(settings))


def check_server(address: "ServerAddress") -> None:
    """Ask the server whether it has this run, before the seconds that a trainer takes to start.

    A server that does not answer now is waited for later.

    Raises:
        HandshakeError, RequestRefused: it is not the expected server, or has another run or protocol version.
    """
    import trio

    from psyche.backends.tcp.dial import dial
    from psyche.cli.helpers.common import run_async
    from psyche.errors import BackendError, WireError
    from psyche.wire.backend import RequestRefused
    from psyche.wire.key_file import make_identity
    from psyche.wire.line.handshake import HandshakeError

    async def greet() -> None:
        with trio.move_on_after(GREETING_S):
            dialed = await dial(address, make_identity())
            await dialed.frames.aclose()

    try:
        run_async(greet)
    except (HandshakeError, RequestRefused):
        raise
    except (BackendError, WireError):
        pass


def run(
    settings: "ClientSettings", address: "ServerAddress", events: "EventLog", console: "Console", logs: opt.Logs
) -> int:
    """Run the client with its live view; return the exit code."""
    from psyche.backends.tcp.backend import TcpBackend, open_backend
    from psyche.cli.helpers.common import run_async
    from psyche.client.runtime.app import run_client
    from psyche.telemetry.live import open_live_view

    def open_tcp_backend(
        _client: "ClientSettings", identity: "Identity"
    ) -> "contextlib.AbstractAsyncContextManager[TcpBackend]":
        return open_backend(address, identity, sink=events)

    async def main() -> int:
        async with open_live_view(events, console, logs.value):
            return await run_client(settings, events, open_tcp_backend)

    with contextlib.closing(events):
        return int(run_async(main))


@group.command(
    "show-identity",
    epilog=format_examples(
        "psyche client show-identity --run-id my-run --create   # the key used here",
        "psyche client show-identity -i my.key --create         # a key of its own",
    ),
)
def show_identity(
    *,
    identity_secret_key_path: opt.IdentityPath = None,
    data_dir: opt.DataDir = None,
    run_id: Annotated[str, typer.Option(envvar="RUN_ID", help="The run whose data folder to use.")] = "",
    create: Annotated[bool, typer.Option("--create", help="Make the key if there is none.")] = False,
) -> None:
    """Print the public key by which others know this client."""
    from psyche.errors import ConfigError
    from psyche.wire.crypto import Identity
    from psyche.wire.key_file import make_identity, read_key_file, write_key_file

    raw = os.environ.get("RAW_IDENTITY_SECRET_KEY")
    if raw and identity_secret_key_path is None:
        typer.echo(Identity(parse_hex("RAW_IDENTITY_SECRET_KEY", raw)).public.hex())
        return
    if identity_secret_key_path is None and data_dir is None and not run_id:
        raise ConfigError("name a key: --identity-secret-key-path FILE, --data-dir FOLDER or --run-id RUN")
    path = identity_secret_key_path or get_data_dir(data_dir, run_id) / "identity.key"
    if create and not path.exists():
        write_key_file(path, make_identity())
    typer.echo(read_key_file(path).public.hex())


def get_data_dir(data_dir: Path | None, run_id: str) -> Path:
    """Return the given folder, or psyche-data/RUN_ID in the current folder.

    Raises:
        ConfigError: the run id cannot be the name of a folder.
    """
    from psyche.errors import ConfigError

    if data_dir is not None:
        return data_dir.expanduser()
    if not run_id or "/" in run_id or run_id in (".", ".."):
        raise ConfigError(f"--run-id {run_id!r}: cannot be the name of a folder; choose one with --data-dir")
    return Path("psyche-data") / run_id
