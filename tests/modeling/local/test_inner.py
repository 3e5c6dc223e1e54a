"""The inner steps of a round: which samples, which optimizer, which rate, and what they moved."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from psyche.core.encoding.plan import compute_run_plan
from psyche.core.state.state import InnerOptimizer, Optimizer, OptimizerKind
from psyche.errors import TrainerError
from psyche.modeling.local.inner import InnerSteps, split_samples
from psyche.modeling.local.state import COUNTS

SETTINGS = Optimizer(
    OptimizerKind.LOCAL_STEPS, inner_steps=4, weight_decay=0.5, compression_topk=2, compression_chunk=4, value_bits=2
)
SHAPES = {
    "embed.weight": (8, 4), "layers.0.up.weight": (6, 4), "layers.0.norm.weight": (4,), "layers.1.experts": (2, 4, 4),
}  # fmt: skip


def make(inner_optimizer: InnerOptimizer) -> tuple[InnerSteps, dict[str, nn.Parameter]]:
    draw = torch.Generator().manual_seed(1)
    parameters = {name: nn.Parameter(torch.randn(shape, generator=draw)) for name, shape in SHAPES.items()}
    return InnerSteps(parameters, replace(SETTINGS, inner_optimizer=inner_optimizer)), parameters


def make_gradients(seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}


@given(st.integers(1, 300), st.integers(1, 40))
def test_inner_batches_are_all_samples_in_order_and_none_is_empty(samples: int, inner_steps: int) -> None:
    parts = list(split_samples(samples, inner_steps))
    assert [row for _, part in parts for row in range(samples)[part]] == list(range(samples))
    assert len(parts) == min(samples, inner_steps)
    sizes = {part.stop - part.start for _, part in parts}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert [(j * samples // inner_steps, (j + 1) * samples // inner_steps) for j, _ in parts] == [
        (part.start, part.stop) for _, part in parts
    ]


@pytest.mark.parametrize("kind", list(InnerOptimizer))
def test_a_tensor_moves_as_its_optimizer_alone_would_move_it(kind: InnerOptimizer) -> None:
    """Muon takes the matrix inside a layer, AdamW all else; decay of weights is decoupled.

    torch's Muon rounds to bf16, ours does not.
    """
    inner, parameters = make(kind)
    rest, inside = {**make(kind)[1]}, {}
    if kind in (InnerOptimizer.MUON, InnerOptimizer.MUON_ANEW):
        inside = {"layers.0.up.weight": rest.pop("layers.0.up.weight")}
    for round_ in range(2):
        if not round_ or kind in (InnerOptimizer.ADAMW_ANEW, InnerOptimizer.MUON_ANEW):
            others = [torch.optim.AdamW(rest.values(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.5)]
            if inside:
                others += [torch.optim.Muon(inside.values(), weight_decay=0.5, adjust_lr_fn="match_rms_adamw")]
        inner.begin_round()
        for step in range(2):
            gradients, rate = make_gradients(10 * round_ + step), 0.01 * (step + 1)
            inner.step(gradients, rate)
            for name, parameter in {**rest, **inside}.items():
                parameter.grad = gradients[name]
            for other in others:
                other.param_groups[0]["lr"] = rate
                other.step()
    assert all(torch.equal(parameters[name], other) for name, other in rest.items())
    for name in inside:
        moves = [one[name].detach() - make(kind)[1][name] for one in (parameters, inside)]
        difference = (moves[0] - moves[1]).norm() / moves[1].norm()
        assert 0 < difference < 0.01
    assert all(parameter.grad is None for parameter in parameters.values())


def test_the_rate_is_linear_within_a_round_and_rises_for_a_newcomer() -> None:
    inner, _ = make(InnerOptimizer.ADAMW)
    rates: list[float] = []
    for round_ in range(3):
        for step in range(4):
            rates.append(inner.get_rate(step, (8.0, 4.0)))
            inner.step(make_gradients(4 * round_ + step), 0.0)
    full = [8.0, 7.0, 6.0, 5.0]
    assert rates[:8] == [rate * (number + 1) / 8 for number, rate in enumerate(full * 2)]
    assert rates[8:] == full


@pytest.mark.parametrize("kind", list(InnerOptimizer))
def test_state_that_is_restored_moves_every_tensor_as_the_state_before_did(kind: InnerOptimizer) -> None:
    (inner, parameters), (fresh, others) = make(kind), make(kind)
    inner.begin_round()
    for step in range(3):
        inner.step(make_gradients(step), 0.01)
    plan = compute_run_plan(SHAPES, SETTINGS)
    fresh.load_state(plan, {name: tensor.clone() for name, tensor in inner.get_state(plan).items()})
    for name, parameter in parameters.items():
        others[name].data.copy_(parameter)
    for one in (inner, fresh):
        one.begin_round()
        one.step(make_gradients(3), one.get_rate(0, (0.01, 0.01)))
    assert all(torch.equal(parameters[name], others[name]) for name in SHAPES)


def test_state_of_another_optimizer_counts_steps_only_and_damaged_state_is_refused() -> None:
    plan = compute_run_plan(SHAPES, SETTINGS)
    muon, adamw = (make(kind)[0] for kind in (InnerOptimizer.MUON, InnerOptimizer.ADAMW))
    for step in range(8):
        muon.step(make_gradients(step), 0.01)
    state = muon.get_state(plan)
    adamw.load_state(plan, state)
    assert adamw.get_rate(0, (1.0, 1.0)) == 1.0
    assert adamw.get_state(plan)[COUNTS].tolist() == [8, 0, 0]
    damaged = next(name for name in state if "second" in name)
    for changed, text in (({damaged: state[damaged][:, 1:]}, damaged), ({COUNTS: torch.zeros(1)}, COUNTS)):
        with pytest.raises(TrainerError, match=text):
            muon.load_state(plan, state | changed)
