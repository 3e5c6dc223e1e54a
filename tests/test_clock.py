"""The clocks of the tests."""

import time

import pytest
import trio
from kits.clocks import SteadyClock, wait_until_all_rest
from trio.testing import MockClock


async def test_the_clock_does_not_jump_over_a_deadline_while_a_thread_works(autojump_clock: MockClock) -> None:
    del autojump_clock
    with trio.move_on_after(3_000) as scope:
        await trio.to_thread.run_sync(time.sleep, 0.05)
    assert not scope.cancelled_caught
    assert trio.current_time() < 3_000


def test_a_steady_clock_counts_neither_a_stall_of_the_machine_nor_the_work_of_a_thread() -> None:
    async def stall() -> None:
        time.sleep(0.3)  # as if the machine stood still
        await trio.lowlevel.checkpoint()
        await trio.to_thread.run_sync(time.sleep, 0.3)
        assert trio.current_time() < 1.0  # 6 s without this

    trio.run(stall, clock=SteadyClock(rate=10))


def test_a_steady_clock_runs_at_its_rate_where_nothing_holds_it_up() -> None:
    async def wait() -> float:
        began = time.perf_counter()
        await trio.sleep(20)
        return time.perf_counter() - began

    assert trio.run(wait, clock=SteadyClock(rate=100)) >= 0.2


async def test_a_task_that_waits_for_its_thread_is_not_at_rest() -> None:
    done: list[int] = []

    async def work() -> None:
        for number in range(2):
            await trio.to_thread.run_sync(time.sleep, 0.05)
            done.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await wait_until_all_rest()
        assert done == [0, 1]


@pytest.fixture
async def beside_a_clock(autojump_clock: MockClock) -> MockClock:
    return autojump_clock


@pytest.mark.usefixtures("autojump_clock")
async def test_a_clock_among_the_marks_is_used() -> None:
    assert isinstance(trio.lowlevel.current_clock(), MockClock)


async def test_a_clock_of_a_fixture_is_used(beside_a_clock: MockClock) -> None:
    assert trio.lowlevel.current_clock() is beside_a_clock


async def test_a_test_without_a_clock_has_a_steady_one() -> None:
    assert isinstance(trio.lowlevel.current_clock(), SteadyClock)
    assert trio.current_time() >= 100_000


async def test_a_steady_clock_lets_a_moment_of_rest_be_waited_for() -> None:
    await trio.testing.wait_all_tasks_blocked(0.2)
