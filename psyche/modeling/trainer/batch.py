"""Forward and backward passes of one batch in micro-batches, which add up to the mean over all tokens."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from psyche.core.encoding.header import NumericClass
from psyche.errors import TrainerError
from psyche.modeling.device import autocast
from psyche.wire.data import BEGINS, LABELLED_BYTES, NOT_COUNTED

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


class Share:
    """The part of a batch that one rank computes: of a trainer's only rank, the whole."""

    ranks = 1  # that divide the rows of a micro-batch

    def take(self, rows: torch.Tensor, micro_batch_size: int) -> tuple[torch.Tensor, float]:
        """The rank's rows of up to `ranks` times `micro_batch_size`, and their weight: 0 for rows that only fill up."""
        del micro_batch_size
        return rows, 1.0

    def collect(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor]:
        # A parameter that was not used has no gradient: its momentum still decays.
        return {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in parameters.items()}

    def add(self, loss: float) -> float:
        """The sum of all ranks' losses."""
        return loss

    def add_norm(self, norm: float) -> float:
        """The norm of all ranks' gradients together."""
        return norm


ALONE: Final = Share()


class PieceLog(ABC):
    """Who looks at a batch piece by piece (V1). 0 samples: the whole is one."""

    piece_samples: int

    def count_at_once(self, micro_batch_size: int) -> int:
        """The pieces that one micro-batch may have: else none spans two of them."""
        del micro_batch_size
        return 1

    def watch(self, samples: int) -> AbstractContextManager[object]:
        """Look at the passes of several pieces at once, of so many samples."""
        del samples
        return nullcontext()

    @abstractmethod
    def add(self, losses: Sequence[float], gradients: Mapping[str, torch.Tensor]) -> None:
        """The summed loss of each sample since the last call, and the gradient of the batch's mean loss up to here.

        That is one piece, unless several were watched. The gradient is accumulated and not clipped.
        """


def decode_tokens(
    raw: bytes, samples: int, sequence_length: int, vocab_size: int, *, has_labels: bool = False
) -> torch.Tensor:
    """Token ids as int64 [samples, sequence_length] on the CPU; `raw` has u32 little-endian ids, row after row.

    With labels: [samples, sequence_length, 3], each token's id, label and position (`wire.data`).
    """
    if samples < 1 or sequence_length < MIN_SEQUENCE_LENGTH:
        raise TrainerError(
            f"batch: {samples} samples of {sequence_length} tokens, must be at least 1 sample of 2 tokens"
        )
    size_bytes = LABELLED_BYTES if has_labels else 4
    if len(raw) != size_bytes * samples * sequence_length:
        raise TrainerError(f"batch: {len(raw)} bytes for {samples} x {sequence_length} tokens of {size_bytes} bytes")
    rows = np.frombuffer(raw, dtype="<u4").astype(np.int64).reshape(samples, sequence_length, -1)
    ids = rows[..., 0]
    if (largest := int(ids.max())) >= vocab_size:
        row, column = divmod(int(ids.argmax()), sequence_length)
        raise TrainerError(
            f"batch: token id {largest} at sample {row}, position {column}: the vocabulary has {vocab_size}"
        )
    if not has_labels:
        return torch.from_numpy(ids)
    labels = rows[..., 1].astype(np.int32)  # signed
    if ((labels != NOT_COUNTED) & ((labels < 0) | (labels >= vocab_size))).any():
        raise TrainerError(f"batch: a label is neither {NOT_COUNTED} nor below {vocab_size}, the vocabulary's size")
    rows[..., 1] = np.where(rows[..., 2] >= BEGINS, NOT_COUNTED, labels)  # the model predicts it from nothing
    return torch.from_numpy(rows)


def count_predicted(rows: torch.Tensor) -> int:
    """The number of tokens that count in the loss: each but a row's first or, with labels, those with one."""
    if rows.dim() == 2:
        return rows.shape[0] * (rows.shape[1] - 1)
    return int((rows[:, 1:, 1] != NOT_COUNTED).sum())


