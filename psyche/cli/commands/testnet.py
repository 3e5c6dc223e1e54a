"""`psyche local-testnet`: a whole run on one machine."""

from typing import Final

import typer

from psyche.cli.helpers.common import make_group, require_extra, run_async
from psyche.cli.helpers.options import CHECKPOINTING_HELP, option, parse_micro_batch_size, share_fields
from psyche.cli.helpers.outputs import TRACKERS, Trackers
from psyche.cli.helpers.remote import CACHE_GB_OPTION, SOURCES, Remote
from psyche.cli.helpers.target import command
from psyche.errors import ConfigError
from psyche.testnet.settings import TestnetSettings

group = make_group(
    "A server and several clients together on this machine.",
    "psyche local-testnet start --num-clients 3 --config-path config/demo",
)


def parse_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--allowed-to-kill {text!r}: must be numbers of clients, as in 1,3") from None


SETTINGS: Final = share_fields(
    TestnetSettings,
    num_clients="How many clients; each is two processes.",
    config_path="A run.toml, or the folder with it, data.toml and model.json.",
    run_dir="Everything of this run goes here. Default: runs/NAME-DATE-TIME.",
    cache_dir="Folder for first weights and tokens that runs share, also of tokens read over HTTP.",
    first_client_checkpoint=option(
        "Begin with this model of the Hugging Face Hub, instead of the one that the run's file names.",
        metavar="OWNER/NAME[@REVISION]",
    ),
    backend="What keeps the run: tcp, a server; solana, a local chain with the programs.",
    slot_ms=option("Length of the local chain's slots; a public chain has 400 ms.", min=10, max=60_000),
    validator="The local chain: embedded in psyche, or real: solana-test-validator or surfpool.",
    open_joins=option("Let everybody join, not only the clients: sets access.open.", "--open-joins"),
    server_port=option("Port of the server or the chain; 0: any free one.", min=0, max=65535),
    random_kill_num=option("How many clients are killed (SIGKILL) at a time.", min=0),
    random_kill_interval_s=option(
        "Seconds between kills; killed clients come back at once.", "--random-kill-interval"
    ),
    allowed_to_kill=option(
        "Numbers of the clients that may be killed, as in 1,3. Default: all.",
        kind=str, default="", callback=parse_numbers,
    ),
    minutes="Train for this long, then pause the run, which ends its epoch cleanly.",
    keep=option("Keep journals and snapshots, and a record of a local chain.", "--keep"),
    write_distro_data=option("Keep every update.", "--write-distro-data"),
    optim_stats=option("As --optim-stats-steps of the clients.", min=0, metavar="STEPS"),
    write_log=option("Also write log lines as JSON.", "--write-log"),
    log="Level of the processes' logs, as in warn,psyche=debug.",
    events_dir="Event logs go here. Default: events in the run's folder.",
    device="auto, cpu, mps, cuda or cuda:N, for all clients.",
    threads=option("Threads of each trainer; 0: an equal share of the cores.", min=0),
    micro_batch_size=option(
        "Samples at a time, or auto: as many as fit into memory.", kind=str, metavar="NUMBER|auto",
        default="8", callback=parse_micro_batch_size,
    ),
    activation_checkpointing=option(CHECKPOINTING_HELP, "--activation-checkpointing"),
    seed="Seed of the first weights, and of who is killed.",
    sample="At the end, show text from the trained model.",
    tui=option("A screen, as of psyche watch --tui; where no terminal is: lines.", "--tui"),
    tmux=option("A pane of tmux for each node, with what it prints; where no terminal is: lines.", "--tmux"),
    web=option("Serve a page for browsers here meanwhile; 0: any free port.", min=0, max=65_535, metavar="PORT"),
    wait_for_all=option("Start the first epoch with all clients: sets init_min_clients.", "--wait-for-all"),
)  # fmt: skip


@command(
    group,
    "start",
    "psyche local-testnet start --num-clients 3 --config-path config/demo",
    "psyche local-testnet start --num-clients 3 --config-path config/demo-kill \\",
    "    --random-kill-num 1 --random-kill-interval 20",
    "psyche local-testnet start --num-clients 4 --config-path my-run --minutes 10",
    "psyche local-testnet start --num-clients 3 --config-path config/demo --tui",
    "psyche local-testnet start --num-clients 3 --config-path config/demo-solana \\",
    "    --backend solana",
    shared=SETTINGS | SOURCES | CACHE_GB_OPTION | TRACKERS,
)
def start(*, settings: TestnetSettings, remote: Remote, trackers: Trackers) -> None:
    """Run a server and clients until the run is finished.

    At the end compares what they hold, and shows text from the trained model. Makes first weights and tokens where they
    are missing, chooses free ports, shows all clients in one view, and leaves nothing running, whatever ends it.

    With --backend solana the run is on a chain of this machine: each client has a wallet with lamports of no value, and
    the run is created, opened to these wallets and started as its owner does that with `psyche run` and `psyche auth`.
    The data must be Local then: a chain serves none. --validator real takes one of Solana's own validators instead of
    the chain that comes with psyche.

    Exit code 1 where the final digests differ or a client failed, 130 after Ctrl-C; a second Ctrl-C kills at once.
    """
    from psyche.telemetry.console import Console
    from psyche.testnet.supervisor import run_testnet

    if settings.tui:
        require_extra("ui", "--tui", "textual")
    trackers.check()
    settings.storage, settings.tracking = remote.get_options(), trackers.make_words()
    raise typer.Exit(run_async(run_testnet, settings, Console()))
