"""A causal language model from its config.json alone: built by transformers on the meta device, so without values.

A model trains because it passes the rules AR1 to AR7; no list of families stands here. AR4 is checked where files are
read (`model_check`), AR6 where values are (`trainer.trial`).
"""

import difflib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, AutoModelForCausalLM
from transformers.utils import logging

from psyche.errors import ConfigError, UnusableModelError
from psyche.modeling.model_config import Dims, check_model_settings, read_model_fields
from psyche.modeling.snapshot import CONFIG_NAME

MAX_TENSORS: Final = 300_000  # what a manifest holds
LONGER_ROPES: Final = frozenset({"default", "linear", "llama3"})  # those that depend on no trained length
_RANDOM: Final = ("drop", "jitter", "noise")  # in names of fields that make a forward pass random
_NOTED: Final = frozenset({"model_type", "architectures", "torch_dtype", "dtype", "transformers_version"})
# What the trainer chooses by itself; names of implementations may lead to code on the Hub.
_CHOSEN: Final = ("implementation", "fusion_config", "kernel_config", "distributed_config", "transformers_weights")


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A model that a run can train, without values.

    `config` is what the trainer builds it with: nothing random (AR5), and long enough for the run (AR7); `on_record` is
    what config.json says. `parameters` and `buffers` (the persistent ones) are sorted by name, as transformers names
    them in memory, tied ones once. `positions` is the longest sequence, None: no limit.
    """

    config: PreTrainedConfig
    on_record: PreTrainedConfig
    model: PreTrainedModel  # on the meta device
    parameters: Mapping[str, Dims]
    buffers: Mapping[str, Dims]
    vocab_size: int
    positions: int | None
    notices: tuple[str, ...]

    @property
    def tensors(self) -> dict[str, Dims]:
        """All that files, manifest and digest list (S2)."""
        return dict(sorted({**self.parameters, **self.buffers}.items()))


def read_blueprint(path: Path, max_seq_len: int = 0) -> Blueprint:
    """Build a model from a config file, JSON or TOML, or from the config.json of a folder; values are not read.

    Args:
        path: the file or folder.
        max_seq_len: the run's; 0: none is to be fitted.

    Raises:
        ConfigError: a rule of AR1 to AR7 does not hold; the message names it, the key or tensor, and the way out.
    """
    path = path / CONFIG_NAME if path.is_dir() else path
    settings = read_model_fields(path)
    check_model_settings(path, settings)
    try:
        return _build_blueprint(path, settings, max_seq_len)
    except ConfigError:
        raise
    except Exception as error:  # transformers raises errors of several libraries for bad values
        raise ConfigError(f"model config {path}: AR1: transformers cannot build the model: {error}") from error


def _build_blueprint(path: Path, settings: Mapping[str, Any], max_seq_len: int) -> Blueprint:
    on_record = _build_config(path, settings)
    config = deepcopy(on_record)
    notices = [f"{name} is 0 in the trainer" for name in _switch_off(config, "")]
    model = build_meta(config)
    parameters, buffers = _list_parameters(path, model), _list_buffers(path, model)
    if max_seq_len > _get_positions(config, max_seq_len):
        _lengthen(path, config, max_seq_len)
        notices.append(f"max_position_embeddings is {max_seq_len} in the trainer")
        model = build_meta(config)
        changed = [name for name, dims in _list_parameters(path, model).items() if parameters[name] != dims]
        if changed or _list_buffers(path, model) != buffers:
            raise _refuse_length(path, settings, f"the shape of {changed[0] if changed else 'a buffer'} follows it")
    vocab_size = config.get_text_config().vocab_size
    positions = getattr(config, "max_position_embeddings", None)
    return Blueprint(config, on_record, model, parameters, buffers, vocab_size, positions, tuple(notices))


def _build_config(path: Path, settings: Mapping[str, Any]) -> PreTrainedConfig:
    """AR1: the config of a causal language model that transformers knows."""
    model_type = settings["model_type"]
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(model_type, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, n=1)
        hint = f"did you mean {near[0]!r}? Else " if near else ""
        raise ConfigError(
            f"model config {path}: AR1: model_type {model_type!r} is no causal language model of transformers "
            f"{version('transformers')}; {hint}take another model, or another version of transformers"
        )
    config_class = CONFIG_MAPPING[model_type]
    # A file written by transformers may have fields of other versions; in one written by hand they are mistakes.
    if "transformers_version" not in settings:
        _check_fields(path, settings, config_class)
    config = config_class(**{key: value for key, value in _drop_chosen(settings).items() if key not in _NOTED})
    if config.is_encoder_decoder:
        raise ConfigError(f"model config {path}: AR1: is_encoder_decoder is true; take a model that only decodes")
    if getattr(config, "output_router_logits", False) and not hasattr(config, "router_aux_loss_coef"):
        raise ConfigError(f"model config {path}: AR1: output_router_logits needs router_aux_loss_coef")
    return config


def _check_fields(path: Path, settings: Mapping[str, Any], config_class: type[PreTrainedConfig]) -> None:
    known = {*inspect.signature(config_class).parameters, *inspect.signature(PreTrainedConfig).parameters}
    known |= {*config_class.attribute_map, *_NOTED, "rope_theta", "rope_scaling", "head_dim"}
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"model config {path}: unknown field {key!r}{hint}")


def _drop_chosen(value: Any) -> Any:
    """A value without what the trainer chooses, and with numbers that JSON has no word for."""
    if isinstance(value, list):
        return [_drop_chosen(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__float__"}:
        return float(value["__float__"])
    return {key: _drop_chosen(one) for key, one in value.items() if not any(word in key for word in _CHOSEN)}


def _switch_off(config: PreTrainedConfig, place: str) -> Iterator[str]:
    """AR5: set whatever would make a forward pass random to 0; yield its name and what it was."""
    for key, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            yield from _switch_off(value, f"{place}{key}.")
        elif isinstance(value, int | float) and value > 0 and any(word in key for word in _RANDOM):
            setattr(config, key, type(value)(0))
            yield f"{place}{key} ({value} in config.json)"


def _get_positions(config: PreTrainedConfig, default: int) -> int:
    positions = getattr(config, "max_position_embeddings", None)
    return default if positions is None else positions


def _lengthen(path: Path, config: PreTrainedConfig, max_seq_len: int) -> None:
    """AR7: give the model more positions, as far as its position encoding is computed for any place."""
    for rope in _list_ropes(getattr(config, "rope_parameters", None) or {}):
        if rope not in LONGER_ROPES:
            raise _refuse_length(path, config.to_dict(), f"rope type {rope!r} was made for its length")
    config.max_position_embeddings = max_seq_len


def _list_ropes(parameters: Mapping[str, Any]) -> Iterator[str]:
    if "rope_type" in parameters:
        yield parameters["rope_type"]
    for value in parameters.values():
        if isinstance(value, Mapping):
            yield from _list_ropes(value)


def _refuse_length(path: Path, settings: Mapping[str, Any], why: str) -> ConfigError:
    positions = next((settings[key] for key in ("max_position_embeddings", "n_positions") if key in settings), "less")
    return ConfigError(
        f"model config {path}: AR7: max_position_embeddings is {positions}, below the run's max_seq_len, and {why}; "
        f"set max_seq_len to {positions} or less, or take a model for longer sequences"
    )


def _list_parameters(path: Path, model: PreTrainedModel) -> dict[str, Dims]:
    """AR2: what is trained."""
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point() or not parameter.requires_grad or not parameter.numel():
            what = "is empty" if not parameter.numel() else f"is {parameter.dtype}, or is not trained"
            raise ConfigError(f"model config {path}: AR2: {name} {what}; every parameter must be trained: take another")
    return dict(sorted((name, tuple(one.shape)) for name, one in model.named_parameters()))


def _list_buffers(path: Path, model: PreTrainedModel) -> dict[str, Dims]:
    """AR3: the persistent buffers."""
    kept = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in sorted(model.named_buffers()) if name in kept}
    for name, buffer in buffers.items():
        if not buffer.is_floating_point():
            raise ConfigError(f"model config {path}: AR3: the buffer {name} is {buffer.dtype}; take a model without it")
    return {name: tuple(buffer.shape) for name, buffer in buffers.items()}


def build_meta(config: PreTrainedConfig) -> PreTrainedModel:
    """The model of a config on the meta device."""
    with torch.device("meta"), _counting_tensors(), quiet():
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@contextmanager
def _counting_tensors() -> Iterator[None]:
    """Refuse a model of more tensors than a manifest holds, before they take memory."""
    count = 0

    def register(_module: object, name: str, _parameter: object) -> None:
        nonlocal count
        count += 1
        if count > MAX_TENSORS:
            raise ConfigError(f"AR2: the model has more than {MAX_TENSORS:,} tensors ({name} …); it needs fewer layers")

    handle = register_module_parameter_registration_hook(register)
    try:
        yield
    finally:
        handle.remove()


def build_random(blueprint: Blueprint, *, seed: int = 0) -> PreTrainedModel:
    """An fp32 model with random values on the CPU; torch's global generator is not changed."""
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(deepcopy(blueprint.on_record), dtype=torch.float32)


