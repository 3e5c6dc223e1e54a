"""Local steps for one trainer: rounds of inner steps, the exchange of what they moved, and the apply."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from psyche.core.encoding.plan import TransformPlan
from psyche.core.state.state import Optimizer
from psyche.modeling.device import allocate
from psyche.modeling.local.exchange import Exchange, Part
from psyche.modeling.local.inner import InnerSteps


class LocalSteps:
    """The optimizer of one member over its fp32 masters, `parameters` by name, which it changes in place.

    While a round is open they are the member's own weights, and a copy of the masters lies beside them. Error memory,
    copy and inner state are on `host`, if one is given.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        plan: TransformPlan,
        settings: Optimizer,
        host: torch.device | None = None,
    ) -> None:
        self._parameters, self._plan, self._settings, self._host = parameters, plan, settings, host
        self._rate = settings.outer_rate
        self.exchange = Exchange(parameters, plan, settings.error_decay, host=host)
        self.inner = InnerSteps(parameters, settings, host)
        self._masters: list[torch.Tensor] = []  # allocated at the first use
        self._is_open = False
        self._guess: Sequence[Part] = ()  # what the round takes for the set that is in flight

    @torch.no_grad()
    def begin(self, own: Sequence[Part] = ()) -> None:
        """Begin a round where the own result in flight, if there is one, would lead alone (LS5)."""
        self.abandon()
        weights = self._parameters.values()
        if not self._masters:
            self._masters = [allocate(weight.shape, weight.device, self._host) for weight in weights]
        for weight, master in zip(weights, self._masters, strict=True):
            master.copy_(weight)
        self._is_open = True
        self._guess = own
        self.exchange.apply(own, self._rate)
        self.inner.begin_round()

    @contextmanager
    def replay(self, own: Sequence[Part], done: int) -> Iterator[None]:
        """A round of another member, whose inner state begins anew; the own one is then as before."""
        kept, self.inner = self.inner, InnerSteps(self._parameters, self._settings, self._host, done)
        try:
            self.begin(own)
            yield
        finally:
            self.abandon()
            self.inner = kept

    def step(self, number: int, gradients: Mapping[str, torch.Tensor], rates: tuple[float, float]) -> None:
        """Inner step `number` of a round that has these learning rates at its start and end."""
        self.inner.step(gradients, self.inner.get_rate(number, rates))

    def merge(self, held: Sequence[Part]) -> None:
        """Put the mean of the results that are held into the place of the guess (LS5)."""
        if held:
            self.exchange.apply(self._guess, -self._rate)
            self.exchange.apply(held, self._rate)
            self._guess = held

    @torch.no_grad()
    def end(self) -> dict[str, torch.Tensor]:
        """End the round: what its inner steps moved. The masters have their own bits again."""
        assert self._is_open, "a round is open"
        weights = self._parameters.values()
        deltas = {name: weight.detach().clone() for name, weight in self._parameters.items()}
        self._restore()
        self.exchange.apply(self._guess, self._rate)  # where the inner steps began, as if nothing had been merged
        for delta, start in zip(deltas.values(), weights, strict=True):
            torch.sub(start, delta, out=delta)
        self.abandon()
        return deltas

    def abandon(self) -> None:
        """End the round, if one is open, as if it had never begun; only the inner state goes on from where it is."""
        if self._is_open:
            self._restore()
        self._is_open, self._guess = False, ()

    @torch.no_grad()
    def _restore(self) -> None:
        for weight, master in zip(self._parameters.values(), self._masters, strict=True):
            weight.copy_(master)

    def apply(self, parts: Sequence[Part]) -> None:
        """Apply a decided set (LS4); no round may be open."""
        assert not self._is_open, "the masters are in their place"
        self.exchange.apply(parts, self._rate)

    def get_state(self) -> dict[str, torch.Tensor]:
        """Error memory and inner state as tensors by name, for a snapshot: a member's own (LS8)."""
        return {**self.exchange.memory.get_state(), **self.inner.get_state(self._plan)}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self.exchange.memory.load_state(state)
        self.inner.load_state(self._plan, state)
