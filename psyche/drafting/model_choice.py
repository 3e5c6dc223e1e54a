"""The model of a new run: a named size, whose weights are still to be made, or a folder that has them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from psyche.drafting.sizes import SIZES, ModelSize, Recipe, Settings, find_recipe, make_settings
from psyche.errors import ConfigError
from psyche.forecast.workload import compute_llama_shapes, count_elements, read_model_settings

CONFIG_NAME: Final = "config.json"
WEIGHTS_SUFFIX: Final = ".safetensors"
VOCAB_STEP: Final = 64  # vocabularies of this step are cut into whole chunks; a prime one cannot be cut


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model. `folder` has its weights; None: they are made from `settings`, and `size` is set."""

    size: ModelSize | None
    folder: Path | None
    settings: Settings
    parameters: int
    vocab_size: int
    sequence_tokens: int
    recipe: Recipe

    @property
    def weights_bytes(self) -> int:
        """Size of the weights as clients load and send them: float32."""
        return 4 * self.parameters


def choose_size(name: str, vocab_size: int, end_id: int) -> ModelChoice:
    """A new model of a named size, with a vocabulary rounded up to whole chunks."""
    size = SIZES[name]
    rounded = -(-vocab_size // VOCAB_STEP) * VOCAB_STEP
    settings = make_settings(size, rounded, end_id)
    parameters = count_elements(compute_llama_shapes(settings, name))
    return ModelChoice(size, None, settings, parameters, rounded, size.recipe.sequence_tokens, size.recipe)


def choose_folder(folder: Path) -> ModelChoice:
    """The model of a Hugging Face folder.

    Raises:
        ConfigError: it has no config or no safetensors, or is no Llama.
    """
    check_model_folder(folder)
    settings = read_model_settings(folder / CONFIG_NAME)
    parameters = count_elements(compute_llama_shapes(settings, str(folder)))
    recipe = find_recipe(parameters)
    positions = _get_number(settings, "max_position_embeddings", recipe.sequence_tokens, folder)
    vocab_size = _get_number(settings, "vocab_size", 0, folder)
    return ModelChoice(
        None, folder, {}, parameters, vocab_size, min(positions, recipe.sequence_tokens), recipe
    )  # fmt: skip


def check_model_folder(folder: Path) -> None:
    """Refuse a folder that clients could not load, before anything is made of it.

    Raises:
        ConfigError: naming the folder and what it lacks.
    """
    if not folder.is_dir():
        sizes = ", ".join(SIZES)
        raise ConfigError(f"--model {folder}: neither a size ({sizes}) nor a model's folder")
    if not (folder / CONFIG_NAME).is_file():
        raise ConfigError(f"--model {folder}: no {CONFIG_NAME} there; name the folder of a Hugging Face model")
    if not any(folder.glob(f"*{WEIGHTS_SUFFIX}")):
        raise ConfigError(f"--model {folder}: no {WEIGHTS_SUFFIX} file there; other formats are never read")


def _get_number(settings: dict[str, Any], name: str, default: int, folder: Path) -> int:
    value = settings.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"--model {folder}: {name} is {value!r}, must be a whole number above 0")
    return value