def build_loaded(blueprint: Blueprint, tensors: dict[str, torch.Tensor], place: str) -> PreTrainedModel:
    """An fp32 model with these values on the CPU: it takes the tensors over, so that there is one copy of them.

    Raises:
        UnusableModelError: names or shapes are not exactly those of the blueprint (AR4).
    """
    return _load(blueprint, place, None, config=blueprint.config, state_dict=tensors)


def build_converted(blueprint: Blueprint, folder: Path) -> PreTrainedModel:
    """An fp32 model from files with whatever names transformers reads; nothing is fetched, no code is run."""
    config = deepcopy(blueprint.on_record)
    return _load(blueprint, str(folder), folder, config=config, use_safetensors=True, local_files_only=True)


def _load(blueprint: Blueprint, place: str, source: Path | None, **how: object) -> PreTrainedModel:
    try:
        with quiet():
            model, report = cast("Any", type(blueprint.model)).from_pretrained(
                source, dtype=torch.float32, output_loading_info=True, **how
            )
    except Exception as error:  # transformers raises errors of many kinds for tensors that do not fit
        raise UnusableModelError(f"model {place}: AR4: cannot be loaded: {error}") from error
    for kind, found in report.items():
        if found:
            raise UnusableModelError(f"model {place}: AR4: {kind.replace('_', ' ')}: {sorted(map(str, found))[:3]}")
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Hide transformers' progress bars, which would garble ours."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
