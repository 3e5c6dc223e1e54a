"""A round's payloads between all members: as fast as their lines allow, whoever announces first."""

import random
from contextlib import AsyncExitStack
from pathlib import Path

import trio
from network_kit import get_identity, meet
from trio.testing import MockClock

from psyche.network.limits import NetworkLimits
from psyche.network.memory import LinkConditions, MemoryHub, MemoryNode

MEMBERS = 16
BODY = 100
WEIGHT = 10_000.0  # each byte stands for so many: payloads of a megabyte
LINE_BYTES_S = 1e6
LIMITS = NetworkLimits(min_progress_s=120.0, write_s=120.0)  # what a small body stands for comes in one part


async def test_members_that_fetch_all_payloads_keep_every_line_busy(tmp_path: Path, autojump_clock: MockClock) -> None:
    hub = MemoryHub(random.Random(1), LinkConditions(latency_s=0.05), weigh_blobs=lambda size: WEIGHT * size)
    ended: list[float] = []
    async with AsyncExitStack() as stack:
        nodes: list[MemoryNode] = []
        for number in range(MEMBERS):
            node = hub.open_node(get_identity(number + 1), tmp_path / str(number), limits=LIMITS)
            nodes.append(await stack.enter_async_context(node))
            hub.links.set_access(nodes[-1].key, LINE_BYTES_S, LINE_BYTES_S)
        await meet(*nodes)
        started = trio.current_time()

        async def fetch(node: MemoryNode, owner: MemoryNode, blob_id: bytes) -> None:
            await node.fetch(blob_id, [owner.key], size_bytes=BODY, deadline=started + 600)
            ended.append(trio.current_time() - started)

        async with trio.open_nursery() as nursery:
            for number, owner in enumerate(nodes):  # everybody hears of the same payloads first
                blob_id = await owner.provide(bytes([number]) * BODY, expires=None)
                for node in nodes:
                    if node is not owner:
                        nursery.start_soon(fetch, node, owner, blob_id)
                await trio.sleep(0.1)
    on_the_line_s = (MEMBERS - 1) * BODY * WEIGHT / LINE_BYTES_S
    assert len(ended) == MEMBERS * (MEMBERS - 1)
    assert max(ended) < 1.45 * on_the_line_s + 0.1 * MEMBERS, "with half as many at a time it is twice the line's time"
