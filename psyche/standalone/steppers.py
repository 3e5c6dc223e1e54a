"""One training step: AdamW, or DisTrO or local steps of peers that are simulated in this process."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import torch
from torch import nn

from psyche.core.committee.schedule import compute_learning_rate
from psyche.core.encoding.plan import compute_run_plan
from psyche.errors import TrainerError
from psyche.modeling.device import find_host
from psyche.modeling.distro.codec import ChunkSets, decode_payload
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.local.exchange import Part, check_finite
from psyche.modeling.local.inner import split_samples
from psyche.modeling.local.optimizer import LocalSteps
from psyche.modeling.model import get_shapes
from psyche.modeling.trainer.batch import Gradients, compute_gradients
from psyche.standalone.settings import LookaheadName, OptimizerName, TrainSettings
from psyche.wire.trainer import SentResult

T = TypeVar("T")  # what a peer sends


@dataclass(frozen=True, slots=True)
class StepReport:
    """Figures of one step: mean loss before the step (nats per token), largest gradient norm, bytes sent per peer."""

    loss: float
    grad_norm: float
    sent_bytes: int


class Stepper:
    """An optimizer with its model."""

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], settings: TrainSettings, device: torch.device
    ) -> None:
        self._model, self._parameters, self._settings, self._device = model, parameters, settings, device

    def step(self, tokens: torch.Tensor, number: int, lr: float, previous_lr: float) -> StepReport:
        """Train on int64 [samples, sequence_length]; `number` counts from 1.

        Raises:
            TrainerError: gradients that are not finite.
        """
        raise NotImplementedError

    def settled(self, lr: float) -> AbstractContextManager[None]:  # noqa: ARG002
        """The model as if the training ended here: updates in flight are applied inside the context, and taken back.

        Held-out losses are measured so: after the same number of updates, whatever the optimizer.
        """
        return nullcontext()

    def finish(self, lr: float) -> None:
        """Apply the updates that are still in flight."""

    def _compute(self, tokens: torch.Tensor, number: int) -> Gradients:
        gradients = compute_gradients(
            self._model, self._parameters, tokens, micro_batch_size=self._settings.micro_batch or len(tokens),
            device=self._device, clip=self._settings.clip or None,
        )  # fmt: skip
        if not gradients.finite:
            raise TrainerError(f"step {number}: non-finite gradient (loss {gradients.loss}); lower --lr")
        return gradients


class AdamWStepper(Stepper):
    """torch's AdamW on the whole batch; bytes sent are counted as if every gradient were sent in fp32."""

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], settings: TrainSettings, device: torch.device
    ) -> None:
        super().__init__(model, parameters, settings, device)
        self._optimizer = torch.optim.AdamW(
            list(parameters.values()), betas=settings.betas, weight_decay=settings.weight_decay
        )  # fmt: skip

    def step(self, tokens: torch.Tensor, number: int, lr: float, previous_lr: float) -> StepReport:  # noqa: ARG002
        gradients = self._compute(tokens, number)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        for name, parameter in self._parameters.items():
            parameter.grad = gradients.tensors[name]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return StepReport(gradients.loss, gradients.norm, 4 * sum(p.numel() for p in self._parameters.values()))


class _PeersStepper(Stepper, Generic[T]):
    """N simulated peers that share one copy of the weights, and whose results are applied later.

    The timeline is that of a real run: with overlap a set is applied two steps after it was trained, without overlap at
    the start of the next step.
    """

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], settings: TrainSettings, device: torch.device
    ) -> None:
        super().__init__(model, parameters, settings, device)
        self._plan = compute_run_plan(get_shapes(parameters), settings.get_optimizer())
        self._host = find_host(device, offload=settings.offload)
        self._delay = 2 if settings.overlap else 1
        self._on_their_way: deque[list[T]] = deque()

    def _apply(self, results: list[T], lr: float) -> None:
        raise NotImplementedError

    def _apply_due(self, lr: float) -> None:
        if len(self._on_their_way) == self._delay:
            self._apply(self._on_their_way.popleft(), lr)

    def _get_decided(self, number: int) -> tuple[SentResult, ...]:
        return tuple(SentResult(height=h, applied=True) for h in [number - self._delay] if h > 0)

    @contextmanager
    def settled(self, lr: float) -> Iterator[None]:
        before = self._copy()
        for results in self._on_their_way:
            self._apply(results, lr)
        try:
            yield
        finally:
            self._restore(before)

    def _copy(self) -> list[torch.Tensor]:
        """Taking updates back by adding them would not give the same bits."""
        return [parameter.detach().clone() for parameter in self._parameters.values()]

    @torch.no_grad()
    def _restore(self, weights: list[torch.Tensor]) -> None:
        for parameter, weight in zip(self._parameters.values(), weights, strict=True):
            parameter.copy_(weight)

    def finish(self, lr: float) -> None:
        while self._on_their_way:
            self._apply(self._on_their_way.popleft(), lr)


