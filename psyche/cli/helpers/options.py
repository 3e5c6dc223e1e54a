"""Options that commands share. Their names are those of the original documentation; each can come from the environment
under its name in capitals (`--run-id` is RUN_ID), but for --device."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from psyche.wire.peer_address import PeerAddress

MAX_BOOTSTRAP: Final = 32  # addresses that one person names
USUAL_LEVEL: Final = "info"


class Logs(StrEnum):
    console = "console"
    json = "json"
    none = "none"


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


RunId = Annotated[str, typer.Option(envvar="RUN_ID", help="The run to take part in.")]
IdentityPath = Annotated[
    Path | None,
    typer.Option(
        "--identity-secret-key-path",
        "-i",
        envvar="IDENTITY_SECRET_KEY_PATH",
        help="File with the secret key, 64 hex digits. Default: made in the data folder on first use. "
        "RAW_IDENTITY_SECRET_KEY may hold the digits instead.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="DATA_DIR",
        help="What this client needs to continue after a restart: key, snapshots, updates of the epoch, event log. "
        "One folder for each client. Default: psyche-data/RUN_ID.",
    ),
]
BindPort = Annotated[
    int, typer.Option(envvar="BIND_P2P_PORT", min=0, max=65535, help="Port for other clients; 0: any free one.")
]
BindInterface = Annotated[
    str | None, typer.Option(envvar="BIND_P2P_INTERFACE", help="Interface (eth0, eth*) or IPv4 address. Default: all.")
]
Bootstrap = Annotated[
    list[str] | None,
    typer.Option(
        envvar="BOOTSTRAP",
        help="Where a client of the run is found, as /ip4/HOST/tcp/PORT/p2p/KEY (also ip6, dns, dns4, dns6). KEY is "
        "its libp2p peer id, or the 64 hex digits of `psyche client show-identity`. May be repeated; the variable "
        "takes several, separated by spaces. Dialed first, as soon as that key has a place in the run; other clients "
        "are learned from there where the server does not say where they are.",
    ),
]
LocalRoot = Annotated[
    Path,
    typer.Option(envvar="LOCAL_ROOT", help="The folder that the run's relative Local paths (model, data) start from."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[int, typer.Option(envvar="THREADS", min=0, help="Threads of the trainer; 0: all cores.")]
MicroBatchSize = Annotated[
    int, typer.Option(envvar="MICRO_BATCH_SIZE", min=1, help="Samples at a time; fewer need less memory.")
]
CheckpointDir = Annotated[
    Path | None,
    typer.Option(
        envvar="CHECKPOINT_DIR",
        help="Where the trained model is written for you at each epoch's end, as from_pretrained reads it. Default: "
        "only at the run's end, to models in --data-dir, where the client also keeps what it continues from.",
    ),
]
ShareCheckpoints = Annotated[
    bool,
    typer.Option(
        "--share-checkpoints",
        envvar="SHARE_CHECKPOINTS",
        help="Keep each epoch's weights in --checkpoint-dir too, and put that place on record as the run's checkpoint. "
        "All clients must reach it under the same path below their --local-root.",
    ),
]
KeepSteps = Annotated[int, typer.Option(envvar="KEEP_STEPS", min=1, help="How many written models to keep.")]
Export = Annotated[
    bool,
    typer.Option(
        "--export/--no-export",
        envvar="EXPORT",
        help="Whether to write the trained model as a Hugging Face folder; see --checkpoint-dir.",
    ),
]
ExportDtype = Annotated[Dtype, typer.Option(envvar="EXPORT_DTYPE", help="The type of the numbers in written models.")]
LogsOption = Annotated[Logs, typer.Option(envvar="LOGS", help="Lines for people, lines of JSON, or none.")]
LogLevel = Annotated[str, typer.Option("--log", envvar="LOG", help="Level, also by part: warn,psyche.client=debug.")]
WriteLog = Annotated[Path | None, typer.Option(envvar="WRITE_LOG", help="Also write log lines (JSON) to this file.")]
EventsDir = Annotated[
    Path | None,
    typer.Option(envvar="EVENTS_DIR", help="The event log goes to NODE/events.jsonl here. Default: the data folder."),
]
KeepEventFiles = Annotated[
    int, typer.Option(envvar="KEEP_EVENT_FILES", min=0, help="Older event files kept, 64 MB each.")
]
DistroDir = Annotated[
    Path | None,
    typer.Option(
        "--write-gradients-dir",
        "--write-distro-data",
        envvar="WRITE_GRADIENTS_DIR",
        help="Keep a copy of each of this client's updates in this folder.",
    ),
]
NodeName = Annotated[
    str,
    typer.Option(
        envvar="NODE_NAME", help="This client's name in logs. Default: client- and the first digits of its key."
    ),
]


def parse_bootstrap(texts: list[str]) -> "tuple[PeerAddress, ...]":
    from psyche.errors import ConfigError, WireError
    from psyche.wire.peer_address import parse_peer_address

    if len(texts) > MAX_BOOTSTRAP:
        raise ConfigError(f"--bootstrap: {len(texts)} addresses, at most {MAX_BOOTSTRAP}")
    found: list[PeerAddress] = []
    for text in texts:
        try:
            found.append(parse_peer_address(text))
        except WireError as error:
            raise ConfigError(f"--bootstrap {text!r}: {error}") from error
    return tuple(found)
