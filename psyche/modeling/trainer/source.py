"""What a trainer loads from, and whether training it fits into memory; no values are read before that is known."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformers.modeling_utils import PreTrainedModel

from psyche.core.state.state import DataType
from psyche.modeling.architecture import Blueprint, read_blueprint
from psyche.modeling.checkpoint import load_snapshot
from psyche.modeling.device import list_devices, select_device
from psyche.modeling.model import load_model
from psyche.modeling.snapshot import (
    MODEL_NAME,
    SnapshotInfo,
    read_model_files,
    read_snapshot_files,
    read_snapshot_info,
)
from psyche.modeling.trainer.memory import Fitting, Step, make_setup
from psyche.wire.trainer import LoadRequest, MemoryReply

Beat = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Source:
    """What is loaded from: the blueprint is read, the values are not."""

    blueprint: Blueprint
    info: SnapshotInfo | None
    files: dict[str, bytes]
    path: Path

    def load(self, beat: Beat) -> PreTrainedModel:
        if self.info is None:
            return load_model(self.path, self.blueprint)
        return load_snapshot(self.info, beat, self.blueprint)


def open_source(request: LoadRequest) -> Source:
    path = Path(request.path)
    info = read_snapshot_info(path) if request.is_snapshot else None
    files = read_model_files(path) if info is None else read_snapshot_files(info)
    return Source(read_source_blueprint(request), info, files, path)


def read_source_blueprint(request: LoadRequest) -> Blueprint:
    path = Path(request.path) / MODEL_NAME if request.is_snapshot else Path(request.path)
    return read_blueprint(path, request.model.max_seq_len)


def fit_memory(request: LoadRequest, blueprint: Blueprint, beat: Beat, *, must_fit: bool = True) -> MemoryReply:
    step = Step(
        config=blueprint.config, optimizer=request.model.optimizer,
        sequence_length=request.model.max_seq_len,
        has_labels=request.model.data_type is DataType.FINETUNING, verifies=request.verifies,
    )  # fmt: skip
    setup = make_setup(request)
    device = select_device(request.device) if request.ranks == 1 else list_devices(request.device)[0]
    fitting = Fitting(step, device, beat, is_shared=device.type == "cpu" and not request.rendezvous)
    return fitting.fit(setup, -(-request.batch_size // request.data_parallelism)) if must_fit else fitting.reply(setup)
