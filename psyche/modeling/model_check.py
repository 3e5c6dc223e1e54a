"""Whether a run can train the model in a folder, by its config.json and the headers of its weight files; no torch."""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from psyche.errors import ConfigError, TrainerError
from psyche.modeling.model_config import (
    Dims,
    LlamaSizes,
    check_positions,
    check_settings,
    get_sizes,
    list_tensors,
    read_settings,
)
from psyche.modeling.snapshot import CONFIG_NAME

SINGLE_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
OTHER_WEIGHTS: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.h5", "*.msgpack")
MAX_HEADER_BYTES: Final = 100_000_000  # the limit of safetensors itself
MAX_INDEX_BYTES: Final = 64 << 20
SHOWN: Final = 3  # tensors named in one message
_LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The findings: `problems` (empty: there are none); `sizes` is None if the config cannot be used."""

    problems: tuple[str, ...]
    sizes: LlamaSizes | None = None

    @property
    def parameters(self) -> int | None:
        """The number of the model's parameters."""
        return None if self.sizes is None else sum(math.prod(dims) for _, dims in list_tensors(self.sizes))


def check_model(path: Path, max_seq_len: int) -> ModelCheck:
    """Check a model's folder, or a config file from which one is to be made, against a run; blocks on the disk.

    Of the weights only the headers are read: names, shapes and the sizes of the files.

    Args:
        path: the folder, or a JSON or TOML file.
        max_seq_len: the length of the run's sequences in tokens.
    """
    config = path / CONFIG_NAME if path.is_dir() else path
    if path.is_dir() and not config.is_file():
        return ModelCheck((f"model folder {path}: no {CONFIG_NAME}; make a model with `psyche model init`",))
    try:
        settings = read_settings(config)
        check_settings(config, settings)
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
    try:
        found = _read_shapes(folder)
    except TrainerError as error:
        return [str(error)]
    except OSError as error:
        return [f"model folder {folder}: cannot be read: {error.strerror or error}"]
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
    """The dimensions of all tensors of a folder, by name.

    Raises:
        TrainerError: there are no safetensors files, one is missing, or one is damaged.
        OSError: a file cannot be read.
    """
    found: dict[str, Dims] = {}
    for file in _find_files(folder):
        found.update(read_header(file))
    if not any(name.startswith("model.") for name in found):  # saved without the head: transformers adds the prefix
        found = {f"model.{name}": dims for name, dims in found.items()}
    return found


def _find_files(folder: Path) -> Iterator[Path]:
    """The weight files that transformers reads."""
    if (folder / SINGLE_NAME).is_file():
        yield folder / SINGLE_NAME
        return
    if not (folder / INDEX_NAME).is_file():
        raise TrainerError(_describe_missing(folder))
    for name in sorted(_read_index(folder / INDEX_NAME)):
        if not (folder / name).is_file():
            raise TrainerError(f"model folder {folder}: {INDEX_NAME} names {name}, which is not there; copy it again")
        yield folder / name


def _describe_missing(folder: Path) -> str:
    others = sorted(file.name for pattern in OTHER_WEIGHTS for file in folder.glob(pattern))
    if others:
        return (
            f"model folder {folder}: has {_list(others)}, but no .safetensors file; other formats can carry code and "
            "are never read: write the model again with `save_pretrained` of transformers"
        )
    return f"model folder {folder}: no {SINGLE_NAME} or {INDEX_NAME}; make a model with `psyche model init`"


def _read_index(path: Path) -> set[str]:
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(MAX_INDEX_BYTES))
        names = cast("dict[str, Any]", content)["weight_map"].values()
        return {Path(name).name for name in names}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise TrainerError(f"{path}: is damaged; copy it again") from error


def read_header(path: Path) -> dict[str, Dims]:
    """Read the header of a safetensors file: the dimensions of its tensors, by name.

    Raises:
        TrainerError: the file is no such file, or is cut off.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            header = cast("dict[str, Mapping[str, Any]]", json.loads(file.read(length)))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
        shapes = {name: tuple(int(size) for size in entry["shape"]) for name, entry in tensors.items()}
    except (struct.error, ValueError, RecursionError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise TrainerError(f"{path}: is not a safetensors file, or damaged; copy it again") from error
    expected_bytes = _LENGTH.size + length + end
    if path.stat().st_size != expected_bytes:
        raise TrainerError(f"{path}: has {path.stat().st_size} bytes, its header says {expected_bytes}; copy it again")
    return shapes


def _format_dims(dims: Dims) -> str:
    return " x ".join(map(str, dims)) or "a single number"


def _list(texts: list[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
