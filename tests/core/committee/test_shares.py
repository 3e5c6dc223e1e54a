"""B13: many keys of one operator are drawn as the keys of as many operators are."""

from collections.abc import Callable

import pytest
from kits.runs import build_run

from psyche.core.committee.elections import get_verifiers, get_witnesses
from psyche.core.state.state import Config, Round
from psyche.testing.builders import build_hash

MEMBERS, OWNED, DRAWS = 40, 12, 400


@pytest.mark.parametrize("elect", [lambda round_, _config: get_witnesses(round_), get_verifiers])
def test_b13_a_share_of_the_keys_is_that_share_of_the_elected_and_no_more(
    elect: Callable[[Round, Config], list[int]],
) -> None:
    run = build_run(
        MEMBERS, verification_percent=25, witness_nodes=8, global_batch_size_start=80, global_batch_size_end=80
    )
    run.warm_up()
    run.settle()
    round_, owned, drawn = run.state.current, set(range(OWNED)), list[int]()
    for number in range(DRAWS):
        round_.random_seed = int.from_bytes(build_hash("draw", number)[:8], "little")
        drawn += elect(round_, run.state.config)
    assert len(drawn) >= 8 * DRAWS
    assert sum(member in owned for member in drawn) / len(drawn) == pytest.approx(OWNED / MEMBERS, abs=0.02)
