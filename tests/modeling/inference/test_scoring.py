"""Choices are worth the same with a shared context as each by itself, in every family."""

from pathlib import Path
from typing import Any

import pytest
import torch
from kits.models import FAMILIES, write_config
from kits.tier import few

from psyche.modeling.architecture import build_random, read_blueprint
from psyche.modeling.inference.scoring import ChoiceScorer, Pace

# A row of positions, experts, latent attention, a sliding window, a state instead of attention, and the plain one.
FIRST = ["gpt2", "qwen3_moe", "deepseek_v3", "gpt_oss", "mamba2", "llama"]
STATES = {"mamba", "mamba2"}
CONTEXT = [0, *range(3, 24)]
CHOICES = [[7], [9, 11, 60, 2], [9, 12], [33, 33, 33, 33, 33, 33]]


def build(family: str, folder: Path) -> Any:
    return build_random(read_blueprint(write_config(folder / "config.json", family)), seed=3).eval()


def score_alone(model: Any, choice: list[int]) -> tuple[float, bool]:
    """One token after the other, each from a forward pass of its own over everything before it."""
    total, is_greedy = 0.0, True
    for place, token in enumerate(choice):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([CONTEXT + choice[:place]]), use_cache=False).logits[0, -1].double()
        total += float(logits.log_softmax(-1)[token])
        is_greedy &= int(logits.argmax()) == token
    return total, is_greedy


@pytest.mark.parametrize("family", few([*FIRST, *sorted(FAMILIES.keys() - set(FIRST))], len(FIRST)))
def test_choices_after_a_shared_context_are_worth_what_each_is_by_itself(family: str, tmp_path: Path) -> None:
    model = build(family, tmp_path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    scorer = ChoiceScorer(model)
    other = build_random(read_blueprint(tmp_path / "config.json"), seed=4).eval()
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    piecemeal = ChoiceScorer(other, Pace(1e-9))  # token by token, with the first one's weights
    piecemeal.weights = weights
    assert scorer.shares_context is (family not in STATES)
    greedy: list[int] = []
    for _ in range(2):
        logits = model(input_ids=torch.tensor([CONTEXT + greedy]), use_cache=False).logits
        greedy.append(int(logits[0, -1].argmax()))
    for choices in ([*CHOICES, greedy], [[7], [9]], [[5, 6]]):  # single tokens need the context's pass alone
        expected = [score_alone(model, choice) for choice in choices]
        found = scorer.score(CONTEXT, choices)
        assert [one for _, one in found] == [one for _, one in expected]
        assert [one for one, _ in found] == pytest.approx([one for one, _ in expected], abs=2e-5)
        slowly = piecemeal.score(CONTEXT, choices)
        assert [one for one, _ in slowly] == pytest.approx([one for one, _ in expected], abs=2e-5)
    assert scorer.score(CONTEXT, [greedy])[0][1]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
