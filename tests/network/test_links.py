"""The lines under the in-memory node: order, overtaking, copies, stalls, and writers that run ahead."""

import random

import pytest
import trio
from trio.testing import MockClock

from psyche.network.memory.line import SEND_BUFFER_BYTES, LinkConditions
from psyche.network.memory.links import Links
from psyche.network.streams import StreamError, read_exactly

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def build_links(**conditions: float) -> Links:
    return Links(random.Random(3), LinkConditions(**conditions))


async def send_packets(links: Links, count: int) -> list[int]:
    found: list[int] = []
    lane = links.open_lane(A, B, 16, lambda packet: found.append(packet[0]))
    for number in range(count):
        lane.send(bytes([number]))
        await trio.sleep(0.01)
    await trio.sleep(60)
    return found


async def send_in_order(links: Links, count: int) -> list[int]:
    near, far = links.open_pair(A, B)
    for number in range(count):
        await near.write(bytes([number]))
        await trio.sleep(0.01)
    found: list[int] = []
    with trio.move_on_after(60):
        while True:
            found += await far.read_some(1)
    return found


async def test_streams_keep_their_order_whatever_the_line_does(autojump_clock: MockClock) -> None:
    assert await send_in_order(build_links(jitter_s=0.2, loss=0.3, duplicate=0.5), 50) == list(range(50))


@pytest.mark.parametrize(
    ("conditions", "least", "most", "in_order"),
    [({"jitter_s": 0.2}, 50, 50, False), ({"duplicate": 0.5}, 60, 90, False), ({"loss": 0.5}, 20, 35, True)],
    ids=["overtake each other", "come twice", "are lost"],
)
async def test_announcements_are_packets_of_their_own(
    autojump_clock: MockClock, conditions: dict[str, float], least: int, most: int, in_order: bool
) -> None:
    found = await send_packets(build_links(**conditions), 50)
    assert least <= len(found) <= most
    assert set(found) <= set(range(50))
    assert (len(set(found)) == 50) == (not in_order)
    assert (found == sorted(found)) == (in_order or "duplicate" in conditions)


async def test_packets_wait_for_a_slow_line_and_the_oldest_make_room(autojump_clock: MockClock) -> None:
    links = build_links(bandwidth_bytes_s=SEND_BUFFER_BYTES)
    came: list[tuple[float, int]] = []
    lane = links.open_lane(A, B, 3, lambda packet: came.append((trio.current_time(), packet[0])))
    for number in range(7):
        lane.send(bytes([number]) * SEND_BUFFER_BYTES)
    assert len(lane) == 3
    await trio.sleep(60)
    assert came == [(1.0, 0), (2.0, 1), (3.0, 4), (4.0, 5), (5.0, 6)]


async def test_a_stalled_line_keeps_packets_and_a_broken_one_loses_them(autojump_clock: MockClock) -> None:
    links = build_links(latency_s=0.1)
    came: list[bytes] = []
    lane, broken = links.open_lane(A, B, 16, came.append), links.open_lane(A, C, 16, came.append)
    links.stall([A], [B, C])
    for each in (lane, broken):
        each.send(b"late")
    await trio.sleep(30)
    assert came == []
    broken.is_broken = True
    links.heal()
    assert came == [b"late"]


async def test_a_stalled_line_delivers_what_was_sent_once_it_is_healed(autojump_clock: MockClock) -> None:
    links = build_links(latency_s=0.1)
    near, far = links.open_pair(A, B)
    links.stall([A], [B])
    links.stall([B], [A])  # once more is no more than once
    await near.write(b"late")
    with trio.move_on_after(30) as waiting:
        await far.read_some(4)
    assert waiting.cancelled_caught, "nothing came, and nothing broke"
    links.heal()
    assert await far.read_some(4) == b"late"


async def test_a_writer_is_ahead_of_the_line_by_a_buffer_and_no_more(autojump_clock: MockClock) -> None:
    near, _far = build_links(bandwidth_bytes_s=SEND_BUFFER_BYTES).open_pair(A, B)
    started = trio.current_time()
    await near.write(bytes(SEND_BUFFER_BYTES))
    assert trio.current_time() == started, "it fits into the buffer"
    await near.write(bytes(2 * SEND_BUFFER_BYTES))
    assert trio.current_time() - started == pytest.approx(2.0)


