"""Moments of torch's optimizers in the host's memory (`--offload`)."""

from collections.abc import MutableMapping
from typing import Any

import torch

from psyche.modeling.device import allocate


class OffloadedState:
    """They are on the device only while a step of their parameter runs."""

    def __init__(self, host: torch.device) -> None:
        self._host = host
        self._kept: dict[tuple[torch.Tensor, str], torch.Tensor] = {}

    def bring(self, parameter: torch.Tensor, state: MutableMapping[str, Any]) -> None:
        for name, moment in _get_moments(parameter, state):
            state[name] = moment.to(parameter.device, copy=True)

    def put_back(self, parameter: torch.Tensor, state: MutableMapping[str, Any]) -> None:
        for name, moment in _get_moments(parameter, state):
            if (parameter, name) not in self._kept:
                self._kept[parameter, name] = allocate(moment.shape, moment.device, self._host)
            state[name] = self._kept[parameter, name].copy_(moment)


def _get_moments(parameter: torch.Tensor, state: MutableMapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """All but counts of steps."""
    return [(name, one) for name, one in state.items() if one.shape == parameter.shape and name != "step"]
