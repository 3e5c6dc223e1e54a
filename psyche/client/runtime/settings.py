"""A user's settings of one client."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from psyche.evals.tasks import Task
from psyche.network.limits import NetworkLimits
from psyche.storage.port import StorageOptions
from psyche.wire.peer_address import PeerAddress
from psyche.wire.trainer import Devices

KEY_NAME: Final = "identity.key"  # in a client's data folder
_USUAL = NetworkLimits()


@dataclass(slots=True, kw_only=True)
class ClientSettings:
    """Settings of `psyche client train`.

    `local_root` is the root of the run's `Local` paths (model, data). `data_dir` holds
    snapshots, the replay store and part files; a client that restarts finds its resume snapshot there.
    `checkpoint_dir` is where the trained model is written for the user; a client reads nothing from there.
    """

    run_id: str
    data_dir: Path
    identity_path: Path | None = None  # None: data_dir / KEY_NAME, made on first use
    server_key: bytes | None = None  # expected public key of the server that serves the data; None: any
    bind_ip: str = "0.0.0.0"  # noqa: S104  # peers must be able to reach a participant
    bind_port: int = 0
    bootstrap: tuple[PeerAddress, ...] = ()  # take precedence over record and address book for these keys
    local_root: Path = field(default_factory=Path.cwd)
    data_manifest: str | None = None  # file with the manifest of the data, or "none"; None: below `local_root` (D1)
    device: str = "auto"
    data_parallelism: int = 1
    tensor_parallelism: int = 1
    rendezvous: str = ""  # HOST:PORT where other machines' devices join; "": all are on this machine
    threads: int = 0  # of torch; 0: all cores
    micro_batch_size: int = 1  # 0: the largest that fits into memory
    is_memory_checked: bool = False  # whether training with these settings is known to fit
    activation_checkpointing: bool = False
    offload: bool = False
    checkpoint_dir: Path | None = None
    keep_steps: int = 3
    share_checkpoints: bool = False  # all clients can read checkpoint_dir (S10)
    hub_repo: str = ""  # each epoch's weights go there and on record (S10)
    gcs_bucket: str = ""  # likewise, exclusive with `hub_repo`
    gcs_prefix: str = ""  # folder there; "": named after the run
    upload_dtype: str = "float32"  # another one goes to a branch of its name; on record is float32
    skip_checkpoint_upload: bool = False
    delete_old_steps: bool = True  # beyond `keep_steps`, of exports and in a bucket
    export: bool = True
    export_dtype: str = "bfloat16"
    node_name: str = ""
    distro_dir: Path | None = None  # --write-distro-data: payloads are kept here
    write_gradients: Literal["own", "all"] = "own"  # which ones
    optim_stats_steps: int = 0  # between two rounds whose tensors are measured; 0: never
    replay_quota_bytes: int = 8 << 30
    eval_tasks: tuple[Task, ...] = ()  # that this client measures the certified weights with, in idle time
    eval_fewshot: int = 0
    eval_seed: int = 42
    eval_task_max_docs: int | None = None
    eval_task_data: Path | None = None  # None: the Hub's
    prompt_task: bool = False  # the certified weights go on with a prompt
    keep_evidence: int = 32  # files of what members were judged by (V13); 0: none
    max_concurrent_downloads: int = _USUAL.fetches
    max_concurrent_parameter_requests: int = _USUAL.blobs_in_flight
    storage: StorageOptions = field(default_factory=StorageOptions)  # of remote data and weights
    stop_grace_s: float = 4.0  # F26: Ctrl-C ends within five seconds

    @property
    def devices(self) -> dict[str, Any]:
        """The fields of `wire.trainer.Devices`, as every request to the trainer repeats them."""
        return {name: getattr(self, name) for name in Devices.__struct_fields__}

    @property
    def has_evals(self) -> bool:
        return bool(self.eval_tasks) or self.prompt_task

    @property
    def ranks(self) -> int:
        return self.data_parallelism * self.tensor_parallelism

    @property
    def snapshots_dir(self) -> Path:
        return self.data_dir / "resume"

    @property
    def models_dir(self) -> Path:
        """The folder of the exports of a client whose user named none; no other client writes there."""
        return self.data_dir / "models"
