"""Llama models of transformers, built from a config or loaded from a folder; only safetensors, no remote code."""

import difflib
import inspect
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from psyche.durable import naming
from psyche.errors import ConfigError, TrainerError
from psyche.modeling.model_config import check_model_settings, read_model_fields
from psyche.modeling.snapshot import CONFIG_NAME

WEIGHTS_PATTERN: Final = "*.safetensors"
_NOTED_KEYS: Final = frozenset({"model_type", "architectures", "torch_dtype", "dtype", "transformers_version"})
# Keys that transformers writes into a config in addition to the arguments of LlamaConfig.
_LOAD_DTYPE: Final = torch.float32  # masters are fp32, whatever the dtype in the file
_FP32_HOLDS: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})


def read_model_config(path: Path) -> LlamaConfig:
    """Read a `LlamaConfig` from a JSON or TOML file of llama fields, or from a model folder."""
    path = path / CONFIG_NAME if path.is_dir() else path
    settings = read_model_fields(path)
    check_model_settings(path, settings)
    known = set(inspect.signature(LlamaConfig).parameters) | _NOTED_KEYS | {"rope_theta", "rope_scaling", "head_dim"}
    # A file written by transformers may have fields of other versions; in one written by hand they are mistakes.
    if "transformers_version" not in settings:
        for key in settings:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"model config {path}: unknown field {key!r}{hint}")
    try:
        return LlamaConfig(**{k: v for k, v in settings.items() if k not in _NOTED_KEYS})
    except Exception as error:  # transformers raises errors of several libraries for bad values
        raise ConfigError(f"model config {path}: {error}") from error


def build_random_model(config: LlamaConfig, *, seed: int = 0) -> LlamaForCausalLM:
    """Build an fp32 model with random weights on the CPU; torch's global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        return model.float()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide transformers' progress bars, which would garble ours."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def init_model(config_path: Path, out_dir: Path, seed: int, *, extra_files: Sequence[Path] = ()) -> int:
    """Create a run's first weights and write them as a Hugging Face folder in fp32; return the number of parameters.

    All clients of a run load these files. Clients never create weights from a seed, because kernels differ between
    machines. `out_dir` must be missing or empty; `extra_files`, such as a tokenizer, are copied beside the model.
    """
    if out_dir.exists() and any(out_dir.iterdir()):
        raise ConfigError(f"model folder {out_dir}: not empty; choose another or remove it")
    config = read_model_config(config_path)
    for file in extra_files:
        if file.name == "tokenizer.json":
            _check_tokenizer(file, config.vocab_size)
    model = build_random_model(config, seed=seed)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out_dir.name}.tmp-", dir=out_dir.parent) as temporary:
        folder = Path(temporary) / "model"
        try:
            with _quiet(), naming(out_dir):
                model.save_pretrained(folder)
        except SafetensorError as error:  # in which the library wraps a full disk
            raise TrainerError(f"model folder {out_dir}: cannot be written: {error}") from error
        for file in extra_files:
            shutil.copyfile(file, folder / file.name)
        folder.rename(out_dir)  # replaces an empty folder
    return count_parameters(get_parameters(model))


def _check_tokenizer(file: Path, vocab_size: int) -> None:
    from tokenizers import Tokenizer

    try:
        ids = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True).values()
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"{file}: is no tokenizer that can be loaded: {error}") from error
    if (needed := max(ids, default=-1) + 1) > vocab_size:
        raise ConfigError(
            f"{file}: has {needed} token ids, but the model's vocab_size is {vocab_size}; "
            f"set vocab_size to {needed} or more, or take another tokenizer"
        )


def _check_folder(folder: Path) -> None:
    if not (folder / CONFIG_NAME).is_file():
        raise TrainerError(f"model folder {folder}: no {CONFIG_NAME}; make one with `psyche model init`")
    if not any(folder.glob(WEIGHTS_PATTERN)):
        raise TrainerError(
            f"model folder {folder}: no .safetensors file (other formats can carry code and are never read)"
        )


def load_model(folder: Path) -> LlamaForCausalLM:
    """Load a local Hugging Face folder as fp32 on the CPU."""
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
