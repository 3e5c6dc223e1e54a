"""`psyche client`: take part in a run."""

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from psyche.cli.helpers.common import format_examples, make_group, run_async, say
from psyche.cli.helpers.options import (
    CHECKPOINTING_HELP,
    LOGGING,
    OFFLOAD_HELP,
    Logging,
    option,
    parse_micro_batch_size,
    share_fields,
)
from psyche.cli.helpers.outputs import TRACKERS, Trackers, check_source_folder, check_target_folder
from psyche.cli.helpers.remote import CACHED_SOURCES, MANIFEST, Remote
from psyche.cli.helpers.target import FINDING, JOINING, WALLET_PATH, Access, command
from psyche.client.runtime.settings import KEY_NAME, ClientSettings
from psyche.durable import expand_user
from psyche.errors import ConfigError, WireError
from psyche.evals.tasks import Task, find_tasks
from psyche.modeling.device_name import MAX_RANKS, check_devices
from psyche.wire.peer_address import PeerAddress, parse_peer_address

if TYPE_CHECKING:
    from psyche.backends.port import Backend, Target
    from psyche.core.state.state import Coordinator
    from psyche.telemetry.console import Console
    from psyche.telemetry.events import EventLog
    from psyche.wire.crypto import Identity

SIOCGIFADDR: Final = 0x8915
IFREQ_BYTES: Final = 256
ALL: Final = "0.0.0.0"  # noqa: S104 - a participant wants to be reached
MAX_BOOTSTRAP: Final = 32  # addresses that one person names
DEVICE_HELP: Final = "auto, cpu, mps, cuda, cuda:N, or several as cuda:0,2."
group = make_group(
    "Take part in a run.",
    "psyche client show-identity --run-id my-run --create",
    "psyche client train --run-id my-run --server-addr 127.0.0.1:19400",
)


IDENTITY_HELP: Final = (
    "File with the secret key, 64 hex digits. Default: made in the data folder on first use. RAW_IDENTITY_SECRET_KEY "
    "may hold the digits instead."
)
IdentityPath = Annotated[
    Path | None,
    typer.Option("--identity-secret-key-path", "-i", envvar="IDENTITY_SECRET_KEY_PATH", help=IDENTITY_HELP),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="DATA_DIR",
        help="What this client needs to continue after a restart: key, snapshots, updates of the epoch, event log. "
        "One folder for each client. Default: psyche-data/RUN_ID.",
    ),
]


def parse_bootstrap(texts: list[str] | None) -> tuple[PeerAddress, ...]:
    if len(texts or ()) > MAX_BOOTSTRAP:
        raise ConfigError(f"--bootstrap: {len(texts or ())} addresses, at most {MAX_BOOTSTRAP}")
    found: list[PeerAddress] = []
    for text in texts or ():
        try:
            found.append(parse_peer_address(text))
        except WireError as error:
            raise ConfigError(f"--bootstrap {text!r}: {error}") from error
    return tuple(found)


def get_bind_ip(interface: str | None) -> str:
    """The IPv4 address of `interface`: an address, a name (`eth0`), a prefix (`eth*`), or None for all."""
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


def parse_eval_tasks(names: str | None) -> tuple[Task, ...]:
    found = tuple(find_tasks(names, "--eval-tasks")) if names else ()
    if written := [task.name for task in found if task.is_generated]:
        raise ConfigError(f"--eval-tasks: {written[0]} is written, not chosen; use `psyche eval` for it")
    return found