class DistroStepper(_PeersStepper[bytes]):
    """DisTrO; each peer has its own momentum. With overlap gradients are computed at the look-ahead point."""

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], settings: TrainSettings, device: torch.device
    ) -> None:
        super().__init__(model, parameters, settings, device)
        self._peers = [Distro(parameters, self._plan, settings.decay, self._host) for _ in range(settings.peers)]

    def step(self, tokens: torch.Tensor, number: int, lr: float, previous_lr: float) -> StepReport:
        self._apply_due(lr)
        look_ahead_lr = previous_lr if self._settings.overlap and number > 1 else 0.0
        decided, in_flight = self._get_decided(number), self._settings.overlap
        loss, norm = 0.0, 0.0
        payloads: list[bytes] = []
        for peer, share in zip(self._peers, torch.tensor_split(tokens, len(self._peers)), strict=True):
            with peer.lookahead(look_ahead_lr, self._find_own(len(payloads))) if look_ahead_lr > 0 else nullcontext():
                gradients = self._compute(share, number)
            loss += gradients.loss * len(share) / len(tokens)
            norm = max(norm, gradients.norm)
            payloads.append(peer.compress(gradients.tensors, lr, decided, in_flight=in_flight, height=number))
        self._on_their_way.append(payloads)
        return StepReport(loss, norm, len(payloads[0]))

    def _find_own(self, peer: int) -> list[ChunkSets] | None:
        """What the look-ahead takes for the results in flight; None: the momentum says it."""
        is_own = self._settings.lookahead is LookaheadName.OWN
        return decode_payload(self._plan, self._on_their_way[-1][peer]) if is_own else None

    def _apply(self, results: list[bytes], lr: float) -> None:
        self._peers[0].apply(results, lr, self._settings.weight_decay)


class LocalStepper(_PeersStepper[Part]):
    """Local steps; a step is a round, in which each peer trains by itself from the shared weights.

    With overlap it starts from where its own last result would lead. After `merge_step` inner steps this guess gives
    way to what all peers sent.
    """

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], settings: TrainSettings, device: torch.device
    ) -> None:
        super().__init__(model, parameters, settings, device)
        optimizer = settings.get_optimizer()
        self._peers = [LocalSteps(parameters, self._plan, optimizer, self._host) for _ in range(settings.peers)]
        self._schedule = settings.schedule.make(settings.steps)

    def step(self, tokens: torch.Tensor, number: int, lr: float, previous_lr: float) -> StepReport:  # noqa: ARG002
        self._apply_due(lr)
        rates = (lr, compute_learning_rate(self._schedule, number + 1))
        loss, norm, sent_bytes = 0.0, 0.0, 0
        parts: list[Part] = []
        for place, share in enumerate(torch.tensor_split(tokens, len(self._peers))):
            report = self._train(place, share, number, rates)
            peer = self._peers[place]
            deltas = peer.end()
            check_finite(deltas)
            payload = peer.exchange.compress(
                deltas, self._get_decided(number), in_flight=self._settings.overlap, height=number
            )
            parts.append(Part(decode_payload(self._plan, payload), min(len(share), self._settings.inner_steps)))
            loss += report.loss * len(share) / len(tokens)
            norm, sent_bytes = max(norm, report.grad_norm), len(payload)
        self._on_their_way.append(parts)
        return StepReport(loss, norm, sent_bytes)

    def _train(self, place: int, share: torch.Tensor, number: int, rates: tuple[float, float]) -> StepReport:
        """The inner steps of a peer's round: their mean loss and largest norm."""
        peer, loss, norm = self._peers[place], 0.0, 0.0
        held = self._on_their_way[-1] if self._settings.overlap and self._on_their_way else []
        peer.begin(held[place : place + 1])
        may_merge = bool(held) and self._settings.merge_step > 0
        for step, rows in split_samples(len(share), self._settings.inner_steps):
            if may_merge and step >= self._settings.merge_step:
                peer.merge(held)
                may_merge = False
            gradients = self._compute(share[rows], number)
            peer.step(step, gradients.tensors, rates)
            loss += gradients.loss * (rows.stop - rows.start) / len(share)
            norm = max(norm, gradients.norm)
        return StepReport(loss, norm, 0)

    def _apply(self, results: list[Part], lr: float) -> None:
        del lr
        self._peers[0].apply(results)


STEPPERS: Final = {
    OptimizerName.ADAMW: AdamWStepper,
    OptimizerName.DISTRO: DistroStepper,
    OptimizerName.LOCAL: LocalStepper,
}
