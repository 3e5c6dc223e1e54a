"""Named sizes of models: the shape of a Llama, and settings that suit its training."""

from dataclasses import dataclass
from typing import Final

Settings = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a Llama without its vocabulary; `is_tied`: the output layer is the embedding."""

    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    is_tied: bool
    initializer_range: float = 0.02


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings that suit the training of a model of some size.

    Args:
        sequence_tokens: length of a sample, and the positions of a new model.
        member_samples: samples of a round for each member.
        steps: a usual length of a run.
        epoch_rounds: rounds with data of an epoch.
        base_lr: highest learning rate.
        train_s: a time in which slow machines too have trained a round.
        witness_s: a time in which slow lines too have brought a round's results.
        tokens_per_s: that a usual machine at home trains.
        chunk, topk, decay: settings of DisTrO.
    """

    sequence_tokens: int
    member_samples: int
    steps: int
    epoch_rounds: int
    base_lr: float
    train_s: int
    witness_s: int
    tokens_per_s: int
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


# Heads have 64 dimensions from 20m on. 124m is as large as GPT-2 with its vocabulary; 1b is Llama 3.2 1B.
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
    """The fields of a Hugging Face Llama of this size.

    Args:
        size: the named size.
        vocab_size: tokens of the vocabulary.
        end_id: the token between documents, which begins and ends a text.
    """
    shape = size.shape
    return {
        "model_type": "llama",
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
