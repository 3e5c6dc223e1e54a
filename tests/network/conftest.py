"""The same tests over both transports: libp2p on loopback, and simulated links."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from network_kit import OpenGroup, OpenNode, get_identity, meet

from psyche.network.base import BaseNode
from psyche.network.limits import NetworkLimits
from psyche.network.memory import MemoryHub


@pytest.fixture(params=["memory", "libp2p"])
def open_any(request: pytest.FixtureRequest, tmp_path: Path) -> OpenNode:
    """Opens node number n of one transport."""
    hub = MemoryHub(random.Random(1))

    @asynccontextmanager
    async def opening(number: int, limits: NetworkLimits | None = None) -> AsyncIterator[BaseNode]:
        folder = tmp_path / f"node{number}"
        if request.param == "memory":
            async with hub.open_node(get_identity(number), folder, limits=limits) as node:
                yield node
        else:
            from psyche.network.node import open_node

            async with open_node(get_identity(number), "127.0.0.1", 0, folder, limits=limits) as node:
                yield node

    return opening


@pytest.fixture
def open_group(open_any: OpenNode) -> OpenGroup:
    """Opens and connects so many nodes."""

    @asynccontextmanager
    async def opening(count: int, limits: NetworkLimits | None = None) -> AsyncIterator[list[BaseNode]]:
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(open_any(n + 1, limits)) for n in range(count)]
            await meet(*nodes)
            yield nodes

    return opening
