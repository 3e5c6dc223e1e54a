"""Samples are fetched ahead and taken once; bodies of results stay as long as a round needs them."""

import pytest
import trio
import trio.testing
from runtime_kit import FakeData

from psyche.client.engine.actions import FetchData
from psyche.client.runtime.trainer_inputs import DataAhead, PayloadCache
from psyche.errors import DataError, NetworkError

BODY = b"a payload"
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


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_fetch_that_nobody_waits_for_any_more_ends(is_taken: bool) -> None:
    """A source that hangs keeps no request open of a round that is over."""
    data = DataAhead(FakeData(hangs=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(data.fetch, ACTION, data.expect(ACTION))
        await trio.testing.wait_all_tasks_blocked()
        if is_taken:
            with trio.CancelScope() as waiting:  # pyright: ignore[reportCallIssue]
                nursery.start_soon(cancel_at_rest, waiting)
                await data.take(0, 4, 0, 1)
        else:
            data.expire(0, 5)


async def cancel_at_rest(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


def test_bodies_are_found_in_the_order_that_is_asked_for_or_not_at_all() -> None:
    """C6: a set is applied whole."""
    cache = PayloadCache()
    cache.keep(b"1", 0, 3, b"one")
    cache.keep(b"2", 0, 3, b"two")
    assert cache.find((b"2", b"1", b"2")) == (b"two", b"one", b"two")
    assert cache.find(()) == ()
    assert cache.find((b"1", b"3")) is None


def test_equal_bodies_of_two_rounds_stay_as_long_as_the_later_one_needs_them() -> None:
    """B3: who copies a payload of an earlier round takes it away from nobody."""
    cache = PayloadCache()
    for height in (6, 5):
        cache.keep(b"1", 0, height, BODY)
    cache.expire(0, 6)
    assert cache.find((b"1",)) == (BODY,)
    assert len(cache) == 1
    cache.expire(0, 7)
    assert cache.find((b"1",)) is None
    assert len(cache) == 0
