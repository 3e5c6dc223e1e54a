"""A record that goes back: on a chain that was restored from an older ledger, members go on and sign nothing twice."""

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.log import choose
from kits.tier import few
from trio.testing import MockClock

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.state import Coordinator, RunState
from psyche.telemetry import types
from psyche.testing.builders import build_config
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.testing.swarm import Member, Swarm, open_swarm

LIMIT_S = 5_000
TIMES = {"warmup_time": 20, "cooldown_time": 2, "max_round_train_time": 10, "round_witness_time": 2, "min_clients": 2}


async def play(
    folder: Path, trainers: list[DummyTrainer], go_back: Callable[[Swarm], Awaitable[None]], **config: Any
) -> list[list[types.Event]]:
    """A whole run in which the record goes back; the events of each member, which all hold the same weights."""
    clients = len(trainers)
    batch = {"global_batch_size_start": 2 * clients, "global_batch_size_end": 2 * clients}
    values = build_config(init_min_clients=clients, **(TIMES | batch | config))
    with trio.fail_after(LIMIT_S):
        async with (
            open_swarm(clients, folder, config=values, make_trainer=trainers.__getitem__) as swarm,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(go_back, swarm)
            assert await swarm.run() == [0] * clients
    assert {member.digest for member in swarm.members} == {swarm.coordinator.state.certified.digest}
    seen = [get_events(member) for member in swarm.members]
    for events in seen:
        sent = {(one.epoch, one.height, one.commitment) for one in choose(events, types.ResultSent)}
        assert len({place[:2] for place in sent}) == len(sent), "a second result of a round would be evidence (R7)"
        assert not choose(events, types.Equivocation)
    return seen


def get_events(member: Member) -> list[types.Event]:
    return [entry.event for entry in member.events.drain()]


def restore(swarm: Swarm, old: bytes) -> None:
    swarm.coordinator.state = decode_state(old)
    swarm.coordinator.settle()


Moment = Callable[[Coordinator], bool]
MOMENTS: dict[str, tuple[Moment, Moment]] = {  # what is restored, and when
    "Warmup": (
        lambda state: state.run_state is RunState.WARMUP and state.progress.epoch == 1,
        lambda state: state.in_round and state.progress.epoch == 1 and state.current.height == 1,
    ),
    "round": (
        lambda state: state.in_round and state.progress.epoch == 0 and state.current.height == 1,
        lambda state: state.in_round and state.current.height == 3,
    ),
    "report": (
        lambda state: state.in_round and state.current.height == 2 and len(state.current.witnesses) > 0,
        lambda state: state.in_round and state.current.height == 3,
    ),
    "epoch before": (
        lambda state: state.in_round and state.progress.epoch == 0 and state.current.height == 2,
        lambda state: state.in_round and state.progress.epoch == 1,
    ),
    "Cooldown": (
        lambda state: state.run_state is RunState.COOLDOWN,
        lambda state: state.run_state is RunState.WARMUP and state.progress.epoch == 1,
    ),
}


@pytest.mark.parametrize("overlap", few([True, False]))
@pytest.mark.parametrize("moment", few(list(MOMENTS), 2))
async def test_a_run_whose_record_goes_back_is_finished_with_equal_weights(
    moment: str, overlap: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    before, later = MOMENTS[moment]

    async def go_back(swarm: Swarm) -> None:
        kept: list[bytes] = []
        settle = swarm.coordinator.settle

        def keep() -> int:
            """A report is on record for an instant only before a tick closes the round."""
            if not kept and before(swarm.coordinator.state):
                kept.append(encode_state(swarm.coordinator.state))
            return settle()

        swarm.coordinator.settle = keep  # type: ignore[method-assign]
        await swarm.coordinator.wait_until(lambda state: bool(kept) and later(state))
        restore(swarm, kept[0])

    trainers = [DummyTrainer(train_s=0.4, apply_s=0.05) for _ in range(3)]
    seen = await play(tmp_path, trainers, go_back, overlap=overlap, rounds_per_epoch=5, total_steps=14)
    for events in seen:
        # it leaves as after a restart (M9), or because the record decided a round otherwise the second time
        may = types.LeaveCause.RESTARTED if moment == "epoch before" else types.LeaveCause.CONTRADICTED
        assert {event.cause for event in choose(events, types.Withdrew)} <= {may}
        assert moment == "epoch before" or not [e for e in events if isinstance(e, types.EpochFailed | types.Dropped)]


@pytest.mark.whole
@pytest.mark.parametrize("seed", few(range(6)))
async def test_members_of_any_pace_go_on_with_a_record_that_goes_back_by_any_step(
    seed: int, autojump_clock: MockClock, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    trainers = [
        DummyTrainer(train_s=draw.choice([0.1, 0.4, 1.5, 3]), apply_s=draw.choice([0.05, 0.5]))
        for _ in range(draw.choice([2, 3, 3, 5]))
    ]

    async def go_back(swarm: Swarm) -> None:
        history: list[bytes] = []
        for _ in range(draw.randint(20, 140)):
            history.append(encode_state(swarm.coordinator.state))
            await swarm.coordinator.wait_until(lambda state: state.nonce != decode_state(history[-1]).nonce)
        restore(swarm, history[-1 - draw.randint(1, min(len(history) - 1, draw.choice([2, 6, 15, 40])))])

    rounds = draw.choice([3, 5, 12])
    await play(tmp_path, trainers, go_back, overlap=draw.random() < 0.5, rounds_per_epoch=rounds, total_steps=40)
