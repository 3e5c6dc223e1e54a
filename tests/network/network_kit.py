"""Helpers of the network tests: fixed keys, introductions."""

import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from psyche.network.base import BaseNode
from psyche.network.memory.line import LinkConditions
from psyche.network.memory.links import Links
from psyche.network.node import P2PNode, open_node
from psyche.testing.builders import build_identity
from psyche.wire.address_record import AddressRecord

RUN = b"\x07" * 32
PLAN = b"\x09" * 32

VICTIM, PROBE, MEMBER = 100, 101, 102
VICTIM_S = 300.0  # of one wait for the process of the victim, which may get no processor for long

OpenNode = Callable[..., AbstractAsyncContextManager[BaseNode]]
OpenGroup = Callable[..., AbstractAsyncContextManager[list[Any]]]


def introduce(nodes: Sequence[BaseNode], plans: Sequence[bytes] | None = None) -> None:
    keys = frozenset(n.key for n in nodes)
    records = [n.address_record() for n in nodes]
    for index, node in enumerate(nodes):
        node.set_plan(RUN, plans[index] if plans else PLAN)
        node.set_allowed(keys)
        node.set_addresses(records)


async def meet(*nodes: BaseNode) -> None:
    """Introduce the nodes and wait until all are connected."""
    introduce(nodes)
    await until_met(*nodes)


async def until_met(*nodes: BaseNode, seconds: float = 120.0) -> None:
    keys = frozenset(n.key for n in nodes)
    with trio.fail_after(seconds):
        for node in nodes:
            await node.wait_for_peers(keys - {node.key})


async def fetch_file(
    node: BaseNode, blob: bytes, sources: Sequence[BaseNode], folder: Path, size: int, *, seconds: float = 120.0,
    progress: Callable[[int], None] | None = None,
) -> Path:  # fmt: skip
    """Fetch one blob to a file of the folder."""
    keys, deadline = [one.key for one in sources], trio.current_time() + seconds
    return (await node.fetch_many([(blob, size)], keys, folder, deadline=deadline, progress=progress))[blob]


@dataclass(frozen=True)
class Victim:
    """A node in a process of its own (`p2p_child.py`) that knows PROBE and MEMBER."""

    process: subprocess.Popen[str]
    record: AddressRecord
    blob: bytes
    stderr: Path

    @property
    def port(self) -> int:
        return int(self.record.addresses[0].rsplit("/", 1)[1])


@asynccontextmanager
async def open_peer(number: int, victim: Victim, folder: Path, **settings: Any) -> AsyncIterator[P2PNode]:
    async with open_node(build_identity(number), "127.0.0.1", 0, folder, **settings) as node:
        node.set_plan(RUN, PLAN)
        node.set_allowed(frozenset({victim.record.p2p}))
        node.set_addresses([victim.record])
        with trio.fail_after(VICTIM_S):
            await node.wait_for_peers(frozenset({victim.record.p2p}))
        yield node


def set_link(links: Links, first: bytes, second: bytes, conditions: LinkConditions) -> None:
    """In both directions."""
    links.set_uplink(first, second, conditions)
    links.set_uplink(second, first, conditions)
