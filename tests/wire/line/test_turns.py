"""Locks that are taken at once where they are free, and in order where they are not."""

import pytest
import trio
from trio.testing import MockClock

from psyche.wire.line.turns import AtOnce, Lock, take


def build_locks() -> list[Lock]:
    return [trio.Lock(), trio.Semaphore(1), trio.CapacityLimiter(1)]


@pytest.mark.parametrize("number", range(3))
async def test_a_free_lock_is_taken_before_others_run(number: int) -> None:
    lock, ran = build_locks()[number], trio.Event()

    async def note() -> None:
        ran.set()
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(note)
        async with AtOnce(lock):
            assert not ran.is_set()
        assert not ran.is_set()
    lock.acquire_nowait()  # it was given back


async def test_who_waits_comes_before_who_comes_later() -> None:
    lock, order = trio.Semaphore(1), list[str]()

    async def wait() -> None:
        async with AtOnce(lock):
            order.append("waited")

    async with trio.open_nursery() as nursery:
        async with AtOnce(lock):
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
        async with AtOnce(lock):  # free again, but promised
            order.append("came later")
    assert order == ["waited", "came later"]


async def test_a_lock_that_is_not_free_in_time_is_not_taken(autojump_clock: MockClock) -> None:
    lock = trio.Semaphore(1)
    assert await take(lock)
    assert not await take(lock, trio.current_time() + 3.0)
    assert trio.current_time() == 3.0
    lock.release()
    assert await take(lock, trio.current_time() - 1.0), "a free one is taken at any time"
