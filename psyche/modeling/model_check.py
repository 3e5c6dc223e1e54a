"""Whether a run can train the model in a folder, by its config.json and the headers of its weight files; no torch.

Transformers alone knows the names and shapes that a model has in memory. Whoever has asked it (`CheckReply`) passes
them on as `expected`; the rest is checked without it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psyche.errors import ConfigError, TrainerError
from psyche.modeling.first_weights import INDEX_NAME, WEIGHTS_NAME, read_stored_tensors
from psyche.modeling.model_config import (
    MAX_CONFIG_BYTES,
    Dims,
    check_model_settings,
    get_vocab_size,
    parse_model_fields,
    read_model_fields,
)
from psyche.modeling.model_files import FolderFiles, ModelFiles
from psyche.modeling.snapshot import CONFIG_NAME

OTHER_WEIGHTS: Final = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack")
SHOWN: Final = 3  # tensors named in one message


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The findings: `problems` (empty: there are none), the size of the vocabulary, and of all tensors, if known."""

    problems: tuple[str, ...]
    vocab_size: int | None = None
    tensors: Mapping[str, Dims] | None = None

    @property
    def parameters(self) -> int | None:
        return None if self.tensors is None else sum(map(math.prod, self.tensors.values()))


def check_model(path: Path, expected: Mapping[str, Dims] | None = None) -> ModelCheck:
    """Check a model's folder, or a config file from which one is to be made; blocks on the disk."""
    if path.is_dir():
        return check_model_files(FolderFiles(path), expected)
    try:
        settings = read_model_fields(path)
        check_model_settings(path, settings)
        return ModelCheck((), get_vocab_size(settings), expected)
    except ConfigError as error:
        return ModelCheck((str(error),))


def check_model_files(files: ModelFiles, expected: Mapping[str, Dims] | None = None) -> ModelCheck:
    """Check a model; of the weights only the headers are read: names, shapes and the sizes of the files.

    Raises:
        StorageError, TrainerError: as `ModelFiles`.
    """
    names = files.get_sizes()
    if CONFIG_NAME not in names:
        return ModelCheck((f"model {files.address}: no {CONFIG_NAME}; make a model with `psyche model init`",))
    place = f"{files.address}/{CONFIG_NAME}"
    if names[CONFIG_NAME] > MAX_CONFIG_BYTES:
        return ModelCheck((f"model config {place}: has more than {MAX_CONFIG_BYTES} bytes",))
    try:
        settings = parse_model_fields(place, files.read(CONFIG_NAME, 0, names[CONFIG_NAME]))
        check_model_settings(place, settings)
    except ConfigError as error:
        return ModelCheck((str(error),))
    vocab_size = get_vocab_size(settings)
    if WEIGHTS_NAME not in names and INDEX_NAME not in names:
        return ModelCheck((f"model {files.address}: {describe_missing(names)}",), vocab_size)
    try:
        found = {name: tensor.dims for name, tensor in read_stored_tensors(files).items()}
    except TrainerError as error:
        text = str(error).removeprefix(f"{files.address}/")
        return ModelCheck((f"model {files.address}: {text}; copy the file again",), vocab_size)
    wrong = "" if expected is None else find_differences(files.address, found, expected, settings)
    return ModelCheck((wrong,) if wrong else (), vocab_size, found)


def find_differences(
    address: str, found: Mapping[str, Dims], expected: Mapping[str, Dims], settings: Mapping[str, object] | Path
) -> str:
    """AR4: how names and shapes in a model's files differ from those in memory, and the way out; empty: not at all."""
    shapes = [
        f"{name} is {_format_dims(found[name])}, not {_format_dims(dims)}"
        for name, dims in expected.items()
        if name in found and tuple(found[name]) != tuple(dims)
    ]
    missing, extra = [n for n in expected if n not in found], [n for n in found if n not in expected]
    parts = [(shapes, "{}"), (missing, "lacks {}"), (extra, "has {}, which is no part of the model")]
    if not any(names for names, _ in parts):
        return ""
    if isinstance(settings, Path):
        settings = read_model_fields(settings)
    written = settings.get("transformers_version")
    version = f"; {CONFIG_NAME} was written by transformers {written}: a client needs that version" if written else ""
    return (
        f"model {address}: AR4: {'; '.join(text.format(_list(names)) for names, text in parts if names)}, as this "
        f"machine's transformers builds it from {CONFIG_NAME}{version}; a run's owner converts the model with "
        f"`psyche model convert {address} NEW-FOLDER`"
    )


def describe_missing(names: Iterable[str]) -> str:
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