TRAINING: Final = share_fields(
    ClientSettings,
    has_variables=True,
    run_id="The run to take part in.",
    identity_path=option(IDENTITY_HELP, "--identity-secret-key-path", "-i"),
    bind_port=option("Port for other clients; 0: any free one.", "--bind-p2p-port", min=0, max=65535),
    bind_ip=option(
        "Interface (eth0, eth*) or IPv4 address. Default: all.", "--bind-p2p-interface",
        kind=str | None, default=None, callback=get_bind_ip,
    ),
    bootstrap=option(
        "Where a client of the run is found, as /ip4/HOST/tcp/PORT/p2p/KEY (also ip6, dns, dns4, dns6). KEY is its "
        "libp2p peer id, or the 64 hex digits of `psyche client show-identity`. May be repeated; the variable takes "
        "several, separated by spaces. Dialed first, as soon as that key has a place in the run; other clients are "
        "learned from there where the server does not say where they are.",
        kind=list[str] | None, callback=parse_bootstrap,
    ),
    local_root=option("The folder that the run's relative Local paths (model, data) start from.", default=Path()),
    device=option(DEVICE_HELP, envvar=None),
    data_parallelism=option("Devices among which samples and weights are divided (FSDP2).", min=1, max=MAX_RANKS),
    tensor_parallelism=option("Devices among which each layer is divided; may be combined.", min=1, max=MAX_RANKS),
    rendezvous=option(
        "HOST:PORT of this machine, where `psyche client sidecar` brings the devices that it lacks. Only in a network "
        "that you trust.",
    ),
    threads=option("Threads of the trainer; 0: all cores.", min=0),
    micro_batch_size=option(
        "Samples at a time on each device, or auto: as many as fit into memory.", kind=str, metavar="NUMBER|auto",
        default="1", callback=parse_micro_batch_size,
    ),
    activation_checkpointing=option(CHECKPOINTING_HELP, "--activation-checkpointing"),
    offload=option(OFFLOAD_HELP, "--offload"),
    checkpoint_dir="Where the trained model is written for you at each epoch's end, as from_pretrained reads it. "
    "Default: only at the run's end, to models in --data-dir, where the client also keeps what it continues from.",
    keep_steps=option("How many written models to keep.", min=1),
    export="Whether to write the trained model as a Hugging Face folder; see --checkpoint-dir.",
    export_dtype=option("The type of the numbers in written models.", kind=Literal["float32", "bfloat16", "float16"]),
    share_checkpoints=option(
        "Keep each epoch's weights in --checkpoint-dir too, and put that place on record as the run's checkpoint. All "
        "clients must reach it under the same path below their --local-root.",
        "--share-checkpoints",
    ),
    hub_repo="Upload each epoch's weights to this repository of the Hugging Face Hub (owner/name), and put its commit "
    "on record as the run's checkpoint. Made if it is not there; needs HF_TOKEN.",
    gcs_bucket="Likewise, to this bucket of Google's, with the key in GOOGLE_APPLICATION_CREDENTIALS.",
    gcs_prefix="The folder in the bucket; each epoch's weights get one of their own below it. Default: RUN_ID.",
    upload_dtype=option(
        "bfloat16: also upload the weights rounded, for people, as the branch bfloat16.",
        kind=Literal["float32", "bfloat16"],
    ),
    skip_checkpoint_upload=option("Upload nothing, whatever else is set.", "--skip-checkpoint-upload"),
    delete_old_steps="Whether to delete written models, and weights in the bucket, beyond --keep-steps.",
    distro_dir=option(
        "Keep a copy of each of this client's updates in this folder; `psyche distro show` reads them.",
        "--write-gradients-dir", "--write-distro-data",
    ),
    write_gradients=option("all: likewise of those that other members sent.", kind=Literal["own", "all"]),
    optim_stats_steps=option(
        "Every so many steps write an event for each tensor: energy of update and gradient, norm of the momentum, "
        "share of agreeing signs; 0: never.", min=0,
    ),
    keep_evidence=option(
        "How many files to keep, in evidence in --data-dir, by which `psyche verify` judges a member again.", min=0,
    ),
    eval_tasks=option(
        "Known tasks that members measure the certified weights with in idle time, each member a part: names as of "
        "`psyche eval`, with commas between them. All members should name the same.",
        kind=str | None, default=None, callback=parse_eval_tasks,
    ),
    eval_fewshot=option("Examples before each question of these.", min=0, max=100),
    eval_seed="Seed of what is drawn of them.",
    eval_task_max_docs=option("So many documents of each, drawn by the seed. Default: all.", min=1),
    eval_task_data="A folder with their data sets, as `psyche eval --task-data` reads it, instead of the Hub.",
    prompt_task=option(
        "Have certified weights go on with a prompt in idle time, 256 tokens, by one member for all.", "--prompt-task"
    ),
    max_concurrent_downloads=option("Updates that are fetched from peers at once.", min=1),
    max_concurrent_parameter_requests=option("Tensors of the model that are asked of one peer at once.", min=1),
    node_name="This client's name in logs. Default: client- and the first digits of its key.",
)  # fmt: skip


