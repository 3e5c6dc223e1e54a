"""One trainer's momentum, in the frequency domain, and what of it is on its way.

Momentum holds lr * gradient of every round, decayed. What a result sent is taken out by writing
zeros, before the next training; what the record then decides against is given back (R8).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from psyche.core.encoding.plan import PlanGroup, TransformPlan
from psyche.errors import TrainerError
from psyche.wire.trainer import SentResult

_KEPT: Final = 2  # results whose fate may be open at once: the last, and with overlap the one before
Chosen = tuple[torch.Tensor, torch.Tensor]  # indices int32 and values float32, [chunks, k], as `select` gives them


@dataclass(slots=True)
class _Sent:
    """What an own result sent, per group, with the values it would have by now in the momentum."""

    height: int
    is_taken_out: bool
    chosen: list[Chosen]


def _name(group: PlanGroup) -> str:
    height, width = group.edges
    return f"{height}x{width}"


class Momentum:
    """Momentum of all groups and the sent values of the last two own results.

    `coefficients` holds one float32 tensor [chunks, area] per group of the plan, in its order.
    """

    def __init__(self, plan: TransformPlan, decay: float, device: torch.device) -> None:
        if not 0.0 <= decay < 1.0:
            raise TrainerError(f"compression_decay: {decay} is not at least 0 and below 1")
        self._plan = plan
        self._decay = decay
        self._sent: list[_Sent] = []  # oldest first
        self.coefficients = [
            torch.zeros((group.chunks, group.area), dtype=torch.float32, device=device) for group in plan.groups
        ]

    def settle(self, decided: Sequence[SentResult], height: int, *, in_flight: bool) -> None:
        """Take out and give back, before training round `height`.

        A result that the record decided on follows the record. One it has not decided on is out of
        the momentum while `in_flight`, whatever its fate, and otherwise counts as not applied: without
        overlap and at an epoch's edge everything that was applied is on record by now. Heights that do
        not lie below `height` are those of an earlier epoch, so they are not in flight either.
        """
        fates = {result.height: result.applied for result in decided}
        kept: list[_Sent] = []
        returned: list[_Sent] = []
        for sent in self._sent:
            is_open = sent.height not in fates and in_flight and sent.height < height
            is_out = is_open or fates.get(sent.height, False)
            if is_out and not sent.is_taken_out:
                self._take_out(sent)
            if not is_out and sent.is_taken_out:
                returned.append(sent)
            if is_open:
                kept.append(sent)
        # After all zeros are written: a place that both results sent keeps what comes back.
        for sent in returned:
            self._give_back(sent)
        self._sent = kept

    def decay_block(self, place: int, rows: slice, gradient: torch.Tensor) -> torch.Tensor:
        """m = decay * m + gradient for some chunks of a group.

        Two separate operations, so that what is given back later is exactly what would have stood here.

        Args:
            place: of the group in the plan.
            rows: chunks of the group.
            gradient: lr times the transformed gradient, float32 [chunks, h, w].

        Returns:
            The new momentum of these chunks, a view, float32 [chunks, area].
        """
        coefficients = self.coefficients[place][rows]
        return coefficients.mul_(self._decay).add_(gradient.view(coefficients.shape))

    def record_sent(self, height: int, chosen: Sequence[Chosen]) -> None:
        """Remember what the result of round `height` sends; it stays in the momentum until `settle`."""
        for sent in self._sent:
            for _, values in sent.chosen:
                values.mul_(self._decay)  # as they would have decayed where they were taken out
        self._sent = [*self._sent, _Sent(height, is_taken_out=False, chosen=list(chosen))][-_KEPT:]

    def get_state(self) -> dict[str, torch.Tensor]:
        """All of it as tensors by name, for a snapshot; they are not copies."""
        state = {
            f"momentum.{_name(group)}": tensor
            for group, tensor in zip(self._plan.groups, self.coefficients, strict=True)
        }
        sent = [(item.height, int(item.is_taken_out)) for item in self._sent]
        state["sent"] = torch.tensor(sent, dtype=torch.int64).view(-1, 2)
        for number, item in enumerate(self._sent):
            for group, (indices, values) in zip(self._plan.groups, item.chosen, strict=True):
                state[f"sent.{number}.{_name(group)}.indices"] = indices
                state[f"sent.{number}.{_name(group)}.values"] = values
        return state

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over what `get_state` gave, bit for bit.

        Raises:
            TrainerError: a tensor is missing or has another shape or type; nothing is changed then.
        """
        heights = _read(state, "sent", (None, 2), torch.int64).tolist()
        if len(heights) > _KEPT:
            raise TrainerError(f"momentum snapshot: {len(heights)} sent results, at most {_KEPT} are kept")
        momenta = [
            _read(state, f"momentum.{_name(group)}", (group.chunks, group.area), torch.float32)
            for group in self._plan.groups
        ]
        sent = [self._read_sent(state, number, *entry) for number, entry in enumerate(heights)]
        for own, loaded in zip(self.coefficients, momenta, strict=True):
            own.copy_(loaded)
        self._sent = sent

    def _read_sent(self, state: Mapping[str, torch.Tensor], number: int, height: int, is_taken_out: int) -> _Sent:
        chosen: list[Chosen] = []
        for group in self._plan.groups:
            shape = (group.chunks, group.k)
            indices = _read(state, f"sent.{number}.{_name(group)}.indices", shape, torch.int32)
            values = _read(state, f"sent.{number}.{_name(group)}.values", shape, torch.float32)
            if int(indices.min()) < 0 or int(indices.max()) > group.area:
                raise TrainerError(f"momentum snapshot: sent.{number}: an index is not within 0 and {group.area}")
            chosen.append((indices.to(self._device, copy=True), values.to(self._device, copy=True)))
        return _Sent(height, bool(is_taken_out), chosen)

    @property
    def _device(self) -> torch.device:
        return self.coefficients[0].device

    def _take_out(self, sent: _Sent) -> None:
        """Write zeros where the result sent something."""
        for coefficients, chosen in zip(self.coefficients, sent.chosen, strict=True):
            places, _ = _flatten(chosen, coefficients.shape[1])
            coefficients.view(-1)[places] = 0.0
        sent.is_taken_out = True

    def _give_back(self, sent: _Sent) -> None:
        """Add the sent values, decayed since, to what has grown there."""
        for coefficients, chosen in zip(self.coefficients, sent.chosen, strict=True):
            places, values = _flatten(chosen, coefficients.shape[1])
            coefficients.view(-1)[places] += values


def _flatten(chosen: Chosen, area: int) -> Chosen:
    """Flat places int64 and values of the entries that are there, each place once."""
    indices, values = chosen
    chunks, entries = (indices < area).nonzero(as_tuple=True)
    return chunks * area + indices[chunks, entries], values[chunks, entries]


def _read(
    state: Mapping[str, torch.Tensor], name: str, shape: tuple[int | None, int], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor of a snapshot, with the shape (None: any) and type it must have."""
    tensor = state.get(name)
    if tensor is None:
        raise TrainerError(f"momentum snapshot: {name} is missing")
    is_shaped = tensor.dim() == len(shape) and all(
        wanted in (None, found) for wanted, found in zip(shape, tensor.shape, strict=True)
    )
    if not is_shaped or tensor.dtype != dtype:
        found = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise TrainerError(
            f"momentum snapshot: {name} is {found}, must be {dtype} {shape}: another model or other settings?"
        )
    return tensor
