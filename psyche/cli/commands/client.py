"""`psyche client`: take part in a run."""

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.helpers import options as opt
from psyche.cli.helpers.common import format_examples, make_group, run_async, say
from psyche.cli.helpers.outputs import check_source_folder, check_target_folder
from psyche.cli.helpers.target import JOINING, WALLET_PATH, Access, command
from psyche.client.runtime.settings import ClientSettings
from psyche.durable import expand_user
from psyche.telemetry.events import DEFAULT_KEEP

if TYPE_CHECKING:
    from psyche.backends.port import Backend, Target
    from psyche.telemetry.console import Console
    from psyche.telemetry.events import EventLog
    from psyche.wire.crypto import Identity

SIOCGIFADDR: Final = 0x8915
IFREQ_BYTES: Final = 256
ALL: Final = "0.0.0.0"  # noqa: S104 - a participant wants to be reached
DEFAULT: Final = ClientSettings(run_id="", data_dir=Path())
group = make_group(
    "Take part in a run.",
    "psyche client show-identity --run-id my-run --create",
    "psyche client train --run-id my-run --server-addr 127.0.0.1:19400",
)


@group.callback()
def _root() -> None:
    pass


@command(
    group,
    "train",
    "psyche client train --run-id my-run --server-addr 127.0.0.1:19400",
    "psyche client train --run-id my-run --server-addr 127.0.0.1:19400 \\",
    "    --local-root my-run --data-dir ada --checkpoint-dir ada/models",
    "psyche client train --run-id my-run --rpc devnet -w ada.json",
    "RUN_ID=my-run SERVER_ADDR=127.0.0.1:19400 psyche client train --logs json",
    shared=JOINING,
)
def train(
    *,
    run_id: opt.RunId,
    access: Access,
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

    Looks for the run, starts PyTorch, waits for members, gets the weights, trains its share of every round. Started
    again, it goes on where it was. Ctrl-C withdraws and ends within five seconds; a second one ends at once.

    The run is on a server (--server-addr) or on Solana (--rpc). There each machine's own wallet joins and pays, about
    0.00001 SOL a round; a busy chain costs up to 0.0001 SOL more a transaction (--max-priority-fee). Exit code 0: done,
    or SIGTERM. 10: the owner wants another version. 11: the run is closed. 12: it is another chain. 130: Ctrl-C.
    """
    from psyche.telemetry.console import Console
    from psyche.telemetry.logging import configure_logging
    from psyche.wire.crypto import parse_hex

    console = Console()
    configure_logging(logs.value, log, console=console, write_log=write_log)
    data_dir = get_data_dir(data_dir, run_id)
    target, server_key = access.target, access.options.server_key
    settings = ClientSettings(
        run_id=run_id, server_key=parse_hex("--server-key", server_key) if server_key else None, data_dir=data_dir,
        identity_path=identity_secret_key_path, bind_ip=get_bind_ip(bind_p2p_interface), bind_port=bind_p2p_port,
        bootstrap=opt.parse_bootstrap(bootstrap or []), local_root=local_root.absolute(), device=device,
        threads=threads, micro_batch_size=micro_batch_size, checkpoint_dir=checkpoint_dir, keep_steps=keep_steps,
        export=export, export_dtype=export_dtype.value, share_checkpoints=share_checkpoints,
        distro_dir=write_gradients_dir,
    )  # fmt: skip
    check_places(settings, events_dir)  # what this machine lacks is told before a server or a chain is asked
    check_target(target)
    settings.node_name = node_name or find_node_name(settings)
    events = open_events(settings, events_dir, keep_event_files)
    raise typer.Exit(run(settings, target, events, console, logs))


def open_events(settings: "ClientSettings", events_dir: Path | None, keep_files: int) -> "EventLog":
    from psyche.telemetry.events import EventLog

    folder = settings.data_dir if events_dir is None else events_dir / settings.node_name
    return EventLog(folder / "events.jsonl", node=settings.node_name, keep=keep_files)


def check_target(target: "Target") -> None:
    checked = run_async(target.check)
    for kind, texts in (("note", checked.notes), ("warning", checked.warnings)):
        for text in texts:
            say(f"{kind}: {text}")


def check_places(settings: "ClientSettings", events_dir: Path | None) -> None:
    """Check device and folders, before anything is made and anybody is asked."""
    from psyche.modeling.device_name import check_device_name

    check_device_name(settings.device)
    check_source_folder("--local-root", settings.local_root)
    check_target_folder("--data-dir", settings.data_dir)
    check_target_folder("--checkpoint-dir", settings.checkpoint_dir)
    check_target_folder("--write-gradients-dir", settings.distro_dir)
    check_target_folder("--events-dir", events_dir)


def find_node_name(settings: "ClientSettings") -> str:
    """Find the name of a client that was given none; makes its key if there is none yet."""
    from psyche.client.runtime.app import get_client_name, load_identity

    return get_client_name(load_identity(settings))


def run(settings: "ClientSettings", target: "Target", events: "EventLog", console: "Console", logs: opt.Logs) -> int:
    from psyche.client.runtime.app import run_client
    from psyche.telemetry.live import open_live_view
    from psyche.wire.line.descriptors import raise_limit

    def open_backend(
        client: "ClientSettings", identity: "Identity"
    ) -> "contextlib.AbstractAsyncContextManager[Backend]":
        return target.open_member(identity, client.data_dir, events)

    async def main() -> int:
        async with open_live_view(events, console, logs.value):
            return await run_client(settings, events, open_backend)

    raise_limit()
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
    from psyche.wire.crypto import Identity, parse_hex
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


@command(
    group,
    "show-wallet",
    "psyche client show-wallet -w ada.json --create",
    'psyche auth create --authorizer "$(psyche client show-wallet -w ada.json)" \\',
    "    --rpc localhost",
    shared=WALLET_PATH,
)
def show_wallet(
    *, access: Access, create: Annotated[bool, typer.Option("--create", help="Make the file if there is none.")] = False
) -> None:
    """Print the address of a wallet on Solana.

    A run's join authority authorizes it, and others send it lamports. Nobody needs the file itself.
    """
    from psyche.backends.solana.wallet import Wallet, find_wallet, write_wallet

    path = access.options.wallet_private_key_path
    if create and path is not None and not path.exists():
        write_wallet(path, Wallet())
    found = find_wallet(path)
    if found.note:
        say(f"note: {found.note}")
    typer.echo(str(found.key.pubkey()))


def get_data_dir(data_dir: Path | None, run_id: str) -> Path:
    """Return the given folder, or psyche-data/RUN_ID in the current folder."""
    from psyche.errors import ConfigError

    if data_dir is not None:
        return expand_user(data_dir)
    if not run_id or "/" in run_id or run_id in (".", ".."):
        raise ConfigError(f"--run-id {run_id!r}: cannot be the name of a folder; choose one with --data-dir")
    return Path("psyche-data") / run_id


def get_bind_ip(interface: str | None) -> str:
    """The IPv4 address of `interface`: an address, a name (`eth0`), a prefix (`eth*`), or None for all."""
    from psyche.errors import ConfigError

    if interface is None or interface in ("", "all"):
        return ALL
    try:
        return str(ipaddress.IPv4Address(interface))
    except ValueError:
        pass
    names = [name for _, name in socket.if_nameindex()]
    wanted = [name for name in names if _is_meant(name, interface)]
    if not wanted:
        raise ConfigError(f"--bind-p2p-interface {interface!r}: no such interface; this machine has {', '.join(names)}")
    for name in wanted:
        address = get_address(name)
        if address is not None:
            return address
    raise ConfigError(f"--bind-p2p-interface {interface!r}: {', '.join(wanted)} has no IPv4 address")


def get_address(name: str) -> str | None:
    request = struct.pack(f"{IFREQ_BYTES}s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _is_meant(name: str, interface: str) -> bool:
    return name.startswith(interface[:-1]) if interface.endswith("*") else name == interface
