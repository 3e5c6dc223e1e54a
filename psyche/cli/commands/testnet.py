"""`psyche local-testnet`: a whole run on one machine."""

from pathlib import Path
from typing import Annotated, Final

import typer

from psyche.backends.kinds import BackendKind
from psyche.cli.helpers.common import format_examples, make_group
from psyche.localchain.validator import Validator
from psyche.testnet.settings import TestnetSettings

DEFAULT: Final = TestnetSettings(num_clients=1, config_path=Path())

group = make_group(
    "A server and several clients together on this machine.",
    "psyche local-testnet start --num-clients 3 --config-path config/demo",
)

NumClients = Annotated[int, typer.Option(help="How many clients; each is two processes.")]
ConfigPath = Annotated[Path, typer.Option(help="A run.toml, or the folder with it, data.toml and model.json.")]
LocalValidator = Annotated[
    Validator, typer.Option(help="The local chain: embedded in psyche, or real: solana-test-validator or surfpool.")
]
OpenJoins = Annotated[
    bool, typer.Option("--open-joins", help="Let everybody join, not only the clients: sets access.open.")
]
RunDir = Annotated[Path | None, typer.Option(help="Everything of this run goes here. Default: runs/NAME-DATE-TIME.")]
CacheDir = Annotated[Path, typer.Option(help="Folder for first weights and tokens that runs share.")]
KillNumber = Annotated[int, typer.Option(min=0, help="How many clients are killed (SIGKILL) at a time.")]
KillInterval = Annotated[float, typer.Option(help="Seconds between kills; killed clients come back at once.")]
AllowedToKill = Annotated[str, typer.Option(help="Numbers of the clients that may be killed, as in 1,3. Default: all.")]
Minutes = Annotated[
    float | None, typer.Option(help="Train for this long, then pause the run, which ends its epoch cleanly.")
]
WaitForAll = Annotated[
    bool, typer.Option("--wait-for-all", help="Start the first epoch with all clients: sets init_min_clients.")
]
Sample = Annotated[bool, typer.Option(help="At the end, show text from the trained model.")]


@group.callback()
def _root() -> None:
    pass


@group.command(
    "start",
    epilog=format_examples(
        "psyche local-testnet start --num-clients 3 --config-path config/demo",
        "psyche local-testnet start --num-clients 3 --config-path config/demo-kill \\",
        "    --random-kill-num 1 --random-kill-interval 20",
        "psyche local-testnet start --num-clients 4 --config-path my-run --minutes 10",
        "psyche local-testnet start --num-clients 3 --config-path config/demo-solana \\",
        "    --backend solana",
    ),
)
def start(
    *,
    num_clients: NumClients,
    config_path: ConfigPath,
    run_dir: RunDir = None,
    cache_dir: CacheDir = DEFAULT.cache_dir,
    backend: Annotated[
        BackendKind, typer.Option(help="What keeps the run: tcp, a server; solana, a local chain with the programs.")
    ] = DEFAULT.backend,
    slot_ms: Annotated[
        int, typer.Option(min=10, max=60_000, help="Length of the local chain's slots; a public chain has 400 ms.")
    ] = DEFAULT.slot_ms,
    validator: LocalValidator = DEFAULT.validator,
    open_joins: OpenJoins = DEFAULT.open_joins,
    server_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the server or the chain; 0: any free one.")
    ] = DEFAULT.server_port,
    random_kill_num: KillNumber = DEFAULT.random_kill_num,
    random_kill_interval: KillInterval = DEFAULT.random_kill_interval_s,
    allowed_to_kill: AllowedToKill = "",
    minutes: Minutes = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep journals and snapshots, and a record of a local chain.")
    ] = DEFAULT.keep,
    write_distro_data: Annotated[
        bool, typer.Option("--write-distro-data", help="Keep every update.")
    ] = DEFAULT.write_distro_data,
    write_log: Annotated[bool, typer.Option("--write-log", help="Also write log lines as JSON.")] = DEFAULT.write_log,
    log: Annotated[str, typer.Option(help="Level of the processes' logs, as in warn,psyche=debug.")] = DEFAULT.log,
    events_dir: Annotated[
        Path | None, typer.Option(help="Event logs go here. Default: events in the run's folder.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N, for all clients.")] = DEFAULT.device,
    threads: Annotated[
        int, typer.Option(min=0, help="Threads of each trainer; 0: an equal share of the cores.")
    ] = DEFAULT.threads,
    micro_batch_size: Annotated[int, typer.Option(min=1, help="Samples at a time.")] = DEFAULT.micro_batch_size,
    seed: Annotated[int, typer.Option(help="Seed of the first weights, and of who is killed.")] = DEFAULT.seed,
    sample: Sample = DEFAULT.sample,
    wait_for_all: WaitForAll = DEFAULT.wait_for_all,
) -> None:
    """Run a server and clients until the run is finished.

    At the end compares what they hold, and shows text from the trained model. Makes first weights and tokens where they
    are missing, chooses free ports, shows all clients in one view, and leaves nothing running, whatever ends it.

    With --backend solana the run is on a chain of this machine: each client has a wallet with lamports of no value, and
    the run is created, opened to these wallets and started as its owner does that with `psyche run` and `psyche auth`.
    The data must be Local then: a chain serves none. --validator real takes one of Solana's own validators instead of
    the chain that comes with psyche.

    Exit code 1 where the final digests differ or a client failed, 130 after Ctrl-C; a second Ctrl-C kills at once.
    """
    from psyche.cli.helpers.common import run_async
    from psyche.telemetry.console import Console
    from psyche.testnet.supervisor import run_testnet

    settings = TestnetSettings(
        num_clients=num_clients, config_path=config_path, run_dir=run_dir, cache_dir=cache_dir, backend=backend,
        slot_ms=slot_ms, validator=validator, open_joins=open_joins, server_port=server_port,
        random_kill_num=random_kill_num, random_kill_interval_s=random_kill_interval,
        allowed_to_kill=parse_numbers(allowed_to_kill), minutes=minutes,
        keep=keep, write_distro_data=write_distro_data, write_log=write_log, log=log, events_dir=events_dir,
        device=device, threads=threads, micro_batch_size=micro_batch_size, seed=seed, sample=sample,
        wait_for_all=wait_for_all,
    )  # fmt: skip
    raise typer.Exit(run_async(run_testnet, settings, Console()))


def parse_numbers(text: str) -> tuple[int, ...]:
    from psyche.errors import ConfigError

    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--allowed-to-kill {text!r}: must be numbers of clients, as in 1,3") from None
