"""The workload of a run's model: the size of its payloads, and the length of a sample.

The simulated model is small; its payloads stand for those of the real model. Their size follows from the
transform plan that the real trainer makes for the real tensors: exactly if a model.json or config.json gives
their shapes, else estimated from the number of parameters alone.
"""

import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from psyche.config.load import LoadedRun
from psyche.core.encoding.plan import compute_plan, get_payload_bytes
from psyche.core.state.state import CheckpointKind, Model, Optimizer, OptimizerKind
from psyche.errors import ConfigError
from psyche.telemetry.text import format_count

CONFIG_NAMES: Final = ("config.json", "model.json", "model.toml")
MAX_CONFIG_BYTES: Final = 1 << 20
LARGEST: Final = 10**13  # parameters; larger numbers are typing errors
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Workload:
    """The sizes of a model in training.

    Args:
        parameters: of the model; 0 if unknown.
        payload_bytes: size of every member's payload in every round.
        sequence_tokens: tokens of a sample.
        source: where the sizes come from, in words.
    """

    parameters: int
    payload_bytes: int
    sequence_tokens: int
    source: str

    @property
    def weights_bytes(self) -> int:
        """Size of the weights as clients store and send them: float32."""
        return 4 * self.parameters


def compute_llama_shapes(settings: dict[str, Any], place: str) -> Shapes:
    """The trainable tensors of a Llama with these settings, as the trainer names and shapes them.

    Raises:
        ConfigError: a setting is missing or no whole number above 0.
    """

    def get(name: str, default: int | None = None) -> int:
        value = settings.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{place}: {name} is {value!r}, must be a whole number above 0")
        return value

    hidden, inner, heads = get("hidden_size"), get("intermediate_size"), get("num_attention_heads")
    key_heads, head = get("num_key_value_heads", heads), get("head_dim", max(1, hidden // heads))
    layer: Shapes = {
        "self_attn.q_proj": (heads * head, hidden), "self_attn.k_proj": (key_heads * head, hidden),
        "self_attn.v_proj": (key_heads * head, hidden), "self_attn.o_proj": (hidden, heads * head),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    layer |= _get_biases(settings, layer)
    shapes: Shapes = {"model.embed_tokens": (get("vocab_size"), hidden), "model.norm": (hidden,)}
    for number in range(get("num_hidden_layers")):
        shapes |= {f"model.layers.{number}.{name}": dims for name, dims in layer.items()}
    if not settings.get("tie_word_embeddings", False):
        shapes["lm_head"] = (get("vocab_size"), hidden)
    return shapes


def _get_biases(settings: dict[str, Any], layer: Shapes) -> Shapes:
    parts = [part for part in ("attention", "mlp") if settings.get(f"{part}_bias")]
    wanted = tuple({"attention": "self_attn.", "mlp": "mlp."}[part] for part in parts)
    return {f"{name}.bias": dims[:1] for name, dims in layer.items() if wanted and name.startswith(wanted)}


def compute_even_shapes(parameters: int, chunk: int) -> Shapes:
    """Shapes of matrices that divide evenly into chunks, as nearly all of a language model's do."""
    return {"weights": (max(1, -(-parameters // chunk**2)) * chunk, chunk)}


def count_elements(shapes: Shapes) -> int:
    """The number of trainable parameters."""
    return sum(math.prod(dims) for dims in shapes.values())


def compute_payload_bytes(shapes: Shapes, optimizer: Optimizer) -> int:
    """The length of a payload, as the codec writes it.

    Raises:
        ConfigError: the optimizer sends no payloads.
    """
    if optimizer.kind is not OptimizerKind.DISTRO:
        raise ConfigError(
            f"model.LLM.optimizer: {optimizer.kind.name} sends no payloads; what can be simulated is Distro"
        )
    plan = compute_plan(
        shapes, optimizer.compression_chunk, optimizer.compression_topk, one_bit=optimizer.quantize_1bit
    )
    return get_payload_bytes(plan)


def compute_workload(run: LoadedRun, *, parameters: int = 0, model_config: Path | None = None) -> Workload:
    """The workload of a run: from `model_config` or `parameters` if given, else from a file beside its run.toml.

    Raises:
        ConfigError: the size of the model is not given, or given wrongly.
    """
    if parameters < 0 or parameters > LARGEST:
        raise ConfigError(f"--parameters {parameters}: must be a number of parameters up to {format_count(LARGEST)}")
    path = model_config or (None if parameters else find_model_config(run))
    if path is not None:
        shapes, source = compute_llama_shapes(read_model_settings(path), str(path)), str(path)
    else:
        parameters = parameters or run.metadata.num_parameters
        if not parameters:
            raise ConfigError(
                f"{run.path}: nothing says how large the model is: there is no {' or '.join(CONFIG_NAMES)} beside it "
                "or in its checkpoint's folder -> --model config.json, or --parameters 1e9, or metadata.num_parameters"
            )
        shapes, source = compute_even_shapes(parameters, run.model.optimizer.compression_chunk), "parameters alone"
    return build_workload(run.model, shapes, source, parameters or count_elements(shapes))


def build_workload(model: Model, shapes: Shapes, source: str, parameters: int) -> Workload:
    """The workload of these tensors with the model's optimizer and sequence length."""
    return Workload(parameters, compute_payload_bytes(shapes, model.optimizer), model.max_seq_len, source)


def find_model_config(run: LoadedRun) -> Path | None:
    """Find the file with the model's shape: in its Local checkpoint's folder, or beside run.toml."""
    folders = [run.folder]
    checkpoint = run.model.checkpoint
    if checkpoint.kind is CheckpointKind.LOCAL:
        folders.insert(0, run.resolve(checkpoint.name))
    return next((f / name for f in folders for name in CONFIG_NAMES if (f / name).is_file()), None)


def read_model_settings(path: Path) -> dict[str, Any]:
    """Read a Llama's config, JSON or TOML, or the one in a folder.

    Raises:
        ConfigError: it cannot be read, or is of another architecture.
    """
    path = next((path / name for name in CONFIG_NAMES if (path / name).is_file()), path) if path.is_dir() else path
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES).decode()
        settings = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not {'TOML' if path.suffix == '.toml' else 'JSON'}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: must be a table of settings")
    if settings.get("model_type", "llama") != "llama":
        raise ConfigError(f"{path}: model_type is {settings['model_type']!r}, only 'llama' can be trained")
    return settings
