"""The trial of a loaded model with a few tokens (AR6): whether what a run relies on is true of it."""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import nn

from psyche.core.state.state import DataType, Model
from psyche.errors import UnusableModelError
from psyche.modeling.model import get_parameters, get_tensors
from psyche.modeling.snapshot import CONFIG_NAME
from psyche.modeling.trainer.batch import compute_losses
from psyche.modeling.trainer.source import Source
from psyche.modeling.weights import get_bytes
from psyche.wire.crypto import blake3_hash
from psyche.wire.data import BEGINS, NOT_COUNTED

ROWS: Final = 2
TOKENS: Final = 16
CAUSAL_TOLERANCE: Final = 1e-4  # of a logit: other tokens may change the order of sums, never what is added up
_STRIDE: Final = 7_919  # a prime: the tokens are spread over the vocabulary


class Trial:
    """Tries first weights each time, and a snapshot if this process has not tried its like."""

    def __init__(self) -> None:
        self._tried: object = None  # what of a model the last trial depended on, but for its values

    def run(self, model: nn.Module, source: Source, run: Model, device: torch.device, beat: Callable[[], None]) -> None:
        has_labels = run.data_type is DataType.FINETUNING
        tried = (source.files[CONFIG_NAME], run.max_seq_len, has_labels, str(device))
        if source.info is None or tried != self._tried:
            try_model(
                model, get_parameters(model), source.blueprint.vocab_size, run.max_seq_len, device, beat,
                has_labels=has_labels,
            )  # fmt: skip
            self._tried = tried


def try_model(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], vocab_size: int, max_seq_len: int, device: torch.device,
    beat: Callable[[], None] = lambda: None, *, has_labels: bool = False,
) -> None:  # fmt: skip
    """Try a model in the mode in which it is trained; its values and gradients are as before.

    With labels, rows are several sequences, which must not see each other.

    Raises:
        UnusableModelError: AR6 does not hold, or AR3: a pass changes a buffer.
    """
    length = min(TOKENS, max_seq_len)
    rows = (torch.arange(1, ROWS * length + 1) * _STRIDE % vocab_size).reshape(ROWS, length).to(device)
    _check_logits(model, rows, vocab_size)
    if has_labels:
        _check_sequences(model, rows, vocab_size, device)
    beat()
    buffers = {name: one.detach().clone() for name, one in get_tensors(model).items() if name not in parameters}
    first = _hash_gradients(model, parameters, rows, device)
    beat()
    if missing := sorted(parameters.keys() - first.keys()):
        raise UnusableModelError(f"AR6: the loss does not depend on {missing[0]}, so it cannot be trained; {_ADVICE}")
    if device.type == "cpu":
        second = _hash_gradients(model, parameters, rows, device)
        if different := sorted(name for name, digest in first.items() if second.get(name) != digest):
            raise UnusableModelError(f"AR6: two equal passes give {different[0]} other gradients; {_ADVICE}")
    changed = [name for name, one in get_tensors(model).items() if name in buffers and not one.equal(buffers[name])]
    if changed:
        raise UnusableModelError(f"AR3: a pass changes the buffer {changed[0]}, which a run keeps as it is; {_ADVICE}")


_ADVICE: Final = "take another model, or another version of transformers"


@torch.no_grad()
def _check_logits(model: nn.Module, rows: torch.Tensor, vocab_size: int) -> None:
    changed = rows.clone()
    changed[:, -1] = (changed[:, -1] + 1) % vocab_size
    logits, others = (model(input_ids=one, use_cache=False).logits.float() for one in (rows, changed))
    if logits.shape[-1] != vocab_size:
        raise UnusableModelError(
            f"AR6: the model gives {logits.shape[-1]} logits, but vocab_size is {vocab_size}; correct vocab_size"
        )
    if not bool(logits.isfinite().all()):
        raise UnusableModelError("AR6: the model gives logits that are NaN or infinite; take other weights")
    if (error := float((logits - others)[:, :-1].abs().max())) > CAUSAL_TOLERANCE:
        raise UnusableModelError(f"AR6: a later token changes earlier logits by {error:.1e}: not causal; {_ADVICE}")


@torch.no_grad()
def _check_sequences(model: nn.Module, rows: torch.Tensor, vocab_size: int, device: torch.device) -> None:
    """The loss of a row's second sequence must not depend on its first one."""
    half = rows.shape[1] // 2
    places = torch.arange(rows.shape[1], device=device) % half
    places[[0, half]] += BEGINS
    labels = rows.clone()
    labels[:, : half + 1] = NOT_COUNTED
    others = rows.clone()
    others[:, :half] = (others[:, :half] + 1) % vocab_size
    try:
        one, other = (
            compute_losses(model, torch.stack((ids, labels, places.expand_as(ids)), -1), device)[0].sum().item()
            for ids in (rows, others)
        )
    except Exception as error:  # a forward pass raises errors of many kinds for what it does not take
        raise UnusableModelError(
            f"AR6: the model does not take rows of several sequences, as 'Finetuning' has them: {error}; {_ADVICE}"
        ) from error
    if not abs(one - other) <= CAUSAL_TOLERANCE * rows.numel():
        raise UnusableModelError(f"AR6: a row's first sequence changes the loss of its second; {_ADVICE}")


def _hash_gradients(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], rows: torch.Tensor, device: torch.device
) -> dict[str, bytes]:
    """The hash of each parameter's gradient; each is dropped as soon as it is there."""
    found: dict[str, bytes] = {}

    def watch(name: str, parameter: nn.Parameter) -> torch.utils.hooks.RemovableHandle:
        def take(one: torch.Tensor) -> None:
            if one.grad is not None:
                found[name] = blake3_hash(get_bytes(one.grad))
                one.grad = None

        return parameter.register_post_accumulate_grad_hook(take)

    handles = [watch(name, parameter) for name, parameter in parameters.items()]
    try:
        losses, own = compute_losses(model, rows, device)
        torch.autograd.backward(losses.sum() + own)
    finally:
        for handle in handles:
            handle.remove()
    return found