def compute_losses(
    model: Any, rows: torch.Tensor, device: torch.device, numeric_class: NumericClass | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The summed next-token loss of each row in nats, in fp32 whatever precision the forward pass has; and a router's.

    That is the device's own arithmetic, unless another class is asked for.

    With labels a token attends to those of its own sequence only. A mixture of experts has its router's own loss, which
    is trained on and not reported, only if its config says `output_router_logits`; it counts as much as the rows do.
    """
    rows = rows.to(device)
    inputs, targets = {"input_ids": rows}, rows
    if rows.dim() == 3:
        ids, targets, places = rows.unbind(-1)
        sequences = (places >= BEGINS).cumsum(1)
        mask = (sequences[:, None, :, None] == sequences[:, None, None, :]).tril()
        inputs = {"input_ids": ids, "position_ids": places & (BEGINS - 1), "attention_mask": mask}
    with autocast(device, numeric_class):
        output = model(**inputs, use_cache=False)
    logits = output.logits[:, :-1].float().flatten(0, 1)
    each = functional.cross_entropy(logits, targets[:, 1:].reshape(-1), reduction="none", ignore_index=NOT_COUNTED)
    losses = each.view(len(rows), -1).sum(1)
    own = getattr(output, "aux_loss", None)
    if own is None:
        return losses, losses.new_zeros(())
    return losses, own.float() * model.config.router_aux_loss_coef * count_predicted(rows)


def compute_gradients(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    tokens: torch.Tensor,
    *,
    micro_batch_size: int,
    device: torch.device,
    clip: float | None,
    check: Callable[[], None] = lambda: None,
    share: Share = ALONE,
    pieces: PieceLog | None = None,
    predicted: int = 0,
    numeric_class: NumericClass | None = None,
) -> Gradients:
    """Forward and backward over one batch in micro-batches, accumulated in fp32; `tokens` are those of `decode_tokens`.

    Every micro-batch is weighted by its number of predicted tokens, so that a smaller last one counts correctly.
    `check` is called before every micro-batch and at the end; if it raises `Cancelled`, parameters are unchanged.
    With several ranks, each does its `share`, and has its part of the gradient. Of a part of a batch `predicted` is the
    number of predicted tokens of the whole.
    """
    predicted = predicted or count_predicted(tokens)
    samples = (pieces.piece_samples if pieces else 0) or len(tokens)
    at_once = pieces.count_at_once(micro_batch_size) if pieces else 1
    loss = 0.0
    try:
        for group in torch.split(tokens, samples * at_once):
            losses: list[float] = []
            with pieces.watch(len(group)) if pieces and len(group) > samples else nullcontext():
                for rows in torch.split(group, micro_batch_size * share.ranks):
                    check()
                    part, weight = share.take(rows, micro_batch_size)
                    each, own = (one * weight for one in compute_losses(model, part, device, numeric_class))
                    torch.autograd.backward((each.sum() + own) / predicted)
                    losses += each.tolist()
            loss += math.fsum(losses)
            if pieces is not None:
                pieces.add(losses, share.collect(parameters))
        check()
        tensors = share.collect(parameters)
    finally:
        for parameter in parameters.values():
            parameter.grad = None
    norm = clip_gradients(list(tensors.values()), clip, share)
    return Gradients(tensors, share.add(loss) / predicted, norm, predicted)


def clip_gradients(gradients: list[torch.Tensor], clip: float | None, share: Share = ALONE) -> float:
    """Scale in place by clip / (norm + 1e-6) if the norm exceeds `clip`; return the norm before."""
    norm = share.add_norm(float(nn.utils.get_total_norm(gradients)))
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
            total += compute_losses(model, rows, device)[0].sum().item()
    return total / count_predicted(tokens)
