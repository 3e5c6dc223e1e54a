"""A round of local steps whose inner state begins anew can be replayed: how far honest rounds and cheats are off."""

import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from kits.tier import IS_WHOLE, few
from transformers import LlamaConfig, LlamaForCausalLM

from psyche.core.committee.verdicts import compute_distance
from psyche.core.encoding.header import NumericClass
from psyche.core.encoding.work import Values
from psyche.core.state.state import InnerOptimizer, Optimizer, OptimizerKind
from psyche.modeling.local.inner import InnerSteps, split_samples
from psyche.modeling.model import get_parameters
from psyche.modeling.trainer.batch import compute_gradients
from psyche.modeling.verification.sketch import Sketch

LENGTH, BATCH, STEPS, RATE = 64, 8, 8, 3e-3
CPU = torch.device("cpu")


@cache
def read_text() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-d]*.py")))


def draw_rows(samples: int, seed: int) -> torch.Tensor:
    """Rows of the standard library's text, as bytes."""
    text = read_text()
    places = np.random.default_rng(seed).integers(0, len(text) - LENGTH, samples)
    rows = np.stack([np.frombuffer(text, np.uint8, LENGTH, place) for place in places])
    return torch.from_numpy(rows.astype(np.int64))


def make_steps(model: LlamaForCausalLM, kind: InnerOptimizer) -> InnerSteps:
    settings = Optimizer(OptimizerKind.LOCAL_STEPS, weight_decay=0.1, inner_optimizer=kind, inner_steps=STEPS)
    return InnerSteps({name: one.detach() for name, one in get_parameters(model).items()}, settings)


def train(
    model: LlamaForCausalLM, steps: InnerSteps, rows: torch.Tensor, micro_batch: int = BATCH,
    numeric_class: NumericClass = NumericClass.FP32,
) -> None:  # fmt: skip
    gradients = compute_gradients(
        model, get_parameters(model), rows, micro_batch_size=micro_batch, device=CPU, clip=1.0,
        numeric_class=numeric_class,
    )  # fmt: skip
    steps.step(gradients.tensors, RATE)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """0.14M parameters that are past their first steps, where everything changes fast."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=LENGTH,
        )
    )  # fmt: skip
    steps = make_steps(model, InnerOptimizer.ADAMW)
    for step in range(100 if IS_WHOLE else 50):
        train(model, steps, draw_rows(BATCH, step))
    return model


def play(
    model: LlamaForCausalLM, kind: InnerOptimizer, share: float = 1.0, seed: int = 1_000, micro_batch: int = BATCH,
    numeric_class: NumericClass = NumericClass.FP32,
) -> Sequence[Values]:  # fmt: skip
    """The sketches of what a round has moved after each inner step; the weights are then as before."""
    parameters = get_parameters(model)
    before = {name: one.detach().clone() for name, one in parameters.items()}
    steps, sketch, found = make_steps(model, kind), Sketch(bytes([5]) * 32), []
    steps.begin_round()
    rows = draw_rows(STEPS * BATCH, seed)
    for _, part in split_samples(len(rows), STEPS):
        own = rows[part][: int(BATCH * share)]
        train(model, steps, own, micro_batch, numeric_class)
        found.append(sketch.compute({name: before[name] - one.detach() for name, one in parameters.items()}))
    with torch.no_grad():
        for name, one in parameters.items():
            one.copy_(before[name])
    return found


def compare(claimed: Sequence[Values], own: Sequence[Values]) -> list[float]:
    return [compute_distance(one, other) for one, other in zip(claimed, own, strict=True)]


@pytest.mark.parametrize("kind", few([InnerOptimizer.ADAMW_ANEW, InnerOptimizer.MUON_ANEW]))
def test_a_round_is_replayed_closely_and_a_cheat_is_far_off(model: LlamaForCausalLM, kind: InnerOptimizer) -> None:
    own = play(model, kind)
    assert max(compare(play(model, kind, micro_batch=2), own)) <= 1e-4
    low = play(model, kind, numeric_class=NumericClass.BF16)
    again = play(model, kind, micro_batch=2, numeric_class=NumericClass.BF16)
    assert max(compare(again, low)[3:]) <= 0.04
    assert min(compare(play(model, kind, share=0.5), own)) >= 0.2
    assert min(compare(play(model, kind, seed=2_000), own)) >= 0.2, "other samples"
