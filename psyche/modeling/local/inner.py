"""The inner steps of a round: a member's own optimizer between two exchanges (LS1, LS2)."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import nn

from psyche.core.state.state import InnerOptimizer, Optimizer
from psyche.modeling.trainer.batch import Gradients

BETAS: Final = (0.9, 0.95)
EPS: Final = 1e-8
_IN_LAYER: Final = re.compile(r"\.\d+\.")  # tensors of one of many equal layers have its number in their names
ANEW: Final = (InnerOptimizer.ADAMW_ANEW, InnerOptimizer.MUON_ANEW)
MUON: Final = (InnerOptimizer.MUON, InnerOptimizer.MUON_ANEW)


def split_samples(samples: int, inner_steps: int) -> Iterator[tuple[int, slice]]:
    """The number of each inner batch of a round and its samples; with fewer samples than steps some are left out."""
    for step in range(inner_steps):
        part = slice(step * samples // inner_steps, (step + 1) * samples // inner_steps)
        if part.start < part.stop:
            yield step, part


class InnerSteps:
    """The inner optimizer of one member over its parameters, which it changes in place.

    Its state is the member's own, and is kept from round to round or begins anew in each (LS2).
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: Optimizer) -> None:
        self._parameters, self._settings = parameters, settings
        self._optimizers = self._make()
        self._done = 0  # inner steps since the member joined

    def _make(self) -> list[torch.optim.Optimizer]:
        decay = self._settings.weight_decay or 0.0
        is_muon = self._settings.inner_optimizer in MUON
        inside = {n: p for n, p in self._parameters.items() if is_muon and p.dim() == 2 and _IN_LAYER.search(n)}
        rest = [parameter for name, parameter in self._parameters.items() if name not in inside]
        made: list[torch.optim.Optimizer] = []
        if rest:
            made.append(torch.optim.AdamW(rest, betas=BETAS, eps=EPS, weight_decay=decay))
        if inside:  # with the size of AdamW's steps, so that one learning rate does for both
            muon = torch.optim.Muon(inside.values(), weight_decay=decay, adjust_lr_fn="match_rms_adamw")
            made.append(muon)
        return made

    def begin_round(self) -> None:
        if self._settings.inner_optimizer in ANEW:
            self._optimizers = self._make()

    def get_rate(self, step: int, rates: tuple[float, float]) -> float:
        """The learning rate of an inner step of a round with these rates at its start and end (LS1).

        A newcomer's rises over its first two rounds (LS8).
        """
        count = self._settings.inner_steps
        rate = rates[0] + (rates[1] - rates[0]) * step / count
        return rate * min(1.0, (self._done + 1) / (2 * count))

    def step(self, gradients: Gradients, rate: float) -> None:
        """One step with gradients that are finite and clipped."""
        for name, parameter in self._parameters.items():
            parameter.grad = gradients.tensors[name]
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        for parameter in self._parameters.values():
            parameter.grad = None
        self._done += 1


class Moves:
    """What a round's inner steps move: start minus end, without the shifts between them (LS3, LS5)."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._weights = weights
        self._starts = [weight.detach().clone() for weight in weights]

    @torch.no_grad()
    def shift(self, move: Callable[[], None]) -> None:
        """Let `move` change the weights; it is no part of what was trained."""
        for start, weight in zip(self._starts, self._weights, strict=True):
            start.sub_(weight)
        move()
        for start, weight in zip(self._starts, self._weights, strict=True):
            start.add_(weight)

    @torch.no_grad()
    def take(self) -> list[torch.Tensor]:
        """The deltas; may be called once."""
        return [start.sub_(weight) for start, weight in zip(self._starts, self._weights, strict=True)]
