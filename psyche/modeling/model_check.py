"""Whether a run can train the model in a folder, by its config.json and the headers of its weight files; no torch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from psyche.errors import ConfigError, TrainerError
from psyche.modeling.first_weights import INDEX_NAME, WEIGHTS_NAME, read_stored_tensors
from psyche.modeling.model_config import (
    MAX_CONFIG_BYTES,
    Dims,
    LlamaSizes,
    check_model_settings,
    check_positions,
    get_sizes,
    list_tensors,
    parse_model_fields,
    read_model_fields,
)
from psyche.modeling.model_files import FolderFiles, ModelFiles
from psyche.modeling.snapshot import CONFIG_NAME

OTHER_WEIGHTS: Final = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack")
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
    """Check a model's folder, or a config file from which one is to be made, against a run; blocks on the disk."""
    if path.is_dir():
        return check_model_files(FolderFiles(path), max_seq_len)
    try:
        return _check_settings(path, read_model_fields(path), max_seq_len)
    except ConfigError as error:
        return ModelCheck((str(error),))


def check_model_files(files: ModelFiles, max_seq_len: int) -> ModelCheck:
    """Check a model against a run; of the weights only the headers are read: names, shapes and the sizes of the files.

    Raises:
        StorageError, TrainerError: as `ModelFiles`.
    """
    sizes_bytes = files.get_sizes()
    if CONFIG_NAME not in sizes_bytes:
        return ModelCheck((f"model {files.address}: no {CONFIG_NAME}; make a model with `psyche model init`",))
    place = f"{files.address}/{CONFIG_NAME}"
    if sizes_bytes[CONFIG_NAME] > MAX_CONFIG_BYTES:
        return ModelCheck((f"model config {place}: has more than {MAX_CONFIG_BYTES} bytes",))
    try:
        settings = parse_model_fields(place, files.read(CONFIG_NAME, 0, sizes_bytes[CONFIG_NAME]))
        check = _check_settings(place, settings, max_seq_len)
    except ConfigError as error:
        return ModelCheck((str(error),))
    assert check.sizes is not None, "settings that pass have sizes"
    return replace(check, problems=(*check.problems, *_find_weight_problems(files, check.sizes)))


def _check_settings(path: Path | str, settings: Mapping[str, Any], max_seq_len: int) -> ModelCheck:
    check_model_settings(path, settings)
    sizes = get_sizes(settings)
    try:
        check_positions(path, sizes.max_positions, max_seq_len)
    except ConfigError as error:
        return ModelCheck((str(error),), sizes)
    return ModelCheck((), sizes)


def _find_weight_problems(files: ModelFiles, sizes: LlamaSizes) -> list[str]:
    names = files.get_sizes()
    if WEIGHTS_NAME not in names and INDEX_NAME not in names:
        return [f"model {files.address}: {_describe_missing(names)}"]
    try:
        found = _read_shapes(files)
    except TrainerError as error:
        return [f"model {files.address}: {str(error).removeprefix(f'{files.address}/')}; copy the file again"]
    wrong = [
        f"{name} is {_format_dims(found[name])}, not {_format_dims(dims)}"
        for name, dims in list_tensors(sizes)
        if name in found and found[name] != dims
    ]
    missing = [name for name, _ in list_tensors(sizes) if name not in found]
    advice = f"take the {CONFIG_NAME} and the weights from one model"
    problems = [f"model {files.address}: {_list(wrong)} as {CONFIG_NAME} says; {advice}"] if wrong else []
    if missing:
        problems.append(f"model {files.address}: the weights lack {_list(missing)}; {advice}")
    return problems


def _read_shapes(files: ModelFiles) -> dict[str, Dims]:
    found = {name: tensor.dims for name, tensor in read_stored_tensors(files).items()}
    if not any(name.startswith("model.") for name in found):  # saved without the head: transformers adds the prefix
        found = {f"model.{name}": dims for name, dims in found.items()}
    return found


def _describe_missing(names: Iterable[str]) -> str:
    others = sorted(name for name in names if name.endswith(OTHER_WEIGHTS))
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
