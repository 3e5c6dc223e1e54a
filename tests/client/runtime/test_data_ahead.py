"""Samples are fetched ahead, taken once, and an error is told to who needs them."""

import pytest
import trio
import trio.testing
from runtime_kit import FakeData

from psyche.client.engine.actions import FetchData
from psyche.client.runtime.trainer_inputs import DataAhead
from psyche.errors import DataError, NetworkError

ACTION = FetchData(0, 4, 0, 1)


async def test_samples_are_fetched_ahead_and_handed_over_once() -> None:
    provider = FakeData()
    data = DataAhead(provider)
    await data.fetch(ACTION, data.expect(ACTION))
    assert await data.take(0, 4, 0, 1) == bytes(8)
    assert provider.asked == [(0, 4)]
    assert await data.take(0, 4, 0, 1) == bytes(8)
    assert provider.asked == [(0, 4), (0, 4)]


async def test_who_takes_samples_that_are_on_their_way_waits_for_them() -> None:
    provider = FakeData()
    data = DataAhead(provider)
    pending = data.expect(ACTION)
    taken: list[bytes] = []

    async def take() -> None:
        taken.append(await data.take(0, 4, 0, 1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        assert taken == []
        await data.fetch(ACTION, pending)
    assert taken == [bytes(8)]
    assert provider.asked == [(0, 4)]


@pytest.mark.parametrize("error", [DataError("gone"), NetworkError("away"), OSError(5, "Input/output error")])
async def test_samples_that_cannot_be_had_are_said_when_they_are_needed(error: Exception) -> None:
    """F22: never trains on nothing."""
    data = DataAhead(FakeData(error))
    await data.fetch(ACTION, data.expect(ACTION))
    with pytest.raises((DataError, NetworkError)):
        await data.take(0, 4, 0, 1)


async def test_samples_of_rounds_that_are_over_are_dropped() -> None:
    provider = FakeData()
    data = DataAhead(provider)
    await data.fetch(ACTION, data.expect(ACTION))
    data.expire(0, 4)
    assert await data.take(0, 4, 0, 1) == bytes(8)
    assert len(provider.asked) == 1
    await data.fetch(ACTION, data.expect(ACTION))
    data.expire(0, 5)
    await data.take(0, 4, 0, 1)
    assert len(provider.asked) == 3, "it was fetched anew"
