"""Devices: their selection, their arithmetic, and out-of-memory errors."""

import gc
from contextlib import AbstractContextManager

import torch

from psyche.core.encoding.header import NumericClass
from psyche.errors import TrainerError


def select_device(name: str) -> torch.device:
    """Select a device: "auto" (CUDA if available, otherwise CPU), "cpu", "cuda" or "cuda:N"."""
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


def try_device(device: torch.device) -> None:
    """Compute something on a device: a driver may show a GPU that torch cannot use."""
    try:
        torch.ones(8, device=device).sum().item()
    except Exception as error:  # torch raises errors of many kinds for a driver or a GPU that does not fit
        raise TrainerError(
            f"device {str(device)!r}: torch cannot compute on it: {error}; `psyche doctor` says what it finds"
        ) from error


def get_numeric_class(device: torch.device) -> NumericClass:
    """The arithmetic of gradients on a device: fp32 on a CPU, bf16 autocast on CUDA (V6)."""
    return NumericClass.BF16 if device.type == "cuda" else NumericClass.FP32


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """The context manager for a forward pass: bf16 autocast on CUDA, no change on a CPU; masters stay fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # torch's CPU allocator raises a plain RuntimeError
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def release_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
