"""How often members of a run on a chain call its endpoint, counted in each of them."""

from pathlib import Path

import pytest
import trio
from kits.chain.counted import BUSY_S, open_counted, play

from psyche.backends.solana.member.link import ChainTime
from psyche.backends.solana.rpc.run_link import LEAST_S, TIME_S, ChainClock
from psyche.testing.builders import build_config

MEMBERS, ROUNDS = 3, 8
MOST_CALLS = 8  # of a member in a round


@pytest.mark.whole
async def test_a_member_calls_its_endpoint_at_most_eight_times_a_round(tmp_path: Path) -> None:
    config = build_config(
        init_min_clients=MEMBERS, min_clients=MEMBERS, rounds_per_epoch=ROUNDS, total_steps=ROUNDS + 1,
        entropy_delay=4, warmup_time=60, max_round_train_time=60, cooldown_time=1,
        global_batch_size_start=MEMBERS, global_batch_size_end=MEMBERS,
    )  # fmt: skip
    async with open_counted(MEMBERS, config, tmp_path, slot_ms=100) as members:
        with trio.fail_after(300):
            await play(members)
    for one in members:
        assert len(one.rounds) >= ROUNDS
        assert one.count_per_round() <= MOST_CALLS, one.get_calls()
        assert one.count_busiest() <= 100, f"public endpoints allow so many in {BUSY_S:.0f} s"


def test_the_chains_time_is_carried_on_late_rather_than_early() -> None:
    clock = ChainClock()
    clock.set(ChainTime(100, 5_000), 0.0)
    assert clock.estimate(0.5) is None, "how fast slots pass is not known yet"
    clock.set(ChainTime(105, 5_002), LEAST_S)
    assert clock.estimate(LEAST_S) == ChainTime(105, 5_002)
    assert clock.estimate(LEAST_S + 1.9) == ChainTime(109, 5_003)
    clock.note_slot(112, LEAST_S + 2.0)
    assert clock.estimate(LEAST_S + 3.0) == ChainTime(114, 5_005)
    clock.note_slot(90, LEAST_S + 3.0)
    assert clock.estimate_slot(LEAST_S + 3.0) == 114
    assert clock.estimate(LEAST_S + TIME_S + 0.1) is None, "it is asked for again"
    clock.set(ChainTime(112, 5_002), 30.0)
    clock.set(ChainTime(112, 5_002), 40.0)
    assert clock.estimate(40.0) is None, "the chain stands still"
