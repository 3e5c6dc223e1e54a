"""Settings of a stand-alone training, checked before anything heavy is imported."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from psyche.core.state.limits import MAX_INNER_STEPS, MAX_OUTER_RATE
from psyche.core.state.state import InnerOptimizer, Lookahead, LrSchedule, Optimizer, OptimizerKind, ScheduleKind
from psyche.errors import ConfigError
from psyche.modeling.device_name import check_device_name
from psyche.storage.port import StorageOptions


class OptimizerName(StrEnum):
    ADAMW = "adamw"
    DISTRO = "distro"
    LOCAL = "local"


class InnerName(StrEnum):
    ADAMW = "adamw"
    MUON = "muon"
    ADAMW_ANEW = "adamw-anew"
    MUON_ANEW = "muon-anew"


class LookaheadName(StrEnum):
    MOMENTUM = "momentum"
    OWN = "own"


class ScheduleName(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    WSD = "wsd"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """A schedule in the terms of the command line; rates per step, spans in steps.

    `final_lr` None is a tenth of `lr`; `decay_steps` (only wsd) None is a fifth of the steps.
    """

    name: ScheduleName = ScheduleName.COSINE
    lr: float = 1e-3
    final_lr: float | None = None
    warmup_steps: int = 10
    decay_steps: int | None = None

    def make(self, steps: int) -> LrSchedule:
        final = self.lr / 10 if self.final_lr is None else self.final_lr
        schedule = LrSchedule(base_lr=self.lr, warmup_steps=self.warmup_steps, total_steps=steps, final_lr=final)
        schedule.kind = ScheduleKind[{"wsd": "WARMUP_STABLE_DECAY"}.get(self.name, self.name.upper())]
        decay = steps // 5 if self.decay_steps is None else self.decay_steps
        schedule.stable_steps = max(0, steps - self.warmup_steps - decay)
        schedule.cosine_decay_final_lr = self.lr
        schedule.linear_decay_steps = decay
        schedule.linear_decay_final_lr = final
        return schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """All settings of a stand-alone training.

    `model` is a Hugging Face folder, a config file, or a place of `psyche.config.places`, where one of `data` and of
    `eval_data` may be too; `storage` says how these are read. `micro_batch` None is a peer's whole share; `clip` 0:
    gradients are not clipped; `threads` 0: all cores.
    Held-out rows come from `eval_data`, or else from the last `eval_tokens` of `data` (0: nothing is evaluated; None: a
    tenth, at most 200,000);
    `eval_sequences` of them are used every `eval_every` steps (0: at the end only). DisTrO's settings
    (`chunk`, `topk`, `decay`, `values`, `peers`, `overlap`, `lookahead`) are unused with AdamW, and so is
    AdamW's `betas` with DisTrO. Local steps have DisTrO's but `values` and `lookahead`, and those from
    `inner_steps` to `value_bits`; a step is a round of them, in which each peer does `inner_steps` steps with its share
    of `total_batch`.
    """

    model: str | Path
    data: tuple[str | Path, ...]
    eval_data: tuple[str | Path, ...] = ()
    storage: StorageOptions = field(default_factory=StorageOptions)
    out: Path | None = None
    token_size_bytes: int = 2
    sequence_length: int = 128
    total_batch: int = 24
    micro_batch: int | None = None
    activation_checkpointing: bool = False
    offload: bool = False
    steps: int = 240
    optimizer: OptimizerName = OptimizerName.DISTRO
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    clip: float = 1.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    chunk: int = 16
    topk: int = 16
    decay: float = 0.95
    values: bool = False
    peers: int = 1
    overlap: bool = False
    lookahead: LookaheadName = LookaheadName.MOMENTUM
    inner_steps: int = 8
    inner_optimizer: InnerName = InnerName.ADAMW
    merge_step: int = 0
    outer_rate: float = 1.0
    value_bits: int = 2
    seed: int = 0
    device: str = "auto"
    threads: int = 0
    eval_tokens: int | None = None
    eval_sequences: int = 256
    eval_every: int = 100

    def check(self) -> None:
        for name in ("sequence_length", "total_batch", "steps", "peers", "chunk", "topk", "eval_sequences"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')}: {getattr(self, name)}, must be at least 1")
        for name in ("eval_tokens", "eval_every", "weight_decay", "seed"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"--{name.replace('_', '-')}: {getattr(self, name)}, must not be negative")
        if self.token_size_bytes not in {2, 4}:
            raise ConfigError(f"--token-size: {self.token_size_bytes}, must be 2 or 4 bytes")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise ConfigError(f"--micro-batch: {self.micro_batch}, must be at least 1")
        if self.peers > self.total_batch:
            raise ConfigError(f"--peers: {self.peers} peers cannot share {self.total_batch} samples (--total-batch)")
        if self.offload and self.optimizer is OptimizerName.ADAMW:
            raise ConfigError("--offload: --optimizer adamw has nothing to offload; leave it out, or take another one")
        check_device_name(self.device)
        self._check_optimizer()

    def _check_optimizer(self) -> None:
        schedule = self.schedule
        if not schedule.lr > 0 or (schedule.final_lr is not None and not 0 <= schedule.final_lr <= schedule.lr):
            raise ConfigError(f"--lr {schedule.lr}, --final-lr {schedule.final_lr}: must be above 0, final at most lr")
        if schedule.warmup_steps < 0 or (schedule.decay_steps or 0) < 0:
            raise ConfigError("--warmup-steps, --decay-steps: must not be negative")
        if self.optimizer is OptimizerName.LOCAL:
            self._check_local_steps()
        elif not 0 <= self.decay < 1:
            raise ConfigError(f"--decay: {self.decay}, must be at least 0 and below 1")
        if self.optimizer is OptimizerName.ADAMW and (self.overlap or self.peers > 1):
            raise ConfigError("--peers, --overlap: AdamW has one peer that does not wait; use --optimizer distro")
        if self.lookahead is LookaheadName.OWN and not (self.overlap and self.optimizer is OptimizerName.DISTRO):
            raise ConfigError("--lookahead own: only DisTrO with --overlap looks ahead along something")

    def _check_local_steps(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"--decay: {self.decay}, must be 0 to 1")
        if not 1 <= self.inner_steps <= MAX_INNER_STEPS:
            raise ConfigError(f"--inner-steps: {self.inner_steps}, must be 1 to {MAX_INNER_STEPS}")
        if not 0 <= self.merge_step < self.inner_steps:
            raise ConfigError(f"--merge-step: {self.merge_step}, must be 0 to below --inner-steps {self.inner_steps}")
        if self.merge_step and not self.overlap:
            raise ConfigError("--merge-step: without --overlap there is nothing to merge")
        if not 0 < self.outer_rate <= MAX_OUTER_RATE:
            raise ConfigError(f"--outer-rate: {self.outer_rate}, must be above 0 and at most {MAX_OUTER_RATE}")
        if self.value_bits not in {1, 2}:
            raise ConfigError(f"--value-bits: {self.value_bits}, must be 1 or 2")
        if self.values:
            raise ConfigError("--values: local steps send values of --value-bits only")

    @property
    def inner_batches(self) -> int:
        """Into how many a peer cuts its share of a step."""
        return self.inner_steps if self.optimizer is OptimizerName.LOCAL else 1

    def get_optimizer(self) -> Optimizer:
        """The optimizer as a record has it."""
        shared = {
            "clip_grad_norm": self.clip or None, "weight_decay": self.weight_decay, "compression_topk": self.topk,
            "compression_chunk": self.chunk,
        }  # fmt: skip
        if self.optimizer is OptimizerName.LOCAL:
            return Optimizer(
                OptimizerKind.LOCAL_STEPS, error_decay=self.decay, inner_steps=self.inner_steps,
                inner_optimizer=InnerOptimizer[self.inner_optimizer.name], merge_step=self.merge_step,
                outer_rate=self.outer_rate, value_bits=self.value_bits, **shared,
            )  # fmt: skip
        kind = OptimizerKind.DISTRO if self.optimizer is OptimizerName.DISTRO else OptimizerKind.ADAMW
        lookahead = Lookahead[self.lookahead.name]
        return Optimizer(
            kind, compression_decay=self.decay, quantize_1bit=not self.values, betas=self.betas, lookahead=lookahead,
            **shared,
        )  # fmt: skip
