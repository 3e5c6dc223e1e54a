"""A nursery ends with its first failure, and that failure comes out as it is."""

import traceback
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from psyche.errors import NetworkError, PsycheError, WireError
from psyche.wire.nursery import open_plain_nursery

FIRST = NetworkError("the first")
Task = Callable[[], Awaitable[None]]


def fail_after(seconds: float, error: BaseException) -> Task:
    async def fail() -> None:
        await trio.sleep(seconds)
        raise error

    return fail


def fail_when_cancelled(error: BaseException) -> Task:
    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise error

    return fail


async def run(*tasks: Task, block: Task = trio.sleep_forever) -> None:
    async with open_plain_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)
        await block()


async def test_the_first_task_that_fails_ends_tasks_and_block_and_its_error_stands_alone(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(NetworkError) as raised:
        await run(trio.sleep_forever, fail_after(2.0, NetworkError("later")), fail_after(1.0, FIRST))
    assert raised.value is FIRST
    assert trio.current_time() == 1.0
    shown = "".join(traceback.format_exception(raised.value))
    assert "Cancelled" not in shown
    assert "sub-exception" not in shown


async def test_the_cause_of_an_error_is_kept(autojump_clock: MockClock) -> None:
    error = NetworkError("refused")
    error.__cause__ = OSError("no route")
    with pytest.raises(NetworkError) as raised:
        await run(fail_after(1.0, error))
    assert str(raised.value.__cause__) == "no route"


async def test_what_fails_while_it_is_ended_is_dropped(autojump_clock: MockClock) -> None:
    late = fail_when_cancelled(WireError("while it ends"))
    with pytest.raises(PsycheError) as raised:
        await run(late, fail_after(1.0, FIRST), block=late)
    assert raised.value is FIRST


@pytest.mark.parametrize("error", [NetworkError("refused"), ZeroDivisionError(), KeyboardInterrupt()])
async def test_an_error_of_the_block_comes_out_as_it_is_and_ends_the_tasks(
    autojump_clock: MockClock, error: BaseException
) -> None:
    with pytest.raises(type(error)) as raised:
        await run(trio.sleep_forever, block=fail_after(1.0, error))
    assert raised.value is error


async def test_a_task_that_cannot_start_says_why(autojump_clock: MockClock) -> None:
    async def start(*, task_status: trio.TaskStatus[None]) -> None:
        await fail_after(1.0, FIRST)()

    with pytest.raises(NetworkError, match="the first"):
        async with open_plain_nursery() as nursery:
            await nursery.start(start)


async def test_a_failure_inside_of_a_nursery_of_a_task_comes_out_as_it_is(autojump_clock: MockClock) -> None:
    async def open_another() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_after(1.0, FIRST))

    with pytest.raises(NetworkError, match="the first"):
        await run(open_another)


async def test_a_bug_beside_a_failure_is_not_dropped(autojump_clock: MockClock) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await run(fail_when_cancelled(ZeroDivisionError()), fail_after(1.0, FIRST))
    assert {type(error) for error in raised.value.exceptions} == {NetworkError, ZeroDivisionError}


async def test_who_cancels_it_gets_the_cancellation_and_no_error_of_its_end(autojump_clock: MockClock) -> None:
    with trio.move_on_after(1.0) as scope:
        await run(trio.sleep_forever, fail_when_cancelled(FIRST))
    assert scope.cancelled_caught


async def test_who_cancels_it_still_hears_of_a_bug(autojump_clock: MockClock) -> None:
    async def cancel() -> None:
        with trio.move_on_after(1.0):
            await run(fail_when_cancelled(ZeroDivisionError()))

    with pytest.raises(ExceptionGroup) as raised:
        await cancel()
    assert raised.group_contains(ZeroDivisionError)


async def test_one_that_its_own_block_cancels_ends_in_peace(autojump_clock: MockClock) -> None:
    async with open_plain_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.cancel_scope.cancel()
