"""The inner steps of a round: a member's own optimizer between two exchanges (LS1, LS2)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch

from psyche.core.encoding.plan import TransformPlan
from psyche.core.state.enums import ANEW, MUON
from psyche.core.state.state import Optimizer
from psyche.errors import TrainerError
from psyche.modeling.device import allocate
from psyche.modeling.local.muon import Muon
from psyche.modeling.local.offload import OffloadedState
from psyche.modeling.local.state import COUNTS, gather_chunks, scatter_chunks

BETAS: Final = (0.9, 0.95)
EPS: Final = 1e-8
_IN_LAYER: Final = re.compile(r"\.\d+\.")  # tensors of one of many equal layers have its number in their names
_KINDS: Final = ("first", "second")  # moments
_ADAMW_STATE: Final = ("exp_avg", "exp_avg_sq")
_MUON_STATE: Final = ("momentum_buffer",)


def split_samples(samples: int, inner_steps: int) -> Iterator[tuple[int, slice]]:
    """The number of each inner batch of a round and its samples; with fewer samples than steps some are left out."""
    for step in range(inner_steps):
        part = slice(step * samples // inner_steps, (step + 1) * samples // inner_steps)
        if part.start < part.stop:
            yield step, part


def is_muons(name: str, dims: Sequence[int], settings: Optimizer) -> bool:
    """Whether Muon trains a tensor; it needs all of it."""
    return settings.inner_optimizer in MUON and len(dims) == 2 and _IN_LAYER.search(name) is not None


class InnerSteps:
    """The inner optimizer of one member over its parameters, which it changes in place.

    Its state is the member's own, and is kept from round to round or begins anew in each (LS2).
    """

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], settings: Optimizer, host: torch.device | None = None,
        done: int = 0,
    ) -> None:  # fmt: skip
        self._parameters, self._settings, self._host = parameters, settings, host
        self._offloaded = None if host is None else OffloadedState(host)
        self._optimizers = self._make()
        self.done = done  # inner steps since the member joined

    def _make(self) -> list[torch.optim.Optimizer]:
        decay = self._settings.weight_decay or 0.0
        inside = {n: p for n, p in self._parameters.items() if is_muons(n, p.shape, self._settings)}
        rest = [parameter for name, parameter in self._parameters.items() if name not in inside]
        made: list[torch.optim.Optimizer] = []
        if rest:
            made.append(torch.optim.AdamW(rest, betas=BETAS, eps=EPS, weight_decay=decay))
        if inside:
            made.append(Muon(inside.values(), weight_decay=decay))
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
        return rate * min(1.0, (self.done + 1) / (2 * count))

    def step(self, gradients: Mapping[str, torch.Tensor], rate: float) -> None:
        """One step with gradients that are finite and clipped."""
        for group in (group for optimizer in self._optimizers for group in optimizer.param_groups):
            group["lr"] = rate
        if self._offloaded is None:
            self._step(gradients)
        else:  # a tensor at a time: only its moments are on the device
            for name, gradient in gradients.items():
                self._step_offloaded(self._offloaded, name, gradient)
        self.done += 1

    def _step(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Move the tensors that have gradients."""
        for name, gradient in gradients.items():
            self._parameters[name].grad = gradient
        for optimizer in self._optimizers:
            optimizer.step()
        for name in gradients:
            self._parameters[name].grad = None

    def _step_offloaded(self, offloaded: OffloadedState, name: str, gradient: torch.Tensor) -> None:
        parameter = self._parameters[name]
        for optimizer in self._optimizers:
            offloaded.bring(parameter, optimizer.state.get(parameter, {}))
        self._step({name: gradient})
        for optimizer in self._optimizers:
            offloaded.put_back(parameter, optimizer.state.get(parameter, {}))

    def allocate(self, steps: int = 0) -> None:
        """Make the moments, zero, as they are after so many steps; else the first step makes them."""
        for optimizer in self._optimizers:
            for parameter in optimizer.param_groups[0]["params"]:
                names = _MUON_STATE if isinstance(optimizer, Muon) else _ADAMW_STATE
                shape, device = parameter.shape, parameter.device
                optimizer.state[parameter] = {name: allocate(shape, device, self._host) for name in names}
                if names is _ADAMW_STATE:
                    optimizer.state[parameter]["step"] = torch.tensor(float(steps))

    def get_state(self, plan: TransformPlan) -> dict[str, torch.Tensor]:
        """The moments, in chunks of the plan, and the counts of steps; without moments before the first step."""
        kept = self._settings.inner_optimizer not in ANEW and bool(self._optimizers[0].state)
        state = {COUNTS: torch.tensor([self.done, self._count_steps() if kept else 0, self._has_muon])}
        for kind in _KINDS if kept else ():
            state |= gather_chunks(plan, kind, {name: one[kind] for name, one in self._view_moments().items()})
        return state

    def load_state(self, plan: TransformPlan, state: Mapping[str, torch.Tensor]) -> None:
        """Restore what `get_state` returned; of another optimizer only the count of steps is of use."""
        counts = state.get(COUNTS)
        if counts is None or counts.shape != (3,):
            raise TrainerError(f"momentum snapshot: {COUNTS} is missing; was the run's optimizer changed?")
        self.done, steps, has_muon = map(int, counts.tolist())
        self._optimizers = self._make()
        if not steps or bool(has_muon) != self._has_muon:
            return
        self.allocate(steps)
        for kind in _KINDS:
            scatter_chunks(plan, kind, state, {name: one[kind] for name, one in self._view_moments().items()})

    @property
    def _has_muon(self) -> bool:
        return self._settings.inner_optimizer in MUON

    def _count_steps(self) -> int:
        counts = [one["step"] for optimizer in self._optimizers for one in optimizer.state.values() if "step" in one]
        return int(counts[0]) if counts else self.done

    def _view_moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """The first and second moment of each tensor; Muon has no second one."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for name, parameter in self._parameters.items():
            state = next(one.state[parameter] for one in self._optimizers if parameter in one.state)
            names = _ADAMW_STATE if "step" in state else _MUON_STATE
            moments = [state[one] for one in names]
            found[name] = dict(zip(_KINDS, [*moments, torch.zeros_like(parameter)], strict=False))
        return found
