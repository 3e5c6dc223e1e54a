"""Model folders for tests that read no weights: a config.json, and weight files of zeros with true headers."""

import json
import math
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from psyche.modeling.model_config import get_sizes, list_tensors

LLAMA: Final[Mapping[str, Any]] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}
PREFIX: Final = "model."


def write_model_folder(folder: Path, **changes: object) -> Path:
    """Write a model's folder; keywords replace fields of `LLAMA`."""
    folder.mkdir(parents=True)
    settings = {**LLAMA, **changes}
    (folder / "config.json").write_text(json.dumps(settings))
    write_header(folder / "model.safetensors", settings)
    return folder


def write_header(
    path: Path, settings: Mapping[str, Any], *, without: Collection[str] = (), prefix: str = PREFIX
) -> None:
    """Write a safetensors file of these sizes: its header, and a hole of the tensors' size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dims in list_tensors(get_sizes(settings)):
        if name not in without:
            first, end = end, end + 4 * math.prod(dims)
            shown = prefix + name.removeprefix(PREFIX) if name.startswith(PREFIX) else name
            header[shown] = {"dtype": "F32", "shape": dims, "data_offsets": [first, end]}
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + end)
