"""The settings of a local testnet, and the layout of a run's folder."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from psyche.backends.kinds import USUAL_KIND, BackendKind
from psyche.errors import ConfigError
from psyche.localchain.validator import Validator
from psyche.modeling.device_name import check_device_name
from psyche.storage.port import StorageOptions

MAX_CLIENTS = 64  # each takes two processes of several hundred megabytes
SLOT_MS: Final = 100  # of a local chain: a fourth of what a public one takes


@dataclass(slots=True, kw_only=True)
class TestnetSettings:
    """Settings of `psyche local-testnet start`.

    With `run_dir` None the folder is `runs/NAME-DATE-TIME`. `cache_dir` holds weights and tokens that runs share.
    With `minutes` None the run goes to its end.
    """

    __test__ = False  # not a test class, despite its name

    num_clients: int
    config_path: Path
    run_dir: Path | None = None
    cache_dir: Path = field(default_factory=lambda: Path("runs") / "cache")
    backend: BackendKind = USUAL_KIND
    slot_ms: int = SLOT_MS  # of the local chain
    validator: Validator = Validator.embedded  # which local chain
    open_joins: bool = False  # let everybody join, not only the clients: sets the run's access.open
    server_port: int = 0  # of the server, or of the local chain
    random_kill_num: int = 0
    random_kill_interval_s: float = 120.0
    allowed_to_kill: tuple[int, ...] = ()
    minutes: float | None = None
    keep: bool = False
    write_distro_data: bool = False
    optim_stats: int = 0  # steps between two measurements of the tensors
    write_log: bool = False
    log: str = "info"
    events_dir: Path | None = None
    device: str = "auto"
    threads: int = 0  # per client; 0: an equal share of the cores
    micro_batch_size: int = 8
    activation_checkpointing: bool = False
    seed: int = 0  # of the first weights and of the choice of kills
    sample: bool = True
    first_client_checkpoint: str | None = None  # a repository to begin with, instead of what the file names
    storage: StorageOptions = field(default_factory=StorageOptions)  # of remote data and weights
    tui: bool = False  # a screen on the terminal, if there is one
    tmux: bool = False  # likewise, a pane for each node
    web: int | None = None  # port of a page for browsers
    tracking: Sequence[str] = ()  # options of `psyche watch` that take the run to experiment trackers
    wait_for_all: bool = False  # set the run's init_min_clients to num_clients

    def check(self) -> None:
        if not 1 <= self.num_clients <= MAX_CLIENTS:
            raise ConfigError(f"--num-clients {self.num_clients}: must be 1 to {MAX_CLIENTS}")
        if self.minutes is not None and self.minutes <= 0:
            raise ConfigError(f"--minutes {self.minutes}: must be above 0")
        if self.tui and self.tmux:
            raise ConfigError("--tui and --tmux: both take the terminal; leave out one of them")
        if self.tmux and shutil.which("tmux") is None:
            raise ConfigError("--tmux: there is no program tmux on this machine; install it, or take --tui")
        check_device_name(self.device)


class Layout:
    """The folder of one run, and where the events of its nodes are."""

    def __init__(self, root: Path, events: Path) -> None:
        self.root, self.events = root, events
        self.config = root / "config"  # the configuration in use, with ports filled in, and model and data linked
        self.server = root / "server"  # the server's journal and key
        self.logs = root / "logs"  # the output of each process
        self.page = root / "run.html"
        self.summary = root / "summary.json"
        self.model = root / "model"  # the trained model, linked here at the end
        self.owner_wallet = root / "chain" / "owner.json"  # of a run on a local chain
        self.chain_record = root / "chain" / "chain.rec"  # for `psyche dev replay`; with `keep` only

    def client(self, number: int) -> Path:
        return self.root / get_node_name(number)

    def wallet(self, number: int) -> Path:
        return self.client(number) / "wallet.json"

    def checkpoints(self, number: int) -> Path:
        return self.client(number) / "checkpoints"

    def events_of(self, node: str) -> Path:
        return self.events / node / "events.jsonl"


def get_node_name(number: int) -> str:
    return f"client-{number}"
