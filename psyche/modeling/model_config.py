"""What the config.json of a model says, read without torch: whether a run can train it, and which tensors it has."""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from psyche.durable import read_file
from psyche.errors import ConfigError
from psyche.telemetry.text import describe_parse_failure, show_value

MODEL_TYPE: Final = "llama"
MAX_CONFIG_BYTES: Final = 1 << 20
_REFUSED_KEYS: Final = ("auto_map", "quantization_config")  # remote code; quantized weights
_DEFAULTS: Final[Mapping[str, int]] = {  # of transformers' LlamaConfig
    "vocab_size": 32_000,
    "hidden_size": 4_096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11_008,
    "max_position_embeddings": 2_048,
}
_OPTIONAL: Final = ("num_key_value_heads", "head_dim")  # derived from others where they are missing or null
_MAX_LAYERS: Final = 10_000  # their tensors fit into a manifest, and are listed within a second
_MAX_SIZE: Final = (1 << 31) - 1
_ABOVE_ZERO: Final = ("rms_norm_eps", "rope_theta")

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LlamaSizes:
    """The sizes of a Llama model; `max_positions` is the longest sequence that it is made for, in tokens."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    query_size: int  # of all heads together
    key_value_size: int
    max_positions: int
    is_tied: bool  # the output uses the weights of the embedding
    attention_bias: bool
    mlp_bias: bool


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
    """Check that the settings are those of a model that a run can train."""
    model_type = settings.get("model_type", MODEL_TYPE)
    if model_type != MODEL_TYPE:
        raise ConfigError(
            f"model config {path}: model_type is {model_type!r}, only {MODEL_TYPE!r} is supported; take a Llama model, "
            "or make one with `psyche model init`"
        )
    for key in _REFUSED_KEYS:
        if settings.get(key):
            raise ConfigError(f"model config {path}: {key} is not supported (plain Llama weights, no code)")
    given = {**_DEFAULTS, **settings}
    sizes = {key: given[key] for key in _DEFAULTS} | {
        key: given[key] for key in _OPTIONAL if given.get(key) is not None
    }
    for key, value in sizes.items():
        most = _MAX_LAYERS if key == "num_hidden_layers" else _MAX_SIZE
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ConfigError(
                f"model config {path}: {key} is {show_value(value)}, must be a whole number from 1 to {most:,}"
            )
    for key, value in _list_numbers(settings):
        if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
            raise ConfigError(f"model config {path}: {key} is {show_value(value)}, must be a finite number")
        if key in _ABOVE_ZERO and value <= 0:
            raise ConfigError(f"model config {path}: {key} is {show_value(value)}, must be above 0")


def _list_numbers(settings: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """All numbers of the settings with a fraction, and whatever stands where one must."""
    for key, value in settings.items():
        if key in _ABOVE_ZERO or isinstance(value, float):
            yield key, value
        elif isinstance(value, dict):  # of the position encoding
            yield from _list_numbers(value)


def check_positions(path: Path | str, max_positions: int, max_seq_len: int) -> None:
    if max_seq_len > max_positions:
        raise ConfigError(
            f"model config {path}: max_position_embeddings is {max_positions}, but the run's max_seq_len is "
            f"{max_seq_len}; set max_seq_len to {max_positions} or less, or take a model for longer sequences"
        )


def get_sizes(settings: Mapping[str, Any]) -> LlamaSizes:
    given = {**_DEFAULTS, **settings}
    heads: int = given["num_attention_heads"]
    head_size: int = given.get("head_dim") or given["hidden_size"] // heads
    return LlamaSizes(
        vocab_size=given["vocab_size"],
        hidden_size=given["hidden_size"],
        intermediate_size=given["intermediate_size"],
        layers=given["num_hidden_layers"],
        query_size=heads * head_size,
        key_value_size=(given.get("num_key_value_heads") or heads) * head_size,
        max_positions=given["max_position_embeddings"],
        is_tied=bool(given.get("tie_word_embeddings", False)),
        attention_bias=bool(given.get("attention_bias", False)),
        mlp_bias=bool(given.get("mlp_bias", False)),
    )


def list_tensors(sizes: LlamaSizes) -> Iterator[tuple[str, Dims]]:
    """The names and dimensions of all tensors of the model, as transformers names them; tied ones once."""
    yield "model.embed_tokens.weight", (sizes.vocab_size, sizes.hidden_size)
    for layer in range(sizes.layers):
        for name, dims in _list_layer(sizes):
            yield f"model.layers.{layer}.{name}", dims
    yield "model.norm.weight", (sizes.hidden_size,)
    if not sizes.is_tied:
        yield "lm_head.weight", (sizes.vocab_size, sizes.hidden_size)


def _list_layer(sizes: LlamaSizes) -> Iterator[tuple[str, Dims]]:
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    linear = {
        "self_attn.q_proj": (sizes.query_size, hidden),
        "self_attn.k_proj": (sizes.key_value_size, hidden),
        "self_attn.v_proj": (sizes.key_value_size, hidden),
        "self_attn.o_proj": (hidden, sizes.query_size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for name, dims in linear.items():
        yield f"{name}.weight", dims
        if sizes.attention_bias if name.startswith("self_attn") else sizes.mlp_bias:
            yield f"{name}.bias", dims[:1]
