"""What the config.json of a model says, read without torch: whether a run may train it at all (AR1)."""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from psyche.durable import read_file
from psyche.errors import ConfigError
from psyche.telemetry.text import describe_parse_failure, show_value

MAX_CONFIG_BYTES: Final = 1 << 20
_REFUSED_KEYS: Final = {
    "auto_map": "code is never run; take a model that transformers itself has",
    "quantization_config": "quantized weights cannot be trained; take the model as it was before",
    "is_encoder_decoder": "take a model that only decodes",
}
_MAX_NUMBER: Final = (1 << 31) - 1
_MAX_LAYERS: Final = 10_000  # transformers makes lists as long before anything can be counted

Dims = tuple[int, ...]


def read_model_fields(path: Path) -> dict[str, Any]:
    try:
        return parse_model_fields(path, read_file(path, MAX_CONFIG_BYTES))
    except OSError as error:
        raise ConfigError(f"model config {path}: {error.strerror}") from error


def parse_model_fields(path: Path | str, raw: bytes) -> dict[str, Any]:
    kind = "TOML" if str(path).endswith(".toml") else "JSON"
    try:
        settings = tomllib.loads(raw.decode()) if kind == "TOML" else json.loads(raw)
    except (ValueError, RecursionError) as error:  # ValueError: the base class of the errors of JSON, TOML and UTF-8
        raise ConfigError(f"model config {path}: is not {kind}: {describe_parse_failure(error)}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"model config {path}: must be a table of settings")
    return settings


def check_model_settings(path: Path | str, settings: Mapping[str, Any]) -> None:
    """Check what can be known without transformers of AR1, and that numbers are in a usual range."""
    if not isinstance(settings.get("model_type"), str):
        raise ConfigError(f"model config {path}: AR1: model_type is missing; name the kind of the model, as 'gpt2'")
    for key, why in _REFUSED_KEYS.items():
        if settings.get(key):
            raise ConfigError(f"model config {path}: AR1: {key} is not supported: {why}")
    for key, value in _list_numbers(settings):
        most = _MAX_LAYERS if "layer" in key else _MAX_NUMBER
        if math.isnan(value) or (isinstance(value, int) and abs(value) > most):
            shown = show_value(value)
            raise ConfigError(f"model config {path}: AR1: {key} is {shown}, must be a number up to {most:,}")
    vocab_size = settings.get("vocab_size", 1)
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 1:
        raise ConfigError(
            f"model config {path}: AR1: vocab_size is {show_value(vocab_size)}, must be a whole number above 0"
        )


def _list_numbers(settings: Mapping[str, Any]) -> Iterator[tuple[str, int | float]]:
    """All numbers of the settings, of tables and lists in them too."""
    todo: list[tuple[str, Any]] = list(settings.items())
    while todo:
        key, value = todo.pop()
        if isinstance(value, dict):
            todo.extend(value.items())
        elif isinstance(value, list):
            todo.extend((key, one) for one in value)
        elif isinstance(value, int | float):
            yield key, value


def get_vocab_size(settings: Mapping[str, Any]) -> int | None:
    """The size of the vocabulary where config.json names it; in checked settings it is a number above 0."""
    return settings.get("vocab_size")
