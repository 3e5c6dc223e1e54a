"""`psyche train` as a function: one process, no network, the optimizer and data code of a run."""

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from psyche.config.places import parse_model
from psyche.core.committee.schedule import compute_learning_rate
from psyche.data.bytes_tokenizer import VOCAB_SIZE, write_tokenizer
from psyche.errors import ConfigError, StorageError
from psyche.modeling.architecture import Blueprint, read_blueprint
from psyche.modeling.device import IDLE, find_host, select_device
from psyche.modeling.export import export_model
from psyche.modeling.model import (
    count_parameters,
    enable_checkpointing,
    get_parameters,
    get_tensors,
    init_model,
    load_model,
)
from psyche.modeling.model_copy import Progress
from psyche.modeling.snapshot import read_model_files
from psyche.modeling.trainer.batch import evaluate
from psyche.modeling.trainer.memory import Fitting, Setup, Step
from psyche.modeling.trainer.trial import try_model
from psyche.modeling.user_files import format_card
from psyche.standalone.corpus import Corpus
from psyche.standalone.settings import TrainSettings
from psyche.standalone.sources import ReadingLoop, fetch_model
from psyche.standalone.steppers import STEPPERS, StepReport

EVAL_MICRO_BATCH = 32
_log: Final = structlog.get_logger("psyche.train")


