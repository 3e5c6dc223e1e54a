"""Llama models through transformers: made from a config, loaded from a folder; safetensors only, no remote code."""

import difflib
import inspect
import json
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import nn
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from psyche.errors import ConfigError, TrainerError
from psyche.modeling.snapshot import CONFIG_NAME

WEIGHTS_PATTERN: Final = "*.safetensors"
_REFUSED_KEYS: Final = ("auto_map", "quantization_config")  # remote code; weights that are not plain numbers
_NOTED_KEYS: Final = frozenset({"model_type", "architectures", "torch_dtype", "dtype", "transformers_version"})
# What transformers writes into a config beside the arguments of LlamaConfig.
_LOAD_DTYPE: Final = torch.float32  # masters are fp32 whatever the file holds
_FP32_HOLDS: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"model config {path}: {error.strerror}") from error
    try:
        settings = tomllib.loads(raw.decode()) if path.suffix == ".toml" else json.loads(raw)
    except ValueError as error:  # both decoders and UTF-8 raise kinds of it
        raise ConfigError(f"model config {path}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"model config {path}: must be a table of settings")
    return settings


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    for key in _REFUSED_KEYS:
        if settings.get(key):
            raise ConfigError(f"model config {path}: {key} is not supported (plain Llama weights, no code)")
    model_type = settings.get("model_type", "llama")
    if model_type != "llama":
        raise ConfigError(f"model config {path}: model_type is {model_type!r}, only 'llama' is supported")
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        value = settings.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"model config {path}: {key} is {value!r}, must be a whole number above 0")


def read_model_config(path: Path) -> LlamaConfig:
    """Read a `LlamaConfig` from a JSON or TOML file of llama fields, or from a model folder.

    Raises:
        ConfigError: unreadable, another architecture, remote code, or an unknown field (which names the nearest).
    """
    path = path / CONFIG_NAME if path.is_dir() else path
    settings = _read_settings(path)
    _check_settings(path, settings)
    known = set(inspect.signature(LlamaConfig).parameters) | _NOTED_KEYS | {"rope_theta", "rope_scaling", "head_dim"}
    # A file that transformers wrote may carry fields of its other versions; one that a person wrote may not.
    if "transformers_version" not in settings:
        for key in settings:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                raise ConfigError(f"model config {path}: unknown field {key!r}" + (f"; {near[0]!r}?" if near else ""))
    try:
        return LlamaConfig(**{k: v for k, v in settings.items() if k not in _NOTED_KEYS})
    except Exception as error:  # transformers raises errors of several libraries for bad values
        raise ConfigError(f"model config {path}: {error}") from error


def build_model(config: LlamaConfig, *, seed: int = 0) -> LlamaForCausalLM:
    """A fresh fp32 model on the CPU; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        return model.float()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own progress bars, which would break ours."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def init_model(config_path: Path, out_dir: Path, seed: int, *, extra_files: Sequence[Path] = ()) -> int:
    """Make first weights once and write them as a Hugging Face folder in fp32.

    Everybody in a run loads these files: weights are never made from a seed by each client, for
    kernels differ.

    Args:
        config_path: JSON or TOML with llama fields.
        out_dir: must not exist, or be empty; appears whole or not at all.
        seed: of the random weights.
        extra_files: copied beside the model (a tokenizer).

    Returns:
        The number of trainable parameters.

    Raises:
        ConfigError: a bad config, or `out_dir` is not empty.
    """
    if out_dir.exists() and any(out_dir.iterdir()):
        raise ConfigError(f"model folder {out_dir}: not empty; choose another or remove it")
    model = build_model(read_model_config(config_path), seed=seed)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out_dir.name}.tmp-", dir=out_dir.parent) as temporary:
        folder = Path(temporary) / "model"
        with _quiet():
            model.save_pretrained(folder)
        for file in extra_files:
            shutil.copyfile(file, folder / file.name)
        folder.rename(out_dir)  # an empty folder is replaced
    return count_parameters(get_parameters(model))


def _check_folder(folder: Path) -> None:
    if not (folder / CONFIG_NAME).is_file():
        raise TrainerError(f"model folder {folder}: no {CONFIG_NAME}; make one with `psyche model init`")
    if not any(folder.glob(WEIGHTS_PATTERN)):
        raise TrainerError(f"model folder {folder}: no .safetensors file (other formats can carry code, none is read)")


def load_model(folder: Path) -> LlamaForCausalLM:
    """Load a local Hugging Face folder as fp32 on the CPU.

    Raises:
        ConfigError: the config is not a plain Llama's.
        TrainerError: files are missing or broken, or do not hold exactly the model's tensors.
    """
    _check_folder(folder)
    config = read_model_config(folder)
    try:
        with _quiet():
            model, report = cast("Any", LlamaForCausalLM).from_pretrained(
                folder, config=config, dtype=_LOAD_DTYPE, use_safetensors=True, local_files_only=True,
                output_loading_info=True,
            )  # fmt: skip
    except Exception as error:  # safetensors and transformers raise errors of many kinds for broken files
        raise TrainerError(f"model folder {folder}: cannot be loaded: {error}") from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if report.get(kind):
            raise TrainerError(f"model folder {folder}: {kind.replace('_', ' ')}: {sorted(map(str, report[kind]))[:3]}")
    return model


def get_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable fp32 masters in ascending name order, tied ones once (the order of plan and manifest)."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return dict(sorted(named.items()))


def get_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """All that the model's state holds, in ascending name order, tied tensors once: what the manifest lists (S2).

    Parameters, trained or not, and persistent buffers. Other buffers follow from the config.

    Raises:
        TrainerError: a tensor that fp32 cannot hold exactly.
    """
    kept = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    tensors: dict[str, torch.Tensor] = {**dict(model.named_parameters()), **buffers}
    for name, tensor in tensors.items():
        if tensor.dtype not in _FP32_HOLDS:
            raise TrainerError(f"model: {name} has values of {tensor.dtype}, which fp32 cannot hold exactly")
    return dict(sorted(tensors.items()))


def get_shapes(parameters: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """Names and dimensions, which is all that a transform plan is made from."""
    return {name: tuple(p.shape) for name, p in parameters.items()}


def count_parameters(parameters: Mapping[str, torch.Tensor]) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in parameters.values())
