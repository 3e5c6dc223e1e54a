"""The workload of a run's model: the size of its payloads, and the length of a sample.

The simulated model is small; its payloads stand for those of the real model. Their size follows from the
transform plan that the real trainer makes for the real tensors: exactly if transformers says what shapes a
model.json or config.json leads to, else estimated from the number of parameters alone.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psyche.config.load import LoadedRun
from psyche.core.encoding.plan import compute_run_plan, get_payload_bytes
from psyche.core.state.state import CheckpointKind, Model, Optimizer, OptimizerKind
from psyche.errors import ConfigError
from psyche.modeling.model_check import check_model
from psyche.modeling.trainer.describe import describe_model, predict_memory
from psyche.telemetry.text import format_bytes, format_count
from psyche.wire.trainer import OFFLOADED

CONFIG_NAMES: Final = ("config.json", "model.json", "model.toml")
LARGEST: Final = 10**13  # parameters; larger numbers are typing errors
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Workload:
    """The sizes of a model in training."""

    parameters: int  # of the model; 0 if unknown
    payload_bytes: int  # size of every member's payload in every round
    sequence_tokens: int  # tokens of a sample
    source: str  # where the sizes come from, in words

    @property
    def weights_bytes(self) -> int:
        """Size of the weights as clients store and send them: float32."""
        return 4 * self.parameters


def read_shapes(path: Path) -> Shapes:
    """The trainable tensors of a model, as the trainer names and shapes them; without transformers, as its files do."""
    if path.is_dir():
        path = next((path / name for name in CONFIG_NAMES if (path / name).is_file()), path)
    if (described := describe_model(path)) is not None:
        return described.parameters
    if tensors := check_model(path.parent).tensors:
        return {name: tuple(dims) for name, dims in tensors.items()}
    raise ConfigError(
        f"{path}: transformers, which knows the tensors of such a model, is not installed -> --parameters 1e9, or "
        "`pip install 'psyche-train[train]'`"
    )


def compute_even_shapes(parameters: int, chunk: int) -> Shapes:
    """Shapes of matrices that divide evenly into chunks, as nearly all of a language model's do."""
    return {"weights": (max(1, -(-parameters // chunk**2)) * chunk, chunk)}


def count_elements(shapes: Shapes) -> int:
    return sum(math.prod(dims) for dims in shapes.values())


def compute_payload_bytes(shapes: Shapes, optimizer: Optimizer) -> int:
    if optimizer.kind not in (OptimizerKind.DISTRO, OptimizerKind.LOCAL_STEPS):
        raise ConfigError(
            f"model.LLM.optimizer: {optimizer.kind.name} sends no payloads; Distro and LocalSteps can be simulated"
        )
    return get_payload_bytes(compute_run_plan(shapes, optimizer))


def compute_workload(run: LoadedRun, *, parameters: int = 0, model_config: Path | None = None) -> Workload:
    """The workload of a run: from `model_config` or `parameters` if given, else from a file beside its run.toml."""
    if parameters < 0 or parameters > LARGEST:
        raise ConfigError(f"--parameters {parameters}: must be a number of parameters up to {format_count(LARGEST)}")
    path = model_config or (None if parameters else find_model_config(run))
    if path is not None:
        shapes, source = read_shapes(path), str(path)
    else:
        parameters = parameters or run.metadata.num_parameters
        if not parameters:
            raise ConfigError(
                f"{run.path}: the size of the model is not known: there is no {' or '.join(CONFIG_NAMES)} beside it "
                "or in its checkpoint's folder -> --model config.json, or --parameters 1e9, or metadata.num_parameters"
            )
        shapes, source = compute_even_shapes(parameters, run.model.optimizer.compression_chunk), "parameters alone"
    return build_workload(run.model, shapes, source, parameters or count_elements(shapes))


def describe_memory(run: LoadedRun, model_config: Path | None = None) -> str:
    """What training takes of a client's memory, in words; empty if the model or transformers is not here."""
    path = model_config or find_model_config(run)
    if path is None:
        return ""
    if path.is_dir():
        path = next((path / name for name in CONFIG_NAMES if (path / name).is_file()), path)
    reply = predict_memory(path, run.model)
    if reply is None:
        return ""
    *others, (name, most) = reply.parts.items()
    parts = f"{format_bytes(sum(size for _, size in others))} of the model, {format_bytes(most)} of {name}"
    needed = format_bytes(sum(reply.parts.values()))
    moved = format_bytes(sum(reply.parts.get(name, 0) for name in OFFLOADED))
    return (
        f"training takes {needed} of a client's memory with --micro-batch-size 1 on a CPU ({parts}); of a GPU's, "
        f"--offload leaves about {moved} less"
    )


def build_workload(model: Model, shapes: Shapes, source: str, parameters: int) -> Workload:
    return Workload(parameters, compute_payload_bytes(shapes, model.optimizer), model.max_seq_len, source)


def find_model_config(run: LoadedRun) -> Path | None:
    folders = [run.folder]
    checkpoint = run.model.checkpoint
    if checkpoint.kind is CheckpointKind.LOCAL:
        folders.insert(0, run.resolve(checkpoint.name))
    return next((f / name for f in folders for name in CONFIG_NAMES if (f / name).is_file()), None)