@dataclass(frozen=True, slots=True)
class StepProgress:
    """The progress after one step; the report's loss is that before the step, `held_out` the newest one."""

    step: int
    steps: int
    lr: float
    report: StepReport
    held_out: float | None
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a training. Losses in nats per token, by step (0: untrained); `sent_bytes` per peer and step."""

    losses: dict[int, float]
    held_out: dict[int, float]
    tokens: int
    seconds: float
    parameters: int
    sent_bytes: int

    @property
    def final_held_out(self) -> float:
        return self.held_out[max(self.held_out)] if self.held_out else math.nan


OnProgress = Callable[[StepProgress], None]


def train_model(
    settings: TrainSettings, on_progress: OnProgress = lambda _: None, on_read: Progress = lambda _done, _total: None
) -> TrainResult:
    """Train from beginning to end, and export the model if `settings.out` is set.

    `on_progress` is called after every step; an exception from it ends the training, nothing is exported.
    `on_read` is called while a model elsewhere is read.
    """
    settings.check()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = select_device(settings.device)
    with ReadingLoop() as loop:
        blueprint, model, files = _get_model(settings, device, loop, on_read)
        nn.Module.to(model, device)
        model.train()
        if settings.activation_checkpointing:
            enable_checkpointing(model)
        if settings.offload and find_host(device, offload=True) is None:
            _log.warning(IDLE.format(device=device))
        parameters = get_parameters(model)
        try_model(model, parameters, blueprint.vocab_size, settings.sequence_length, device)
        result = _Training(settings, model, parameters, blueprint, device, loop).execute(on_progress)
    if settings.out is not None:
        card = build_training_card(settings, result)
        export_model(settings.out, get_tensors(model), files, "float32", card, blueprint)
    return result


def _check_memory(blueprint: Blueprint, settings: TrainSettings, device: torch.device) -> None:
    step = Step(blueprint.config, settings.get_optimizer(), settings.sequence_length, peers=settings.peers)
    share = -(-settings.total_batch // (settings.peers * settings.inner_batches))
    setup = Setup(settings.micro_batch or share, settings.activation_checkpointing, offload=settings.offload)
    Fitting(step, device).fit(setup, share)


def build_training_card(settings: TrainSettings, result: TrainResult) -> str:
    loss = f"{result.final_held_out:.4f} nats per token" if result.held_out else "not measured"
    rows = (
        ("parameters", f"{result.parameters:,}"),
        ("steps", f"{settings.steps:,} of {settings.total_batch} samples"),
        ("tokens", f"{result.tokens:,}, in samples of {settings.sequence_length}"),
        ("optimizer", settings.optimizer.value),
        ("held-out loss", loss),
        ("numbers", "float32"),
    )
    return format_card(Path(settings.model).name, "A model that was trained with `psyche train` on one machine.", rows)


def _get_model(
    settings: TrainSettings, device: torch.device, loop: ReadingLoop, on_read: Progress
) -> tuple[Blueprint, PreTrainedModel, dict[str, bytes]]:  # fmt: skip
    """The model and the files that an export needs; the weights are random from the seed if there are none yet."""

    def load(folder: Path) -> tuple[Blueprint, PreTrainedModel, dict[str, bytes]]:
        blueprint = read_blueprint(folder, settings.sequence_length)
        _check_memory(blueprint, settings, device)
        return blueprint, load_model(folder, blueprint), read_model_files(folder)

    named = Path(settings.model)
    if named.is_dir() and any(named.glob("*.safetensors")):
        return load(named)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        if (source := parse_model(str(settings.model))) is not None:
            try:
                loop.call(fetch_model, source, folder, settings.storage, on_read)
            except StorageError as error:
                raise ConfigError(f"--model {settings.model}: is no folder here, and {error}") from error
            return load(folder)
        tokenizer = Path(temporary) / "tokenizer"
        blueprint = read_blueprint(named, settings.sequence_length)
        _check_memory(blueprint, settings, device)  # before weights are made
        if blueprint.vocab_size == VOCAB_SIZE:
            write_tokenizer(tokenizer)
        init_model(named, folder, settings.seed, extra_files=sorted(tokenizer.glob("*")))
        return blueprint, load_model(folder, blueprint), read_model_files(folder)


class _Training:
    def __init__(
        self,
        settings: TrainSettings,
        model: PreTrainedModel,
        parameters: Mapping[str, nn.Parameter],
        blueprint: Blueprint,
        device: torch.device,
        loop: ReadingLoop,
    ) -> None:
        self._settings, self._model, self._device = settings, model, device
        self._corpus = Corpus(settings, blueprint.vocab_size, loop)
        self._parameters = count_parameters(parameters)
        self._schedule = settings.schedule.make(settings.steps)
        self._stepper = STEPPERS[settings.optimizer](model, parameters, settings, device)
        self._held_out = self._read_held_out()
        self._tokens = 0
        self._started = 0.0

    def _read_held_out(self) -> torch.Tensor | None:
        if not self._corpus.held_out_rows:
            return None
        return self._corpus.held_out(self._settings.eval_sequences)

    def execute(self, on_progress: OnProgress) -> TrainResult:
        steps = self._settings.steps
        losses: dict[int, float] = {}
        held_out: dict[int, float] = {}
        self._started = time.monotonic()
        self._measure(0, held_out)
        report = StepReport(0.0, 0.0, 0)
        for step in range(1, steps + 1):
            lr = self._get_lr(step)
            report = self._step(step, lr)
            losses[step] = report.loss
            if step == steps:
                self._stepper.finish(lr)
            self._measure(step, held_out)
            seconds = time.monotonic() - self._started
            newest = next(reversed(held_out.values()), None)
            on_progress(StepProgress(step, steps, lr, report, newest, self._tokens, seconds))
        seconds = time.monotonic() - self._started
        return TrainResult(losses, held_out, self._tokens, seconds, self._parameters, report.sent_bytes)

    def _get_lr(self, step: int) -> float:
        return compute_learning_rate(self._schedule, step)

    def _step(self, step: int, lr: float) -> StepReport:
        batch = self._settings.total_batch
        rows = self._corpus.take((step - 1) * batch, batch)
        self._tokens += batch * self._settings.sequence_length
        return self._stepper.step(rows, step, lr, self._get_lr(step - 1))

    def _measure(self, step: int, held_out: dict[int, float]) -> None:
        """Measure the held-out loss when it is due: at the first and last step, and every `eval_every` steps."""
        every = self._settings.eval_every
        is_due = step in {0, self._settings.steps} or (every > 0 and step % every == 0)
        if self._held_out is None or not is_due:
            return
        with self._stepper.settled(self._get_lr(step)):
            held_out[step] = evaluate(
                self._model, self._held_out, micro_batch_size=EVAL_MICRO_BATCH, device=self._device
            )
