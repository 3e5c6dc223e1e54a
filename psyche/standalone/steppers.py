"""One training step: AdamW, or DisTrO among peers that are simulated in this process."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from psyche.core.encoding.plan import compute_plan
from psyche.errors import TrainerError
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.model import get_shapes
from psyche.modeling.trainer.batch import Gradients, compute_gradients
from psyche.standalone.settings import TrainSettings
from psyche.wire.trainer import SentResult


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


class DistroStepper(Stepper):
    """DisTrO with N simulated peers that share one copy of the weights; each has its own momentum.

    The timeline is that of a real run: with overlap a set is applied two steps after it was trained, and gradients are
    computed at the look-ahead point; without overlap it is applied at the start of the next step.
    """

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], settings: TrainSettings, device: torch.device
    ) -> None:
        super().__init__(model, parameters, settings, device)
        one_bit = not settings.values
        plan = compute_plan(get_shapes(parameters), settings.chunk, settings.topk, one_bit=one_bit)
        self._peers = [
            Distro(parameters, plan, settings.decay) for _ in range(settings.peers)
        ]  # fmt: skip
        self._delay = 2 if settings.overlap else 1
        self._on_their_way: deque[list[bytes]] = deque()

    def step(self, tokens: torch.Tensor, number: int, lr: float, previous_lr: float) -> StepReport:
        if len(self._on_their_way) == self._delay:
            self._apply(lr)
        look_ahead_lr = previous_lr if self._settings.overlap and number > 1 else 0.0
        decided = tuple(SentResult(height=h, applied=True) for h in [number - self._delay] if h > 0)
        loss, norm = 0.0, 0.0
        payloads: list[bytes] = []
        for peer, share in zip(self._peers, torch.tensor_split(tokens, len(self._peers)), strict=True):
            with peer.lookahead(look_ahead_lr) if look_ahead_lr > 0 else nullcontext():
                gradients = self._compute(share, number)
            loss += gradients.loss * len(share) / len(tokens)
            norm = max(norm, gradients.norm)
            in_flight = self._settings.overlap
            payloads.append(peer.compress(gradients.tensors, lr, decided, in_flight=in_flight, height=number))
        self._on_their_way.append(payloads)
        return StepReport(loss, norm, len(payloads[0]))

    @contextmanager
    def settled(self, lr: float) -> Iterator[None]:
        # A second copy of the weights: taking the updates back by subtracting them would not give the same bits.
        before = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        for payloads in self._on_their_way:
            self._peers[0].apply(payloads, lr, self._settings.weight_decay)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.copy_(before[name])

    def _apply(self, lr: float) -> None:
        self._peers[0].apply(self._on_their_way.popleft(), lr, self._settings.weight_decay)

    def finish(self, lr: float) -> None:
        while self._on_their_way:
            self._apply(lr)
