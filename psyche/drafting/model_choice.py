"""The model of a new run: a named size, whose weights are still to be made, or a folder that has them."""

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from psyche.config.places import MODELS
from psyche.core.state.settings import Checkpoint
from psyche.durable import naming
from psyche.errors import ConfigError, StorageError, TrainerError
from psyche.modeling.model_check import ModelCheck, check_model, check_model_files, find_differences
from psyche.modeling.model_files import ModelFiles, read_small_files, use_model_files
from psyche.modeling.trainer.describe import describe_model
from psyche.storage.port import StorageOptions
from psyche.telemetry.text import format_bytes, format_number
from psyche.wire.trainer import CheckReply

CONFIG_NAME: Final = "config.json"
WEIGHTS_SUFFIX: Final = ".safetensors"
MODEL_TYPE: Final = "mistral"  # of the named sizes: a plain decoder that other programs know
VOCAB_STEP: Final = 64  # vocabularies of this step are cut into whole chunks; a prime one cannot be cut
Settings = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a dense model without its vocabulary; `is_tied`: the output layer is the embedding."""

    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    is_tied: bool
    initializer_range: float = 0.02


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings that suit the training of a model of some size."""

    sequence_tokens: int  # length of a sample, and the positions of a new model
    member_samples: int  # of a round, for each member
    steps: int  # a usual length of a run
    epoch_rounds: int  # rounds with data
    base_lr: float
    train_s: int  # in which slow machines too have trained a round
    witness_s: int  # in which slow lines too have brought a round's results
    tokens_per_s: int  # that a usual machine at home trains
    chunk: int = 64
    topk: int = 8
    decay: float = 0.999


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A named size; `parameters` without those that depend on the vocabulary."""

    name: str
    parameters: int
    shape: Shape
    recipe: Recipe


# Heads have 64 dimensions from 20m on. 124m is as large as GPT-2 with its vocabulary.
_ALL: Final = (
    ModelSize("1m", 900_000, Shape(128, 384, 4, 4, 4, is_tied=False, initializer_range=0.09),
              Recipe(128, 8, 500, 50, 1e-3, 30, 5, 3_000, chunk=16, topk=16, decay=0.95)),
    ModelSize("20m", 14_000_000, Shape(384, 1_024, 8, 6, 6, is_tied=True),
              Recipe(512, 8, 5_000, 200, 4e-4, 120, 10, 30_000)),
    ModelSize("124m", 85_000_000, Shape(768, 2_048, 12, 12, 12, is_tied=True),
              Recipe(1_024, 16, 20_000, 200, 4e-4, 300, 20, 15_000)),
    ModelSize("1b", 973_000_000, Shape(2_048, 8_192, 16, 32, 8, is_tied=True),
              Recipe(2_048, 16, 50_000, 200, 3e-4, 600, 60, 3_000)),
)  # fmt: skip
SIZES: Final = {size.name: size for size in _ALL}


def make_settings(size: ModelSize, vocab_size: int, end_id: int) -> Settings:
    shape = size.shape
    return {
        "model_type": MODEL_TYPE,
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "max_position_embeddings": size.recipe.sequence_tokens,
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-5,
        "initializer_range": shape.initializer_range,
        "tie_word_embeddings": shape.is_tied,
        "bos_token_id": end_id,
        "eos_token_id": end_id,
    }


def find_recipe(parameters: int) -> Recipe:
    """The recipe of the largest named size that is not larger than a model with so many parameters."""
    fitting = [size for size in _ALL if size.parameters <= parameters]
    return (fitting or [_ALL[0]])[-1].recipe


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model. `folder` or `source` has its weights; None: they are made from `settings`, and `size` is set."""

    size: ModelSize | None
    folder: Path | None
    settings: Settings
    parameters: int
    vocab_size: int
    sequence_tokens: int
    recipe: Recipe
    positions: int  # longest sequence that it takes
    source: Checkpoint | None = None
    about: str = ""  # of the source

    @property
    def weights_bytes(self) -> int:
        return 4 * self.parameters


def choose_size(name: str, vocab_size: int, end_id: int) -> ModelChoice:
    """A new model of a named size, with a vocabulary rounded up to whole chunks."""
    size = SIZES[name]
    rounded = -(-vocab_size // VOCAB_STEP) * VOCAB_STEP
    settings = make_settings(size, rounded, end_id)
    described = _describe(name, json.dumps(settings).encode())
    parameters = size.parameters if described is None else sum(map(math.prod, described.tensors.values()))
    length = size.recipe.sequence_tokens
    return ModelChoice(size, None, settings, parameters, rounded, length, size.recipe, length)


def _describe(named: str, config: bytes) -> CheckReply | None:
    """What transformers makes of a config; None: it is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CONFIG_NAME
        with naming(path):
            path.write_bytes(config)
        try:
            return describe_model(path)
        except ConfigError as error:
            raise ConfigError(f"--model {named}: {error}".replace(str(path), CONFIG_NAME)) from error


def choose_folder(folder: Path) -> ModelChoice:
    check_model_folder(folder)
    return replace(_choose(str(folder), check_model(folder), (folder / CONFIG_NAME).read_bytes()), folder=folder)


def _choose(named: str, found: ModelCheck, config: bytes) -> ModelChoice:
    """A model whose headers have been read; names and shapes are compared where transformers is installed."""
    if found.problems:
        raise ConfigError(f"--model {named}: {'; '.join(found.problems)}")
    described, tensors = _describe(named, config), found.tensors or {}
    if described and (wrong := find_differences(named, tensors, described.tensors, json.loads(config))):
        raise ConfigError(f"--model {named}: {wrong}")
    vocab_size = found.vocab_size or (described.vocab_size if described else 0)
    recipe = find_recipe(found.parameters or 0)
    positions = (described and described.positions) or recipe.sequence_tokens
    length = min(positions, recipe.sequence_tokens)
    return ModelChoice(None, None, {}, found.parameters or 0, vocab_size, length, recipe, positions)


def choose_remote(named: str, source: Checkpoint, options: StorageOptions) -> tuple[ModelChoice, Mapping[str, bytes]]:
    """A model of the Hub or a bucket, and its small files; its config and the headers of its weights are read."""

    def look(files: ModelFiles) -> tuple[ModelCheck, Mapping[str, bytes], Checkpoint, str]:
        check = check_model_files(files)
        sizes = files.get_sizes()
        about = f"{files.address}: {format_bytes(sum(sizes.values()))} in {format_number(len(sizes), 'file')}"
        return check, read_small_files(files), replace(source, revision=files.revision or source.revision), about

    try:
        found = use_model_files(source, None, look, options)
    except (StorageError, TrainerError) as error:
        raise ConfigError(f"--model {named}: is no folder here, and {error}") from error
    assert found is not None, "repositories and buckets are storages"
    check, small, pinned, about = found
    choice = _choose(named, check, small.get(CONFIG_NAME, b"{}"))
    return replace(choice, source=pinned, about=about), small


def check_model_folder(folder: Path) -> None:
    """Refuse a folder that clients could not load, before anything is made of it."""
    if not folder.is_dir():
        sizes = ", ".join(SIZES)
        raise ConfigError(f"--model {folder}: neither a size ({sizes}) nor a model's folder, nor {MODELS}")
    if not (folder / CONFIG_NAME).is_file():
        raise ConfigError(f"--model {folder}: no {CONFIG_NAME} there; name the folder of a Hugging Face model")
    if not any(folder.glob(f"*{WEIGHTS_SUFFIX}")):
        raise ConfigError(f"--model {folder}: no {WEIGHTS_SUFFIX} file there; other formats are never read")
