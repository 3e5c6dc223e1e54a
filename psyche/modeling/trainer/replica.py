"""What one device has of a model, and what a trainer does with it: gradients, payloads, updates.

`shard` has the same for a model that is divided among the ranks of a group.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

import torch
from torch import nn

from psyche.core.encoding.plan import TransformPlan, compute_run_plan
from psyche.core.state.state import Lookahead, Optimizer, OptimizerKind
from psyche.errors import TrainerError
from psyche.modeling.device import IDLE, autocast, find_host
from psyche.modeling.distro.codec import ChunkSets
from psyche.modeling.distro.momentum import Momentum
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.distro.statistics import Sums
from psyche.modeling.inference.scoring import ChoiceScorer, Pace, Scored
from psyche.modeling.local.exchange import Part, check_finite
from psyche.modeling.local.optimizer import LocalSteps
from psyche.modeling.model import get_parameters, get_shapes, get_tensors
from psyche.modeling.trainer.batch import Gradients, PieceLog, Share, compute_gradients
from psyche.modeling.trainer.decoding import PayloadDecoder
from psyche.modeling.verification.samples import Layers, find_layers
from psyche.modeling.weights import Stored
from psyche.wire.trainer import Contribution, ScoreRow, SentResult

PASS_S: Final = 0.05  # of scoring: a call that cancels it waits no longer


class Ahead(NamedTuple):
    """The look-ahead: the rate of the round before, 0 for none, and the own payload in flight, empty for none."""

    lr: float = 0.0
    own: bytes = b""


STAY: Final = Ahead()


class Replica:
    """A whole model with its optimizer; `tensors` are all that the digest covers."""

    share = Share()
    is_group = False  # whether other ranks take part, which no failure may leave behind

    def __init__(self, model: nn.Module, optimizer: Optimizer, device: torch.device, *, offload: bool = False) -> None:
        self.model, self.device, self.settings = model, device, optimizer
        self.host = find_host(device, offload=offload)
        self.notices = (IDLE.format(device=device),) if offload and self.host is None else ()
        self.parameters = get_parameters(model)
        self.tensors: dict[str, torch.Tensor | Stored] = {**get_tensors(model)}
        self.plan = compute_run_plan(get_shapes(self.parameters), optimizer)
        self.decoder = PayloadDecoder(self.plan)
        self.optimizer = self._make_optimizer()
        self.sums: dict[str, Sums] = {}
        model.train()

    def _make_optimizer(self) -> Distro | LocalSteps:
        masters, plan = self._divide()
        if self.settings.kind is OptimizerKind.LOCAL_STEPS:
            return LocalSteps(masters, plan, self.settings, self.host)
        return Distro(masters, plan, self.settings.compression_decay, self.host)

    def _divide(self) -> tuple[Mapping[str, torch.Tensor], TransformPlan]:
        """The masters that this rank moves, and their plan."""
        return self.parameters, self.plan

    @property
    def distro(self) -> Distro:
        assert isinstance(self.optimizer, Distro), "asked of DisTrO only"
        return self.optimizer

    @property
    def local(self) -> LocalSteps:
        assert isinstance(self.optimizer, LocalSteps), "asked of local steps only"
        return self.optimizer

    @cached_property
    def layers(self) -> Layers | None:
        """What the part of each sample in a gradient is told by; none if it cannot be."""
        return find_layers(self.model, self.parameters)

    def compute(
        self, tokens: torch.Tensor, micro_batch_size: int, ahead: Ahead, check: Callable[[], None],
        pieces: PieceLog | None = None,
    ) -> Gradients:  # fmt: skip
        """The gradients of a batch at the look-ahead point."""
        with self.at(ahead):
            return compute_gradients(
                self.model, self.parameters, tokens, micro_batch_size=micro_batch_size, device=self.device,
                clip=self.settings.clip_grad_norm, check=check, share=self.share, pieces=pieces,
            )  # fmt: skip

    def at(self, ahead: Ahead) -> AbstractContextManager[None]:
        """The weights at the look-ahead point; where it follows the own result, without one in flight it is none."""
        is_none = ahead.lr <= 0 or (not ahead.own and self.settings.lookahead is Lookahead.OWN)
        return nullcontext() if is_none else self.look_ahead(ahead)

    def look_ahead(self, ahead: Ahead) -> AbstractContextManager[None]:
        return self.distro.lookahead(ahead.lr, self._find_own(ahead))

    def _find_own(self, ahead: Ahead) -> Sequence[ChunkSets] | None:
        return self.decoder.decode(ahead.own) if ahead.own else None

    def compress(
        self, gradients: Mapping[str, torch.Tensor], lr: float, decided: Sequence[SentResult], in_flight: bool,
        height: int, is_measured: bool = False,
    ) -> bytes:  # fmt: skip
        """The payload; afterwards `sums` are those of each tensor, if they are asked for."""
        payload = self.distro.compress(gradients, lr, decided, in_flight=in_flight, height=height)
        self.sums = self.distro.measure(gradients) if is_measured else {}
        return payload

    def apply(self, payloads: Sequence[Contribution], lr: float, weight_decay: float) -> None:
        """Apply a decided set; of local steps rate and decay are part of what it has in it already."""
        if isinstance(self.optimizer, LocalSteps):
            self.optimizer.apply(self.decode(payloads))
        else:
            self.optimizer.apply([one.payload for one in payloads], lr, weight_decay)

    def decode(self, payloads: Sequence[Contribution]) -> list[Part]:
        """Decode the results of members with local steps."""
        most = self.settings.inner_steps
        for one in payloads:
            if not 1 <= one.inner_steps <= most:
                raise TrainerError(f"a result is of {one.inner_steps} inner steps, must be 1 to {most}")
        return [Part(self.decoder.decode(one.payload), one.inner_steps) for one in payloads]

    # --- a round of local steps, see `LocalSteps` -------------------------------------------------

    def begin_round(self, own: Sequence[Contribution]) -> None:
        self.local.begin(self.decode(own))

    def step(self, number: int, gradients: Mapping[str, torch.Tensor], rates: tuple[float, float]) -> None:
        self.local.step(number, gradients, rates)

    def merge(self, held: Sequence[Contribution]) -> None:
        self.local.merge(self.decode(held))

    def end_round(
        self, decided: Sequence[SentResult], in_flight: bool, height: int, is_measured: bool = False
    ) -> bytes:
        """The payload of what the round moved; refused, as if there had been no round, if that is not finite."""
        deltas = self.local.end()
        check_finite(deltas)
        return self._send(deltas, decided, in_flight, height, is_measured)

    def _send(
        self, deltas: Mapping[str, torch.Tensor], decided: Sequence[SentResult], in_flight: bool, height: int,
        is_measured: bool,
    ) -> bytes:  # fmt: skip
        exchange = self.local.exchange
        payload = exchange.compress(deltas, decided, in_flight=in_flight, height=height)
        self.sums = exchange.measure(deltas) if is_measured else {}
        return payload

    def abandon_round(self) -> None:
        self.local.abandon()

    @property
    def memory(self) -> Momentum:
        """What no result has sent yet: DisTrO's momentum, or the error memory of local steps."""
        return self.local.exchange.memory if isinstance(self.optimizer, LocalSteps) else self.distro.momentum

    def get_momentum(self) -> dict[str, torch.Tensor]:
        return self.optimizer.get_state()

    def load_momentum(self, state: Mapping[str, torch.Tensor]) -> None:
        self.optimizer.load_state(state)

    # --- what the weights make of choices, see `Scores` -------------------------------------------

    @cached_property
    def scorer(self) -> ChoiceScorer:
        return ChoiceScorer(self.model, Pace(PASS_S, self._agree_time))

    def _agree_time(self, seconds: float) -> float:
        return seconds

    def score(self, row: ScoreRow, check: Callable[[], None]) -> list[Scored]:
        with self.reading():
            return self.scorer.score(row.context, row.choices, check)

    def write(self, start: Sequence[int], count: int, written: list[int], check: Callable[[], None]) -> None:
        """Append to `written` so many tokens, those that the model finds most likely after `start`."""
        with self.reading():
            for token in islice(self.scorer.write(start, check), count):
                written.append(token)  # noqa: PERF402 - those before `check` raises count

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The model in evaluation mode."""
        self.model.eval()
        try:
            with autocast(self.device):
                yield
        finally:
            self.model.train()
