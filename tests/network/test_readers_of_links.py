"""Who reads from a simulated line wakes when something has arrived: once for each message, and not before."""

import random

import pytest
import trio
from trio.testing import MockClock

from psyche.network.memory.line import LinkConditions
from psyche.network.memory.links import Links
from psyche.network.streams import StreamError

FAR = LinkConditions(latency_s=0.25)


class Steps(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count: dict[str, int] = {}

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count[task.name] = self.count.get(task.name, 0) + 1


async def test_a_reader_takes_one_step_for_each_message(autojump_clock: MockClock) -> None:
    near, far = Links(random.Random(1), FAR).open_pair(b"a", b"b")
    steps, came = Steps(), list[tuple[float, bytes]]()

    async def read() -> None:
        for _ in range(5):
            length = await far.read_some(2)
            came.append((trio.current_time(), length + await far.read_some(100)))

    trio.lowlevel.add_instrument(steps)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, name="reader")
        for number in range(5):
            await near.write(b"%02d and more" % number)
            await trio.sleep(1.0)
    trio.lowlevel.remove_instrument(steps)
    assert came == [(number + 0.25, b"%02d and more" % number) for number in range(5)]
    assert steps.count["reader"] == 1 + 5


@pytest.mark.parametrize("ends", ["close", "reset"])
async def test_a_reader_that_waits_hears_of_the_end(ends: str, autojump_clock: MockClock) -> None:
    near, far = Links(random.Random(1), FAR).open_pair(b"a", b"b")

    async def end() -> None:
        await trio.sleep(1.0)
        await (near.close() if ends == "close" else near.reset())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        with pytest.raises(StreamError):
            await far.read_some(1)
        assert trio.current_time() == 1.0
