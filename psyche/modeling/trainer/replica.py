"""What one device has of a model, and what a trainer does with it: gradients, payloads, updates.

`shard` has the same for a model that is divided among the ranks of a group.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from psyche.core.encoding.plan import compute_run_plan
from psyche.core.state.state import Optimizer
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.distro.statistics import Sums
from psyche.modeling.model import get_parameters, get_shapes, get_tensors
from psyche.modeling.trainer.batch import Gradients, Share, compute_gradients
from psyche.modeling.weights import Stored
from psyche.wire.trainer import SentResult


class Replica:
    """A whole model with its optimizer; `tensors` are all that the digest covers."""

    share = Share()
    is_group = False  # whether other ranks take part, which no failure may leave behind

    def __init__(self, model: nn.Module, optimizer: Optimizer, device: torch.device) -> None:
        self.model, self.device = model, device
        self.parameters = get_parameters(model)
        self.tensors: dict[str, torch.Tensor | Stored] = {**get_tensors(model)}
        self.plan = compute_run_plan(get_shapes(self.parameters), optimizer)
        self._clip = optimizer.clip_grad_norm
        self.distro = self._make_distro(optimizer.compression_decay)
        self.sums: dict[str, Sums] = {}
        model.train()

    def _make_distro(self, decay: float) -> Distro:
        return Distro(self.parameters, self.plan, decay)

    def compute(
        self, tokens: torch.Tensor, micro_batch_size: int, lookahead_lr: float, check: Callable[[], None]
    ) -> Gradients:
        """The gradients of a batch at the look-ahead point (none if `lookahead_lr` is 0)."""
        with self.look_ahead(lookahead_lr) if lookahead_lr > 0 else nullcontext():
            return compute_gradients(
                self.model, self.parameters, tokens, micro_batch_size=micro_batch_size, device=self.device,
                clip=self._clip, check=check, share=self.share,
            )  # fmt: skip

    def look_ahead(self, lr: float) -> AbstractContextManager[None]:
        return self.distro.lookahead(lr)

    def compress(
        self, gradients: Mapping[str, torch.Tensor], lr: float, decided: Sequence[SentResult], in_flight: bool,
        height: int, is_measured: bool = False,
    ) -> bytes:  # fmt: skip
        """The payload; afterwards `sums` are those of each tensor, if they are asked for."""
        payload = self.distro.compress(gradients, lr, decided, in_flight=in_flight, height=height)
        self.sums = self.distro.measure(gradients) if is_measured else {}
        return payload

    def apply(self, payloads: Sequence[bytes], lr: float, weight_decay: float) -> None:
        self.distro.apply(payloads, lr, weight_decay)

    def get_momentum(self) -> dict[str, torch.Tensor]:
        return self.distro.momentum.get_state()

    def load_momentum(self, state: Mapping[str, torch.Tensor]) -> None:
        self.distro.momentum.load_state(state)