@command(
    group,
    "train",
    "psyche client train --run-id my-run --server-addr 127.0.0.1:19400",
    "psyche client train --run-id my-run --server-addr 127.0.0.1:19400 \\",
    "    --local-root my-run --data-dir ada --checkpoint-dir ada/models",
    "psyche client train --run-id my-run --rpc devnet -w ada.json",
    "RUN_ID=my-run SERVER_ADDR=127.0.0.1:19400 psyche client train --logs json",
    shared=JOINING | TRAINING | CACHED_SOURCES | MANIFEST | LOGGING | TRACKERS,
)
def train(
    *, access: Access, data_dir: DataDir = None, settings: ClientSettings, remote: Remote, logging: Logging,
    trackers: Trackers,
) -> None:  # fmt: skip
    """Train in a run until it is finished.

    Looks for the run, starts PyTorch, waits for members, gets the weights, trains its share of every round. Started
    again, it goes on where it was. Ctrl-C withdraws and ends within five seconds; a second one ends at once.

    The run is on a server (--server-addr) or on Solana (--rpc). There each machine's own wallet joins and pays, about
    0.00001 SOL a round; a busy chain costs up to 0.0001 SOL more a transaction (--max-priority-fee). Exit code 0: done,
    or SIGTERM. 10: the owner wants another version. 11: the run is closed. 12: it is another chain. 130: Ctrl-C.
    """
    from psyche.client.runtime.app import get_client_name, load_identity
    from psyche.telemetry.console import Console
    from psyche.telemetry.logging import configure_logging
    from psyche.wire.crypto import parse_hex

    console = Console()
    configure_logging(logging.lines, logging.log, console=console, write_log=logging.write_log)
    server_key = access.options.server_key
    settings.server_key = parse_hex("--server-key", server_key) if server_key else None
    settings.data_dir, settings.local_root = get_data_dir(data_dir, settings.run_id), settings.local_root.absolute()
    settings.storage = remote.get_options()
    logging.wants_screen()
    trackers.check()
    check_places(settings, logging.events_dir)  # what this machine lacks is told before a server or a chain is asked
    check_target(access.target)
    # Only now: a client that is refused leaves neither a key nor a folder behind.
    settings.node_name = settings.node_name or get_client_name(load_identity(settings))
    events = logging.open_events(settings.data_dir, settings.node_name)
    trackers = trackers.name_run(f"{settings.run_id}-{settings.node_name}")
    raise typer.Exit(run(settings, access.target, events, console, logging, trackers))


@command(
    group,
    "predownload",
    "psyche client predownload --state my-run --data-dir ada",
    "psyche client predownload --run-id my-run --server-addr 127.0.0.1:19400",
    "psyche client predownload --run-id my-run --rpc devnet --no-data",
    "psyche client predownload --state my-run --no-model --cache-gb 50",
    shared=FINDING | CACHED_SOURCES | MANIFEST,
)
def predownload(
    *,
    state: Annotated[
        Path | None, typer.Option(help="run.toml or state.toml, or its folder, of a run that is not there yet.")
    ] = None,
    data_dir: DataDir = None,
    model: Annotated[bool, typer.Option(help="Fetch the model's weights into --data-dir.")] = True,
    data: Annotated[bool, typer.Option(help="Fetch the training data into --cache-dir.")] = True,
    access: Access,
    remote: Remote,
) -> None:
    """Fetch a run's model and data before you take part.

    The next `psyche client train` with the same --data-dir and --cache-dir begins with what is here, and does not ask
    the Hub, the bucket or the web server for it again. The run is that of a file (--state), on a server (--server-addr)
    or on Solana (--rpc). It needs no wallet and joins nothing; a server whose owner allows keys one by one answers the
    key in --data-dir (-i names another).

    Data over HTTP, and all sources of a mix, must have room in the cache (--cache-gb). Prepared rows on the Hub
    (Preprocessed) are not fetched: a client reads them as it needs them. Stopped and started again, it goes on where
    it was.
    """
    from psyche.cli.helpers.progress import ProgressBar
    from psyche.client.runtime import predownload

    if data_dir is not None:
        check_target_folder("--data-dir", expand_user(data_dir))
    options = remote.get_options()
    if state:
        record, manifest = load_record(state, remote.data_manifest)
    else:
        asked = access.options
        if asked.server_addr and not asked.identity_secret_key_path and (data_dir or asked.run_id):
            own = get_data_dir(data_dir, asked.run_id) / KEY_NAME
            access = replace(access, options=replace(asked, identity_secret_key_path=own if own.exists() else None))
        record, manifest = access.run(lambda backend: backend.get_record(), as_anybody=True), remote.data_manifest
    folder = get_data_dir(data_dir, record.run_id)
    check_target_folder("--data-dir", folder)
    settings = ClientSettings(run_id=record.run_id, data_dir=folder, storage=options, data_manifest=manifest)
    fetches = {"model": predownload.fetch_model if model else None, "data": predownload.fetch_data if data else None}
    for title, fetch in fetches.items():
        if fetch is not None:
            with ProgressBar(title) as bar:
                run_async(fetch, record, settings, say, bar.set)


