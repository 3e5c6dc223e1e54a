"""The values of a model: first weights, loading from a folder's files, and what is trained; no remote code."""

import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from psyche.durable import naming
from psyche.errors import ConfigError, DataError, TrainerError, UnusableModelError
from psyche.modeling.architecture import (
    Blueprint,
    build_converted,
    build_loaded,
    build_random,
    quiet,
    read_blueprint,
)
from psyche.modeling.first_weights import StoredTensor, read_stored_tensors, read_values
from psyche.modeling.model_check import describe_missing, find_differences
from psyche.modeling.model_config import Dims
from psyche.modeling.model_files import FolderFiles
from psyche.modeling.snapshot import CONFIG_NAME, read_model_files
from psyche.wire.tokenizer_files import open_tokenizer

_FP32_HOLDS: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})


def init_model(config_path: Path, out_dir: Path, seed: int, *, extra_files: Sequence[Path] = ()) -> int:
    """Create a run's first weights and write them as a Hugging Face folder in fp32; return the number of parameters.

    All clients of a run load these files. Clients never create weights from a seed, because kernels differ between
    machines. `out_dir` must be missing or empty; `extra_files`, such as a tokenizer, are copied beside the model.
    """
    if out_dir.exists() and any(out_dir.iterdir()):
        raise ConfigError(f"model folder {out_dir}: not empty; choose another or remove it")
    blueprint = read_blueprint(config_path)
    for file in extra_files:
        if file.name == "tokenizer.json":
            _check_tokenizer(file, blueprint.vocab_size)
    write_model(build_random(blueprint, seed=seed), out_dir, extra_files)
    return sum(map(math.prod, blueprint.tensors.values()))


def write_model(model: PreTrainedModel, out_dir: Path, extra_files: Sequence[Path] = ()) -> None:
    """Write a run's model: a Hugging Face folder with the names of memory (AR4); it appears whole or not at all."""
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out_dir.name}.tmp-", dir=out_dir.parent) as temporary:
        folder = Path(temporary) / "model"
        try:
            with quiet(), naming(out_dir):
                model.save_pretrained(folder, save_original_format=False)
        except SafetensorError as error:  # in which the library wraps a full disk
            raise TrainerError(f"model folder {out_dir}: cannot be written: {error}") from error
        for file in extra_files:
            shutil.copyfile(file, folder / file.name)
        folder.rename(out_dir)  # replaces an empty folder


def convert_model(source: Path, out_dir: Path) -> int:
    """Write a model that transformers reads as one that a run can load (AR4); return the number of parameters.

    The files get the names of memory, and fp32, which holds all values exactly.
    """
    if out_dir.exists() and any(out_dir.iterdir()):
        raise ConfigError(f"model folder {out_dir}: not empty; choose another or remove it")
    blueprint = read_blueprint(source)
    model = build_converted(blueprint, source)
    if wrong := find_differences(str(source), get_shapes(get_tensors(model)), blueprint.tensors, source / CONFIG_NAME):
        raise TrainerError(wrong)
    written = {CONFIG_NAME, "generation_config.json"}
    small = [source / name for name in sorted(read_model_files(source).keys() - written)]
    write_model(model, out_dir, small)
    return count_parameters(get_tensors(model))


def _check_tokenizer(file: Path, vocab_size: int) -> None:
    try:
        ids = open_tokenizer(file, file.read_bytes()).get_vocab(with_added_tokens=True).values()
    except DataError as error:
        raise ConfigError(str(error)) from error
    if (needed := max(ids, default=-1) + 1) > vocab_size:
        raise ConfigError(
            f"{file}: has {needed} token ids, but the model's vocab_size is {vocab_size}; "
            f"set vocab_size to {needed} or more, or take another tokenizer"
        )


def load_model(folder: Path, blueprint: Blueprint | None = None) -> PreTrainedModel:
    """Load a local Hugging Face folder as fp32 on the CPU; nothing but the model itself is held in memory.

    Raises:
        TrainerError: files are missing or broken.
        UnusableModelError: a value is not finite, or names and shapes are not those of the model (AR4).
    """
    files = FolderFiles(folder)
    blueprint = blueprint or read_blueprint(folder)
    names = files.get_sizes()
    if not any(name.endswith(".safetensors") for name in names):
        raise TrainerError(f"model folder {folder}: {describe_missing(names)}")
    stored = read_stored_tensors(files)
    found = {name: tensor.dims for name, tensor in stored.items()}
    if wrong := find_differences(str(folder), found, blueprint.tensors, folder / CONFIG_NAME):
        raise UnusableModelError(wrong)
    return build_loaded(blueprint, {n: _read_tensor(files, n, t) for n, t in sorted(stored.items())}, str(folder))


def _read_tensor(files: FolderFiles, name: str, stored: StoredTensor) -> torch.Tensor:
    return fill_tensor(stored.dims, read_values(files, name, stored))


def fill_tensor(dims: Dims, parts: Iterable[bytes]) -> torch.Tensor:
    """A tensor from parts of its fp32 little-endian bytes, of which one at a time is held beside it."""
    tensor = torch.empty(dims, dtype=torch.float32)
    raw = memoryview(tensor.reshape(-1).numpy().data).cast("B")
    end = 0
    for part in parts:
        start, end = end, end + len(part)
        raw[start:end] = part
    return tensor


def enable_checkpointing(model: PreTrainedModel) -> None:
    """Compute a layer's activations again in the backward pass instead of keeping them; gradients keep their bits.

    Raises:
        ConfigError: transformers cannot do that with models of this kind.
    """
    if not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"--activation-checkpointing: transformers has none for {model.config.model_type}; leave it out, and "
            "take a smaller --micro-batch-size"
        )
    # The second is its name in the oldest version of transformers that is supported.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def get_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable fp32 masters, sorted by name (the order of plan and manifest), tied ones once."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return dict(sorted(named.items()))


def get_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """All tensors that the manifest lists, sorted by name, tied ones once (S2).

    These are all parameters, trained or not, and the persistent buffers. The config determines other buffers.

    Raises:
        TrainerError: fp32 cannot hold a tensor's values exactly.
    """
    kept = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    tensors: dict[str, torch.Tensor] = {**dict(model.named_parameters()), **buffers}
    for name, tensor in tensors.items():
        if tensor.dtype not in _FP32_HOLDS:
            raise TrainerError(f"model: {name} has values of {tensor.dtype}, which fp32 cannot hold exactly")
    return dict(sorted(tensors.items()))


def get_shapes(parameters: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in parameters.items()}


def count_parameters(parameters: Mapping[str, torch.Tensor]) -> int:
    return sum(p.numel() for p in parameters.values())
