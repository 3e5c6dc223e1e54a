"""Local steps that are proposed for a line that is too slow for an exchange in every step."""

from dataclasses import replace

import pytest
from forecast_kit import build_machines, build_question

from psyche.analysis.accounts import What
from psyche.core.state.state import Optimizer, OptimizerKind
from psyche.forecast.local_steps import LINE_SHARE, compute_line_share, propose_local_steps
from psyche.forecast.play import play
from psyche.forecast.suggestions import find_ideas
from psyche.forecast.workload import Workload, build_workload, compute_even_shapes, compute_payload_bytes

PARAMETERS = 10**9


def propose(mbit_s: float, members: int = 16, inner_s: float = 2.0) -> Optimizer | None:
    return propose_local_steps(PARAMETERS, members, mbit_s, inner_s, Optimizer(clip_grad_norm=1.0))


@pytest.mark.parametrize(
    ("mbit_s", "members", "expected"),
    [(100.0, 16, (8, 16)), (200.0, 16, (4, 16)), (1000.0, 16, (4, 128)), (20.0, 16, (32, 16)), (20.0, 3, (4, 16))],
)
def test_the_fewest_inner_steps_that_fit_the_line_send_as_much_as_it_takes(
    mbit_s: float, members: int, expected: tuple[int, int]
) -> None:
    found = propose(mbit_s, members)
    assert found is not None
    assert (found.inner_steps, found.compression_topk) == expected
    payload = compute_payload_bytes(compute_even_shapes(PARAMETERS, 64), found)
    share = compute_line_share(payload, members, mbit_s, found.inner_steps * 2.0)
    assert share == payload * (members - 1) * 8 / (mbit_s * 1e6) / (found.inner_steps * 2.0)
    assert share <= LINE_SHARE
    assert share <= found.merge_step / found.inner_steps < 1, "the results have come when they are merged"
    assert found.clip_grad_norm == 1.0


def test_a_line_that_no_number_of_inner_steps_makes_up_for_gets_no_proposal() -> None:
    assert propose(0.1) is None


def test_where_members_wait_for_the_line_local_steps_are_proposed_and_played_they_train() -> None:
    question = build_question((build_machines(tokens_per_s=64.0, up_mbit_s=20.0, down_mbit_s=20.0), 4), rounds=3)
    run = question.run

    def rebuild(optimizer: Optimizer) -> Workload:
        model = replace(run.model, optimizer=optimizer)
        return build_workload(model, compute_even_shapes(PARAMETERS, 64), "", PARAMETERS)

    before = play(question)
    idea = find_ideas(before, rebuild)[0]
    assert idea.text.startswith("LocalSteps with inner_steps = ")
    optimizer = idea.question.run.model.optimizer
    assert optimizer.kind is OptimizerKind.LOCAL_STEPS
    config = idea.question.config
    assert config.global_batch_size_end == optimizer.inner_steps * question.config.global_batch_size_end
    after = play(idea.question)
    assert after.accounts.shares[What.TRAIN] > before.accounts.shares[What.TRAIN] + 0.2
    assert not find_ideas(after, rebuild)[0].text.startswith("LocalSteps"), "it has them"