async def test_what_is_heavier_is_told_by_its_length_and_counted_apart(autojump_clock: MockClock) -> None:
    links = build_links()
    for key in (A, B):
        links.set_access(key, 1e6, 1e6)
    near, far = links.open_pair(A, B, answer_weigh=lambda size: 1e6 if size == 100 else 4e6)
    started = trio.current_time()
    for size in (100, 1_000):
        await far.write(bytes(size))
        assert await read_exactly(near, size) == bytes(size)
    assert trio.current_time() - started == pytest.approx(5)
    ways = [way for key in (B, A) if (way := links.get_access(key))]
    assert [ways[0][0].carried, ways[1][1].carried] == [{100: 1e6, 1_000: 4e6}] * 2


async def time_answers(links: Links, pairs: list[tuple[bytes, bytes]]) -> list[float]:
    ended = [0.0] * len(pairs)

    async def exchange(number: int) -> None:
        asker, server = pairs[number]
        near, far = links.open_pair(asker, server, answer_weigh=float)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.write, bytes(1_000_000))
            left = 1_000_000
            while left:
                left -= len(await near.read_some(left))
        ended[number] = trio.current_time() - started

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(len(pairs)):
            nursery.start_soon(exchange, number)
    return ended


def build_shared_links() -> Links:
    links = build_links()
    for key in (A, B, C):
        links.set_access(key, 1e6, 1e6)
    return links


@pytest.mark.parametrize(
    ("pairs", "seconds"),
    [([(A, C)], 1.0), ([(A, C), (B, C)], 2.0), ([(C, A), (C, B)], 2.0), ([(A, B), (B, C), (C, A)], 1.0)],
    ids=["alone", "two share the way out of one", "two share the way into one", "they share nothing"],
)
async def test_bulky_answers_share_the_lines_of_their_machines(
    autojump_clock: MockClock, pairs: list[tuple[bytes, bytes]], seconds: float
) -> None:
    ended = await time_answers(build_shared_links(), pairs)
    assert ended == [pytest.approx(seconds, rel=0.2)] * len(pairs), "none waits until another is done"
    assert max(ended) == pytest.approx(seconds, rel=0.01)


async def test_a_way_counts_what_passes_it(autojump_clock: MockClock) -> None:
    links = build_shared_links()
    await time_answers(links, [(A, C), (B, C)])
    ways = [links.get_access(key) for key in (A, B, C)]
    assert [(way[0].carried_bytes, way[1].carried_bytes) for way in ways if way] == [(0, 1e6), (0, 1e6), (2e6, 0)]


async def test_announcements_do_not_wait_behind_what_is_bulky(autojump_clock: MockClock) -> None:
    links = build_shared_links()
    async with trio.open_nursery() as nursery:
        came: list[bytes] = []
        lane = links.open_lane(A, B, 16, came.append)
        nursery.start_soon(time_answers, links, [(A, B), (B, A)])
        await trio.sleep(0.1)
        lane.send(b"small")
        await trio.sleep(1e-9)
        assert came == [b"small"]
        nursery.cancel_scope.cancel()


async def test_what_was_read_is_not_lost_when_the_reader_is_cancelled_between(autojump_clock: MockClock) -> None:
    near, far = build_links().open_pair(A, B)
    await near.write(b"whole")
    with trio.CancelScope() as scope:
        scope.cancel()
        await far.read_some(2)
    assert await far.read_some(5) == b"whole"


# --- who reads wakes when something has arrived: once for each message, and not before


class Steps(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count: dict[str, int] = {}

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count[task.name] = self.count.get(task.name, 0) + 1


async def test_a_reader_takes_one_step_for_each_message(autojump_clock: MockClock) -> None:
    near, far = build_links(latency_s=0.25).open_pair(A, B)
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
    near, far = build_links(latency_s=0.25).open_pair(A, B)

    async def end() -> None:
        await trio.sleep(1.0)
        await (near.close() if ends == "close" else near.reset())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        with pytest.raises(StreamError):
            await far.read_some(1)
        assert trio.current_time() == 1.0
