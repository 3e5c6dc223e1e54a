import pytest
import torch
from distro_kit import cut_chunks, make_distro, make_plan, make_tensors

from psyche.errors import TrainerError
from psyche.modeling.distro.codec import decode_payload
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.distro.transform import invert


def _bits(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone().view(torch.int32) for name, weight in weights.items()}


def _are_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def _make() -> tuple[Distro, dict[str, torch.Tensor]]:
    plan = make_plan()
    distro, weights = make_distro(plan)
    distro.compress(make_tensors(plan, 1), 1e-3, (), True, 0)
    weights["a"][0, :4] = torch.tensor([0.0, -0.0, 1e-45, 3e38])
    return distro, weights


def test_inside_every_weight_is_moved_by_lr_against_the_momentum() -> None:
    distro, weights = _make()
    before = {name: weight.clone() for name, weight in weights.items()}
    with distro.lookahead(1e-3):
        moved = {name: weights[name] - before[name] for name in weights}
    plan = distro._plan
    for group, momentum in zip(plan.groups, distro.momentum.coefficients, strict=True):
        steps = -1e-3 * invert(momentum.view(-1, *group.edges)).sign()
        chunks, small = cut_chunks(plan, moved, group), cut_chunks(plan, before, group).abs() < 1
        assert torch.allclose(chunks[small], steps[small], rtol=0, atol=1e-7)


def test_afterwards_the_weights_are_bit_for_bit_what_they_were() -> None:
    distro, weights = _make()
    before = _bits(weights)
    for _ in range(3):
        with distro.lookahead(4e-4):
            assert not _are_equal(_bits(weights), before)
        assert _are_equal(_bits(weights), before)
    with pytest.raises(RuntimeError, match="out of memory"), distro.lookahead(1e-3):
        raise RuntimeError("out of memory")
    assert _are_equal(_bits(weights), before)


def test_v4_along_an_own_payload_the_weights_are_those_that_its_apply_gives() -> None:
    distro, weights = _make()
    before = _bits(weights)
    payload = distro.compress(make_tensors(distro._plan, 2), 1e-3, (), True, 1)
    with distro.lookahead(4e-4, decode_payload(distro._plan, payload)):
        inside = _bits(weights)
    assert _are_equal(_bits(weights), before)
    distro.apply([payload], 4e-4, 0.0)
    assert _are_equal(_bits(weights), inside)


def test_parameters_that_require_gradients_can_be_trained_at_the_lookahead_point() -> None:
    plan = make_plan({"w": (16, 16)})
    weights = {"w": torch.nn.Parameter(torch.randn(16, 16))}
    distro = Distro(weights, plan, 0.9)
    distro.compress(make_tensors(plan, 1), 1e-3, (), True, 0)
    before = weights["w"].detach().clone()
    with distro.lookahead(0.5):
        inside = weights["w"].detach().clone()
        (weights["w"] ** 2).sum().backward()
    assert torch.equal(weights["w"].grad, 2 * inside)
    assert torch.equal(weights["w"].detach(), before)
    assert not torch.equal(inside, before)


def test_parameters_that_do_not_fit_the_plan_are_refused() -> None:
    plan = make_plan({"v": (8,), "w": (16, 16)})
    good = make_tensors(plan, 0)
    for parameters, message in (
        ({"w": good["w"]}, "differ in names"),
        (good | {"x": good["w"]}, "differ in names"),
        (good | {"v": good["v"].double()}, "must be float32"),
        (good | {"v": torch.zeros(9)}, "has shape"),
    ):
        with pytest.raises(TrainerError, match=message):
            Distro(parameters, plan, 0.9)


def test_a_gradient_that_is_missing_changes_nothing() -> None:
    plan = make_plan({"v": (8,), "w": (16, 16)})
    distro, _ = make_distro(plan)
    gradients = make_tensors(plan, 1)
    with pytest.raises(TrainerError, match="'w' is missing"):
        distro.compress({"v": gradients["v"]}, 1e-3, (), True, 0)
    assert all(not tensor.any() for tensor in distro.momentum.get_state().values())