@command(
    group,
    "sidecar",
    "psyche client sidecar --rendezvous 10.0.0.1:29500",
    "psyche client sidecar --rendezvous 10.0.0.1:29500 --device cuda:0,1",
)
def sidecar(
    *,
    rendezvous: Annotated[str, typer.Option(help="The HOST:PORT that `psyche client train --rendezvous` has.")],
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="Threads for all its devices; 0: all cores.")] = 0,
) -> None:
    """Lend this machine's devices to a client on another machine.

    It does so until Ctrl-C. The client runs `psyche client train --rendezvous` with --data-parallelism or
    --tensor-parallelism for the devices of all machines. A sidecar needs neither key, model nor data: the client sends
    what its devices compute with. When the client's trainer starts again, so do they.

    Whoever reaches that port can run programs on both machines: use a network that you trust.
    """
    from psyche.client.runtime.sidecar import run_sidecar

    check_devices(device, MAX_RANKS, rendezvous)
    run_async(run_sidecar, rendezvous, device, threads, say)


def load_record(path: Path, data_manifest: str | None) -> "tuple[Coordinator, str]":
    """The record that a run of this file begins with, but for what only a server or a chain knows; and the file of
    the manifest of its data.
    """
    from psyche.config.load import NO_MANIFEST, load_run
    from psyche.core.state.genesis import create_run

    file = load_run(path, data_manifest)
    record = create_run(
        file.config, file.model, file.run_id, b"\1" * 32, file.metadata, "latest", 0, progress=file.progress
    )
    manifest = file.data_manifest
    return record, str(manifest) if manifest and manifest.is_file() else NO_MANIFEST


def check_target(target: "Target") -> None:
    checked = run_async(target.check)
    for kind, texts in (("note", checked.notes), ("warning", checked.warnings)):
        for text in texts:
            say(f"{kind}: {text}")


def check_places(settings: "ClientSettings", events_dir: Path | None) -> None:
    """Check device and folders, before anything is made and anybody is asked."""
    from psyche.config.load import NO_MANIFEST, find_data_manifest

    check_devices(settings.device, settings.ranks, settings.rendezvous)
    check_source_folder("--local-root", settings.local_root)
    manifest = find_data_manifest(settings.data_manifest, settings.local_root)
    if settings.data_manifest and manifest and not manifest.is_file():
        raise ConfigError(f"--data-manifest {manifest}: there is no such file; {NO_MANIFEST}: do without")
    if settings.eval_task_data is not None:
        check_source_folder("--eval-task-data", settings.eval_task_data)
    check_target_folder("--data-dir", settings.data_dir)
    check_target_folder("--checkpoint-dir", settings.checkpoint_dir)
    check_target_folder("--write-gradients-dir", settings.distro_dir)
    if settings.write_gradients == "all" and settings.distro_dir is None:
        raise ConfigError("--write-gradients all: name the folder for them too, with --write-gradients-dir FOLDER")
    check_target_folder("--events-dir", events_dir)


def run(
    settings: "ClientSettings", target: "Target", events: "EventLog", console: "Console", logging: Logging,
    trackers: Trackers,
) -> int:  # fmt: skip
    from psyche.client.runtime.app import run_client
    from psyche.telemetry.live import open_live_view
    from psyche.wire.line.descriptors import raise_limit

    def open_backend(
        client: "ClientSettings", identity: "Identity"
    ) -> "contextlib.AbstractAsyncContextManager[Backend]":
        return target.open_member(identity, client.data_dir, events)

    async def main() -> int:
        assert events.path is not None, "a client keeps its log"
        screen, tracking = logging.open_screen(console, str(events.path)), trackers.open_watch(events.path)
        async with open_live_view(events, console, logging.lines), tracking, screen:
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
    identity_secret_key_path: IdentityPath = None,
    data_dir: DataDir = None,
    run_id: Annotated[str, typer.Option(envvar="RUN_ID", help="The run whose data folder to use.")] = "",
    create: Annotated[bool, typer.Option("--create", help="Make the key if there is none.")] = False,
) -> None:
    """Print the public key by which others know this client."""
    from psyche.wire.crypto import Identity, parse_hex
    from psyche.wire.key_file import make_identity, read_key_file, write_key_file

    raw = os.environ.get("RAW_IDENTITY_SECRET_KEY")
    if raw and identity_secret_key_path is None:
        typer.echo(Identity(parse_hex("RAW_IDENTITY_SECRET_KEY", raw)).public.hex())
        return
    if identity_secret_key_path is None and data_dir is None and not run_id:
        raise ConfigError("name a key: --identity-secret-key-path FILE, --data-dir FOLDER or --run-id RUN")
    path = identity_secret_key_path or get_data_dir(data_dir, run_id) / KEY_NAME
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
    if data_dir is not None:
        return expand_user(data_dir)
    if not run_id or "/" in run_id or run_id in (".", ".."):
        raise ConfigError(f"--run-id {run_id!r}: cannot be the name of a folder; choose one with --data-dir")
    return Path("psyche-data") / run_id
