"""How much memory a training step takes on a device, predicted before any weight is loaded.

The step runs on tensors that have no values (torch's FakeTensorMode), while torch's MemTracker counts their storages.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from psyche.core.encoding.plan import compute_run_plan
from psyche.core.state.enums import MUON
from psyche.core.state.state import Optimizer, OptimizerKind
from psyche.errors import ConfigError
from psyche.modeling.architecture import build_meta
from psyche.modeling.device import allocate, find_host, get_free_bytes
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.local.optimizer import LocalSteps
from psyche.modeling.model import enable_checkpointing, get_parameters, get_shapes
from psyche.modeling.trainer.batch import compute_losses
from psyche.telemetry.text import format_bytes
from psyche.wire.trainer import LoadRequest, MemoryReply

USABLE_SHARE: Final = 0.9  # of what is free; the rest is for what no tensor shows, such as workspaces of kernels
MOST_RANKS: Final = 64
AUDIT_COPIES: Final = 4  # in host memory
OPTIMIZER_BYTES: Final = 1 << 28  # more than the buffers of Distro have
LITTLE_SHARE: Final = 0.1  # of what is free; of less the bound is enough, and the step is not played
SHARDED: Final = ("weights", "gradients", "optimizer", "look-ahead copy")  # each rank holds its part of these


@dataclass(frozen=True, slots=True)
class Step:
    """What a training step computes: everything beside the device that its memory depends on.

    `peers` are those that `psyche train` simulates, each with an optimizer of its own. In a run that `verifies` the
    host's memory has copies for audits: the momentum before, two of earlier weights, and the own while they are lent.
    """

    config: PreTrainedConfig
    optimizer: Optimizer
    sequence_length: int
    has_labels: bool = False
    peers: int = 1
    verifies: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """What a user can choose so that a step fits."""

    micro_batch_size: int
    activation_checkpointing: bool = False
    ranks: int = 1
    tensor_parallelism: int = 1  # of these ranks, how many share their samples
    offload: bool = False

    def describe(self) -> str:
        options = {"--activation-checkpointing": self.activation_checkpointing, "--offload": self.offload}
        chosen = " and ".join(name for name, is_set in options.items() if is_set)
        ranks = f" on {self.ranks} devices" if self.ranks > 1 else ""
        return f"a micro-batch of {self.micro_batch_size}{chosen and ' with ' + chosen}{ranks}"


def make_setup(request: LoadRequest) -> Setup:
    return Setup(
        request.micro_batch_size, request.activation_checkpointing, request.ranks, request.tensor_parallelism,
        request.offload,
    )  # fmt: skip


def bound_bytes(step: Step, micro_batch_size: int) -> int | None:
    """What a step hardly exceeds, from shapes alone; None: the config does not say how many attention heads there are.

    A matrix counts with as many numbers a token as its input and output have, 8 times: for what is computed between
    matrices, and for gradients. A head of attention counts with 8 numbers a pair of tokens.
    """
    text = step.config.get_text_config()
    heads, layers = getattr(text, "num_attention_heads", None), getattr(text, "num_hidden_layers", None)
    if not isinstance(heads, int) or not isinstance(layers, int):
        return None
    shapes = [parameter.shape for parameter in build_meta(step.config).parameters()]
    tokens = micro_batch_size * step.sequence_length
    activations = tokens * (8 * sum(sum(shape) for shape in shapes) + 8 * step.sequence_length * heads * layers)
    kept = 2 + 3 * step.peers  # AdamW's moments, or momentum and a copy; of local steps moments and the error memory
    copies = step.optimizer.kind is OptimizerKind.LOCAL_STEPS  # of the masters; a copy of DisTrO is among the three
    kept = (kept + copies + AUDIT_COPIES * step.verifies) * sum(shape.numel() for shape in shapes)
    return 4 * (activations + kept) + OPTIMIZER_BYTES * step.peers


def predict_bytes(
    step: Step,
    device: torch.device,
    micro_batch_size: int,
    *,
    activation_checkpointing: bool,
    host: torch.device | None = None,
) -> dict[str, int]:
    """The bytes of each part at the peak of a step: those on the device, not those on a host.

    That is in a micro-batch after the first, which adds to gradients that are there already.
    """
    with FakeTensorMode(), torch.device(device):
        model = AutoModelForCausalLM.from_config(step.config, dtype=torch.float32)
        model.train()
        if activation_checkpointing:
            enable_checkpointing(model)
        return _count(step, device, model, _make_rows(step, micro_batch_size), host)


def _make_rows(step: Step, samples: int) -> torch.Tensor:
    rows = torch.zeros(samples, step.sequence_length, 3 if step.has_labels else 1, dtype=torch.int64)
    return rows if step.has_labels else rows[..., 0]


def _count(
    step: Step, device: torch.device, model: Any, rows: torch.Tensor, host: torch.device | None
) -> dict[str, int]:
    parameters = get_parameters(model)
    place = next(iter(parameters.values())).device
    tracker = MemTracker()
    tracker.track_external(model)
    totals: list[int] = []

    def note(kind: str = "current") -> int:
        totals.append(tracker.get_tracker_snapshot(kind)[place]["Total"])
        return totals[-1] - (totals[-2] if len(totals) > 1 else 0)

    with tracker:
        # What it records of each module is not asked for, and takes time that grows with the square of their number.
        tracker._mod_tracker.clear_user_hooks()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        parts = {"weights": note()}
        for parameter in parameters.values():
            parameter.grad = torch.empty_like(parameter)
        parts["gradients"] = note()
        optimizers = [_make_optimizer(step.optimizer, parameters, host) for _ in range(step.peers)]
        parts["optimizer"] = note()
        number = {OptimizerKind.DISTRO: len(optimizers), OptimizerKind.LOCAL_STEPS: 1}  # that of one round at a time
        copied = range(number.get(step.optimizer.kind, 0))
        copies = [allocate(parameter.shape, place, host) for parameter in parameters.values() for _ in copied]
        parts["look-ahead copy"] = note()
        if step.verifies and device.type == "cpu":
            copies += [torch.empty_like(parameter) for parameter in parameters.values() for _ in range(AUDIT_COPIES)]
            parts["copies for audits"] = note()
        losses, of_routers = compute_losses(model, rows, device)
        torch.autograd.backward(losses.sum() + of_routers)
        del losses, of_routers
        parts["activations"] = note("peak")
        del copies, optimizers
    return parts


def _make_optimizer(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], host: torch.device | None) -> object:
    if optimizer.kind in (OptimizerKind.DISTRO, OptimizerKind.LOCAL_STEPS):
        plan = compute_run_plan(get_shapes(parameters), optimizer)
        if optimizer.kind is OptimizerKind.DISTRO:
            return Distro(parameters, plan, optimizer.compression_decay, host)
        local = LocalSteps(parameters, plan, optimizer, host)
        local.inner.allocate()
        return local
    return [torch.empty_like(parameter) for parameter in parameters.values() for _ in range(2)]  # AdamW's moments


def count_gathered(config: PreTrainedConfig) -> int:
    """The bytes that FSDP2 has whole at a time: the weights of two layers and of what is in none, gradients of one."""
    model = build_meta(config)
    layers = [one for one in model.modules() if isinstance(one, GradientCheckpointingLayer)]
    sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    rest, largest = model.num_parameters() - sum(sizes), max(sizes, default=0)
    return 4 * (rest + 2 * largest + max(rest, largest))


class Fitting:
    """Finds settings with which a step fits into the free memory of a device; calls `beat` before each prediction.

    Ranks may share the memory of one device, as those of a machine's CPU do.
    """

    def __init__(
        self, step: Step, device: torch.device, beat: Callable[[], None] = lambda: None, *, is_shared: bool = False
    ) -> None:
        self._step, self._device, self._beat, self._is_shared = step, device, beat, is_shared
        self._free = get_free_bytes(device)
        self._known: dict[tuple[int, bool, bool], dict[str, int]] = {}

    def predict(self, setup: Setup) -> dict[str, int]:
        """The bytes of each part on each of the ranks."""
        key = (setup.micro_batch_size, setup.activation_checkpointing, setup.offload)
        if key not in self._known:
            self._beat()
            host = find_host(self._device, offload=setup.offload)
            self._known[key] = predict_bytes(
                self._step, self._device, key[0], activation_checkpointing=key[1], host=host
            )
        parts = {name: -(-size // (setup.ranks if name in SHARDED else 1)) for name, size in self._known[key].items()}
        if setup.ranks > 1 and self._step.optimizer.inner_optimizer in MUON:  # each is at one rank too
            parts["whole matrices"] = parts["weights"] + parts["gradients"]
        if setup.ranks > setup.tensor_parallelism:
            parts["gathered layers"] = self._gathered_bytes // setup.tensor_parallelism
        return parts

    @cached_property
    def _gathered_bytes(self) -> int:
        return count_gathered(self._step.config)  # builds the model, and is the same for all settings

    def _get_free(self, setup: Setup) -> int:
        """What is free for each rank."""
        return self._free // (setup.ranks if self._is_shared else 1)

    def _get_total(self, setup: Setup) -> int:
        return sum(self.predict(setup).values())

    def _fits(self, setup: Setup) -> bool:
        return self._get_total(setup) <= USABLE_SHARE * self._get_free(setup)

    def find_largest(self, setup: Setup, most: int) -> Setup | None:
        """These settings with the largest micro-batch up to `most` that fits; None: not even one sample does.

        Activations grow with the micro-batch by even steps, or nearly so.
        """
        one, two = (replace(setup, micro_batch_size=size) for size in (1, 2))
        if not self._fits(one):
            return None
        if most == 1 or not self._fits(two):
            return one
        growth = max(1, self._get_total(two) - self._get_total(one))
        left = int(USABLE_SHARE * self._get_free(setup)) - self._get_total(one)
        found = replace(setup, micro_batch_size=min(most, 1 + left // growth))
        while not self._fits(found):
            size = found.micro_batch_size
            found = replace(found, micro_batch_size=size - max(1, size // 16))
        return found

    def fit(self, setup: Setup, most: int) -> MemoryReply:
        """Check settings; with a micro-batch of 0, find the largest that fits. `most` is the largest of use.

        Raises:
            ConfigError: they do not fit; the message says what each part needs, and which settings would.
        """
        chosen = replace(setup, micro_batch_size=min(setup.micro_batch_size, most) or 1)
        if not setup.micro_batch_size:
            chosen = self.find_largest(chosen, most) or chosen
        elif bound := self._find_little(chosen):
            return self.reply(chosen, {"all, at most": bound})
        if not self._fits(chosen):
            raise ConfigError(self._explain(chosen))
        return self.reply(chosen)

    def _find_little(self, setup: Setup) -> int | None:
        """A bound of what a step takes, if that is little beside what is free."""
        bound = bound_bytes(self._step, setup.micro_batch_size)
        return bound if bound is not None and bound <= LITTLE_SHARE * self._get_free(setup) else None

    def reply(self, setup: Setup, parts: dict[str, int] | None = None) -> MemoryReply:
        return MemoryReply(
            device=str(self._device), micro_batch_size=setup.micro_batch_size, parts=parts or self.predict(setup),
            free_bytes=self._get_free(setup),
        )  # fmt: skip

    def _explain(self, setup: Setup) -> str:
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.predict(setup).items())
        advice = " or ".join(found.describe() for found in self._suggest(setup))
        each = " for each" if setup.ranks > 1 else ""
        return (
            f"memory: training with {setup.describe()} needs {format_bytes(self._get_total(setup))}{each} ({parts}), "
            f"but {format_bytes(self._get_free(setup))} are free{each} on {self._device}, of which {USABLE_SHARE:.0%} "
            "are used; " + (f"take {advice}" if advice else "take a device with more memory, or a smaller model")
        )

    @property
    def _can_offload(self) -> bool:
        is_ours = self._step.optimizer.kind in (OptimizerKind.DISTRO, OptimizerKind.LOCAL_STEPS)
        return is_ours and find_host(self._device, offload=True) is not None

    def _suggest(self, setup: Setup) -> Iterator[Setup]:
        """Settings that fit, the fewest changes first."""
        if smaller := self.find_largest(setup, setup.micro_batch_size):
            yield smaller
        with suppress(ConfigError):  # a model of a kind that has no checkpointing
            again = replace(setup, activation_checkpointing=True)
            if again != setup and (found := self.find_largest(again, setup.micro_batch_size)):
                yield found
        lighter = replace(setup, offload=True)
        if self._can_offload and lighter != setup and (found := self.find_largest(lighter, setup.micro_batch_size)):
            yield found
        more = (replace(setup, ranks=2**power) for power in range(1, MOST_RANKS.bit_length()))
        yield from islice((found for found in more if found.ranks > setup.ranks and self._fits(found)), 1)
