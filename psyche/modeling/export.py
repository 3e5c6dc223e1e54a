"""Models for users: Hugging Face folders, written tensor by tensor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from psyche.durable import describe_write_error, write_file
from psyche.errors import TrainerError
from psyche.modeling.model_card import CARD_NAME
from psyche.modeling.snapshot import write_folder, write_model_files
from psyche.modeling.user_files import build_user_files
from psyche.modeling.weight_files import MAX_SHARD_BYTES, write_weights

# By what users call them: torch's type, and its name in a safetensors file.
EXPORT_DTYPES: Final = {
    "float32": (torch.float32, "F32"), "bfloat16": (torch.bfloat16, "BF16"), "float16": (torch.float16, "F16"),
}  # fmt: skip


def export_model(
    path: Path, tensors: Mapping[str, torch.Tensor], model_files: Mapping[str, bytes], dtype: str, card: str,
    *, max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:  # fmt: skip
    """Write a Hugging Face folder that `AutoModelForCausalLM.from_pretrained` loads; replace an old one atomically.

    `tensors` are the fp32 masters and buffers, of which one at a time is copied and rounded to `dtype`. `model_files`
    (config.json and tokenizer files) are completed for users (`build_user_files`). No file of weights is larger than
    `max_shard_bytes`, unless one tensor is.
    """
    if dtype not in EXPORT_DTYPES:
        raise TrainerError(f"export {path}: dtype {dtype!r}, must be one of {', '.join(EXPORT_DTYPES)}")
    files = build_user_files(model_files, dtype)
    try:
        with write_folder(path) as folder:
            dims = {name: tensor.shape for name, tensor in tensors.items()}
            write_weights(
                folder, dims, EXPORT_DTYPES[dtype][1], lambda name: [_get_values(name, tensors[name], dtype)],
                max_shard_bytes=max_shard_bytes,
            )  # fmt: skip
            write_model_files(folder, files)
            write_file(folder / CARD_NAME, card.encode())
    except OSError as error:
        raise TrainerError(f"export {path}: cannot be written: {describe_write_error(error)}") from error


def _get_values(name: str, tensor: torch.Tensor, dtype: str) -> memoryview:
    rounded = tensor.detach().to("cpu", EXPORT_DTYPES[dtype][0]).contiguous().reshape(-1)
    if dtype == "float16" and not bool(rounded.isfinite().all()) and bool(tensor.isfinite().all()):
        raise TrainerError(f"export: float16 cannot hold the values of {name}; export bfloat16 or float32")
    kind = {4: (torch.int32, "<i4"), 2: (torch.int16, "<i2")}[rounded.itemsize]
    array = rounded.view(kind[0]).numpy().astype(kind[1], copy=False)
    return memoryview(array.data).cast("B")
