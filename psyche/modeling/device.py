"""Devices: which one to use, how it computes, and how it runs out of memory."""

import gc
from contextlib import AbstractContextManager

import torch

from psyche.core.encoding.header import NumericClass
from psyche.errors import TrainerError


def select_device(name: str) -> torch.device:
    """The device called `name`: "auto" (CUDA where there is one, else CPU), "cpu", "cuda" or "cuda:N".

    Raises:
        TrainerError: no such device on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise TrainerError(f"device {name!r}: unknown; use auto, cpu, cuda or cuda:N") from error
    if device.type not in {"cpu", "cuda"}:
        raise TrainerError(f"device {name!r}: only cpu and cuda are supported")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise TrainerError(f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu")
    return device


def get_numeric_class(device: torch.device) -> NumericClass:
    """How gradients are computed there: fp32 on a CPU, bf16 autocast on CUDA (V6)."""
    return NumericClass.BF16 if device.type == "cuda" else NumericClass.FP32


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass: bf16 on CUDA, nothing changed on a CPU; the masters stay fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch or Python means that memory ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # torch's CPU allocator raises a plain RuntimeError
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def release_memory(device: torch.device) -> None:
    """Give back what a failed attempt left behind."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
