"""Forward and backward passes of one batch in micro-batches, which add up to the mean over all tokens."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from psyche.errors import TrainerError
from psyche.modeling.device import autocast

MIN_SEQUENCE_LENGTH = 2  # the last token of a sequence has nothing to predict


class Cancelled(Exception):
    """The batch was cancelled at a micro-batch boundary."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradient of a batch's mean loss, with its statistics.

    `tensors` are fp32 on the model's device, by name in the order of the parameters; `loss` is in nats per
    token, `norm` the global norm before clipping, `predicted` the number of predicted tokens.
    """

    tensors: dict[str, torch.Tensor]
    loss: float
    norm: float
    predicted: int

    @property
    def finite(self) -> bool:
        return math.isfinite(self.norm)


def decode_tokens(raw: bytes, samples: int, sequence_length: int, vocab_size: int) -> torch.Tensor:
    """Token ids as int64 [samples, sequence_length] on the CPU; `raw` has u32 little-endian ids, row after row."""
    if samples < 1 or sequence_length < MIN_SEQUENCE_LENGTH:
        raise TrainerError(
            f"batch: {samples} samples of {sequence_length} tokens, must be at least 1 sample of 2 tokens"
        )
    if len(raw) != 4 * samples * sequence_length:
        raise TrainerError(f"batch: {len(raw)} bytes for {samples} x {sequence_length} token ids of 4 bytes")
    ids = np.frombuffer(raw, dtype="<u4").astype(np.int64).reshape(samples, sequence_length)
    if (largest := int(ids.max())) >= vocab_size:
        row, column = divmod(int(ids.argmax()), sequence_length)
        raise TrainerError(
            f"batch: token id {largest} at sample {row}, position {column}: the vocabulary has {vocab_size}"
        )
    return torch.from_numpy(ids)


def compute_loss_sum(model: Any, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The summed next-token loss of some rows in nats, in fp32 whatever precision the forward pass has."""
    rows = rows.to(device)
    with autocast(device):
        logits = model(input_ids=rows, use_cache=False).logits
    targets = rows[:, 1:].reshape(-1)
    return functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), targets, reduction="sum")


def compute_gradients(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    tokens: torch.Tensor,
    *,
    micro_batch_size: int,
    device: torch.device,
    clip: float | None,
    check: Callable[[], None] = lambda: None,
) -> Gradients:
    """Forward and backward over one batch in micro-batches, accumulated in fp32; `tokens` is int64 [samples, length].

    Every micro-batch is weighted by its number of tokens, so that a smaller last one counts correctly. `check` is
    called before every micro-batch and at the end; if it raises `Cancelled`, parameters are unchanged.
    """
    predicted = tokens.shape[0] * (tokens.shape[1] - 1)
    loss = 0.0
    try:
        for rows in torch.split(tokens, micro_batch_size):
            check()
            loss_sum = compute_loss_sum(model, rows, device)
            torch.autograd.backward(loss_sum / predicted)
            loss += loss_sum.item()
        check()
        # A parameter that was not used has no gradient: its momentum still decays.
        tensors = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in parameters.items()}
    finally:
        for parameter in parameters.values():
            parameter.grad = None
    norm = _clip(list(tensors.values()), clip)
    return Gradients(tensors, loss / predicted, norm, predicted)


def _clip(gradients: list[torch.Tensor], clip: float | None) -> float:
    """Scale in place by clip / (norm + 1e-6) if the norm exceeds `clip`; return the norm before."""
    norm = float(nn.utils.get_total_norm(gradients))
    if clip is not None and norm > clip and math.isfinite(norm):
        scale = clip / (norm + 1e-6)
        for gradient in gradients:
            gradient.mul_(scale)
    return norm


def evaluate(model: nn.Module, tokens: torch.Tensor, *, micro_batch_size: int, device: torch.device) -> float:
    """The mean loss of some rows in nats per token, without gradients."""
    total = 0.0
    with torch.no_grad():
        for rows in torch.split(tokens, micro_batch_size):
            total += compute_loss_sum(model, rows, device).item()
    return total / (tokens.shape[0] * (tokens.shape[1] - 1))
