"""One trainer's momentum, in the frequency domain, and the values it has sent that are not decided yet.

Momentum accumulates lr * gradient of every round, decayed. Values that a result sent are taken out (set to zero) before
the next training. If the record decides against the result, they are given back (R8).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from psyche.core.encoding.plan import PlanGroup, TransformPlan
from psyche.errors import TrainerError
from psyche.modeling.device import allocate
from psyche.wire.trainer import SentResult

_BLOCK_ENTRIES: Final = 1 << 16  # so that temporaries do not grow with the model
_KEPT: Final = 2  # results that may be undecided at once: the last, and with overlap the one before
Chosen = tuple[torch.Tensor, torch.Tensor]  # indices int32 and values float32, [chunks, k], as returned by `select`


@dataclass(slots=True)
class _Sent:
    """The values that an own result sent, per group, decayed as if they were still in the momentum."""

    height: int
    is_taken_out: bool
    chosen: list[Chosen]


def name_group(group: PlanGroup) -> str:
    height, width = group.edges
    return f"{height}x{width}"


def find_group(plan: TransformPlan, name: str) -> tuple[int, int] | None:
    """The chunk edges that a tensor of the state (`Momentum.get_state`) has rows for; None: it has none."""
    return next((group.edges for group in plan.groups if name_group(group) in name.split(".")), None)


class Momentum:
    """The momentum of all groups, and the sent values of the last two own results.

    `coefficients` holds one float32 tensor [chunks, area] per group of the plan, in its order: on `host`, if one is
    given, and else on the device. `kernels` are the compiled loops, if they are to be used.
    """

    taken_out = 0.0  # the factor of what is sent when it is taken out; 0 leaves zeros

    def __init__(
        self, plan: TransformPlan, decay: float, device: torch.device, host: torch.device | None = None,
        kernels: Any = None,
    ) -> None:  # fmt: skip
        self._plan, self._device, self._host, self._kernels = plan, device, host, kernels
        self.decay = decay
        self._sent: list[_Sent] = []  # oldest first
        self._spare: list[list[Chosen]] = []
        self.coefficients = [allocate((group.chunks, group.area), device, host) for group in plan.groups]

    def read(self, place: int, rows: slice) -> torch.Tensor:
        """The coefficients of some chunks of a group on the device, float32 [chunks, area], not to be changed."""
        kept = self.coefficients[place][rows]
        return kept if self._host is None else kept.to(self._device, copy=True)

    @contextmanager
    def change(self, place: int, rows: slice) -> Iterator[torch.Tensor]:
        """The same, to be changed in place inside the context."""
        lent = self.read(place, rows)
        yield lent
        if self._host is not None:
            self.coefficients[place][rows].copy_(lent)

    def settle(self, decided: Sequence[SentResult], height: int, *, in_flight: bool) -> None:
        """Take out or give back sent values, before training round `height`.

        Values of a decided result are taken out if it was applied, and given back if not. Values of an undecided
        result are taken out while `in_flight` is set; otherwise the result counts as not applied, because without
        overlap and at an epoch's start the record has decided everything that was applied. Results whose height is
        not below `height` are from an earlier epoch, so they are not in flight.
        """
        fates = {result.height: result.applied for result in decided}
        kept: list[_Sent] = []
        returned: list[_Sent] = []
        for sent in self._sent:
            is_open = sent.height not in fates and in_flight and sent.height < height
            is_out = is_open or fates.get(sent.height, False)
            if is_out and not sent.is_taken_out:
                for coefficients, chosen in zip(self.coefficients, sent.chosen, strict=True):
                    self._add(coefficients, chosen, self.taken_out)
                sent.is_taken_out = True
            if not is_out and sent.is_taken_out:
                returned.append(sent)
            if is_open:
                kept.append(sent)
        # Only after all zeros are written, so that a place sent by both results keeps the values given back.
        for sent in returned:
            for coefficients, chosen in zip(self.coefficients, sent.chosen, strict=True):
                self._add(coefficients, chosen, 1.0)
        self._spare = [sent.chosen for sent in self._sent if not any(sent is one for one in kept)]
        self._sent = kept

    def lend(self, place: int) -> Chosen:
        """Arrays for what the next result takes of a group: those of a result that is decided, if there is one."""
        if self._spare:
            return self._spare[0][place]
        group, kept_on = self._plan.groups[place], self._host or self._device
        indices, values = (
            torch.empty((group.chunks, group.k), dtype=kind, device=kept_on) for kind in (torch.int32, torch.float32)
        )
        return indices, values

    def decay_block(self, place: int, rows: slice, gradient: torch.Tensor) -> torch.Tensor:
        """m = decay * m + gradient for some chunks of a group; a view of the new momentum, float32 [chunks, area].

        These are two separate operations, so that values given back later are exactly what would have been here.
        `gradient` is lr times the transformed gradient, float32 [chunks, h, w].
        """
        with self.change(place, rows) as coefficients:
            return coefficients.mul_(self.decay).add_(gradient.view(coefficients.shape))

    def record_sent(self, height: int, chosen: Sequence[Chosen]) -> None:
        kept_on = self._host or self._device
        chosen = [(indices.to(kept_on), values.to(kept_on)) for indices, values in chosen]
        for sent in self._sent:
            for _, values in sent.chosen:
                values.mul_(self.decay)  # as they would have decayed in the momentum
        self._spare = []
        self._sent = [*self._sent, _Sent(height, is_taken_out=False, chosen=list(chosen))][-_KEPT:]

    def get_last_sent(self, place: int) -> Chosen:
        """What the last result took of a group."""
        indices, values = self._sent[-1].chosen[place]
        return indices.to(self._device), values.to(self._device)

    def get_state(self) -> dict[str, torch.Tensor]:
        """The whole state as tensors by name, for a snapshot; they are not copies."""
        state = {
            f"momentum.{name_group(group)}": tensor
            for group, tensor in zip(self._plan.groups, self.coefficients, strict=True)
        }
        sent = [(item.height, int(item.is_taken_out)) for item in self._sent]
        state["sent"] = torch.tensor(sent, dtype=torch.int64).view(-1, 2)
        for number, item in enumerate(self._sent):
            for group, (indices, values) in zip(self._plan.groups, item.chosen, strict=True):
                state[f"sent.{number}.{name_group(group)}.indices"] = indices
                state[f"sent.{number}.{name_group(group)}.values"] = values
        return state

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore the state returned by `get_state`, bit for bit."""
        heights = _read(state, "sent", (None, 2), torch.int64).tolist()
        if len(heights) > _KEPT:
            raise TrainerError(f"momentum snapshot: {len(heights)} sent results, at most {_KEPT} are kept")
        momenta = [
            _read(state, f"momentum.{name_group(group)}", (group.chunks, group.area), torch.float32)
            for group in self._plan.groups
        ]
        sent = [self._read_sent(state, number, *entry) for number, entry in enumerate(heights)]
        for own, loaded in zip(self.coefficients, momenta, strict=True):
            own.copy_(loaded)
        self._sent = sent

    def _read_sent(self, state: Mapping[str, torch.Tensor], number: int, height: int, is_taken_out: int) -> _Sent:
        chosen: list[Chosen] = []
        kept_on = self._host or self._device
        for group in self._plan.groups:
            shape = (group.chunks, group.k)
            indices = _read(state, f"sent.{number}.{name_group(group)}.indices", shape, torch.int32)
            values = _read(state, f"sent.{number}.{name_group(group)}.values", shape, torch.float32)
            if int(indices.min()) < 0 or int(indices.max()) > group.area:
                raise TrainerError(f"momentum snapshot: sent.{number}: an index is not between 0 and {group.area}")
            chosen.append((indices.to(kept_on, copy=True), values.to(kept_on, copy=True)))
        return _Sent(height, bool(is_taken_out), chosen)

    def _add(self, coefficients: torch.Tensor, chosen: Chosen, factor: float) -> None:
        """Add what was sent of a group, times a factor; with 0 make it zero."""
        if self._kernels is not None:
            self._kernels.add_entries(coefficients, chosen, factor)
            return
        flat = coefficients.view(-1)
        for places, values in iterate_entries(chosen, coefficients.shape[1]):
            flat[places] = flat[places] + values * factor if factor else 0.0


def iterate_entries(chosen: Chosen, area: int) -> Iterator[Chosen]:
    """The flat places (int64) and values of the entries without padding, some at a time; each place occurs once."""
    rows = max(1, _BLOCK_ENTRIES // chosen[0].shape[1])
    for number, (indices, values) in enumerate(zip(*(part.split(rows) for part in chosen), strict=True)):
        first = torch.arange(len(indices), device=indices.device).add_(number * rows).mul_(area)[:, None]
        is_there = indices < area
        yield (first + indices)[is_there], values[is_there]


def _read(
    state: Mapping[str, torch.Tensor], name: str, shape: tuple[int | None, int], dtype: torch.dtype
) -> torch.Tensor:
    """Get a tensor of a snapshot and check its shape (None: any length) and dtype."""
    tensor = state.get(name)
    if tensor is None:
        raise TrainerError(f"momentum snapshot: {name} is missing")
    is_shaped = tensor.dim() == len(shape) and all(
        wanted in (None, found) for wanted, found in zip(shape, tensor.shape, strict=True)
    )
    if not is_shaped or tensor.dtype != dtype:
        found = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise TrainerError(
            f"momentum snapshot: {name} is {found}, must be {dtype} {shape}; was the model or its settings changed?"
        )
    return tensor
