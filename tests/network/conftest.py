"""The same tests over both transports: libp2p on loopback, and simulated links."""

import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from network_kit import MEMBER, PROBE, VICTIM, OpenGroup, OpenNode, Victim, meet

from psyche.network.base import BaseNode
from psyche.network.limits import NetworkLimits
from psyche.network.memory.node import MemoryHub
from psyche.testing.builders import build_identity
from psyche.wire.address_record import sign_address_record


@pytest.fixture(params=["memory", "libp2p"])
def open_any(request: pytest.FixtureRequest, tmp_path: Path) -> OpenNode:
    hub = MemoryHub(random.Random(1))

    @asynccontextmanager
    async def opening(number: int, limits: NetworkLimits | None = None) -> AsyncIterator[BaseNode]:
        folder = tmp_path / f"node{number}"
        if request.param == "memory":
            async with hub.open_node(build_identity(number), folder, limits=limits) as node:
                yield node
        else:
            from psyche.network.node import open_node

            async with open_node(build_identity(number), "127.0.0.1", 0, folder, limits=limits) as node:
                yield node

    return opening


@pytest.fixture
def open_group(open_any: OpenNode) -> OpenGroup:

    @asynccontextmanager
    async def opening(count: int, limits: NetworkLimits | None = None) -> AsyncIterator[list[BaseNode]]:
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(open_any(n + 1, limits)) for n in range(count)]
            await meet(*nodes)
            yield nodes

    return opening


@pytest.fixture(scope="session")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """One libp2p node in a process of its own for all tests that attack or stop it."""
    command = [sys.executable, str(Path(__file__).with_name("p2p_child.py")), str(VICTIM), str(PROBE), str(MEMBER)]
    errors = tmp_path_factory.mktemp("victim") / "stderr"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            record = sign_address_record(build_identity(VICTIM), [ready["address"]], 1 << 40)
            yield Victim(process, record, bytes.fromhex(ready["blob"]), errors)
        finally:
            process.kill()
