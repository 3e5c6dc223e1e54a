"""Whether a run can train the model in a folder, by its config.json and the headers of its weight files; no torch."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psyche.errors import ConfigError, TrainerError
from psyche.modeling.first_weights import INDEX_NAME, WEIGHTS_NAME, read_stored_tensors
from psyche.modeling.model_config import (
    Dims,
    LlamaSizes,
    check_model_settings,
    check_positions,
    get_sizes,
    list_tensors,
    read_model_fields,
)
from psyche.modeling.snapshot import CONFIG_NAME

OTHER_WEIGHTS: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.h5", "*.msgpack")
SHOWN: Final = 3  # tensors named in one message


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The findings: `problems` (empty: there are none); `sizes` is None if the config cannot be used."""

    problems: tuple[str, ...]
    sizes: LlamaSizes | None = None

    @property
    def parameters(self) -> int | None:
        return None if self.sizes is None else sum(math.prod(dims) for _, dims in list_tensors(self.sizes))


def check_model(path: Path, max_seq_len: int) -> ModelCheck:
    """Check a model's folder, or a config file from which one is to be made, against a run; blocks on the disk.

    Of the weights only the headers are read: names, shapes and the sizes of the files.
    """
    config = path / CONFIG_NAME if path.is_dir() else path
    if path.is_dir() and not config.is_file():
        return ModelCheck((f"model folder {path}: no {CONFIG_NAME}; make a model with `psyche model init`",))
    try:
        settings = read_model_fields(config)
        check_model_settings(config, settings)
    except ConfigError as error:
        return ModelCheck((str(error),))
    sizes = get_sizes(settings)
    problems: list[str] = []
    try:
        check_positions(config, sizes.max_positions, max_seq_len)
    except ConfigError as error:
        problems.append(str(error))
    if path.is_dir():
        problems += _find_weight_problems(path, sizes)
    return ModelCheck(tuple(problems), sizes)


def _find_weight_problems(folder: Path, sizes: LlamaSizes) -> list[str]:
    if not any((folder / name).is_file() for name in (WEIGHTS_NAME, INDEX_NAME)):
        return [f"model folder {folder}: {_describe_missing(folder)}"]
    try:
        found = _read_shapes(folder)
    except TrainerError as error:
        return [f"model folder {folder}: {str(error).removeprefix(f'{folder}/')}; copy the file again"]
    wrong = [
        f"{name} is {_format_dims(found[name])}, not {_format_dims(dims)}"
        for name, dims in list_tensors(sizes)
        if name in found and found[name] != dims
    ]
    missing = [name for name, _ in list_tensors(sizes) if name not in found]
    advice = f"take the {CONFIG_NAME} and the weights from one model"
    problems = [f"model folder {folder}: {_list(wrong)} as {CONFIG_NAME} says; {advice}"] if wrong else []
    if missing:
        problems.append(f"model folder {folder}: the weights lack {_list(missing)}; {advice}")
    return problems


def _read_shapes(folder: Path) -> dict[str, Dims]:
    found = {name: tensor.dims for name, tensor in read_stored_tensors(folder).items()}
    if not any(name.startswith("model.") for name in found):  # saved without the head: transformers adds the prefix
        found = {f"model.{name}": dims for name, dims in found.items()}
    return found


def _describe_missing(folder: Path) -> str:
    others = sorted(file.name for pattern in OTHER_WEIGHTS for file in folder.glob(pattern))
    if others:
        return (
            f"has {_list(others)}, but no .safetensors file; other formats can carry code and "
            "are never read: write the model again with `save_pretrained` of transformers"
        )
    return f"no {WEIGHTS_NAME} or {INDEX_NAME}; make a model with `psyche model init`"


def _format_dims(dims: Dims) -> str:
    return " x ".join(map(str, dims)) or "a single number"


def _list(texts: list[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
