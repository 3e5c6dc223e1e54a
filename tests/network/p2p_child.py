"""A libp2p node in a process of its own, driven by the tests; ends when its standard input does.

python p2p_child.py NUMBER ALLOWED... : prints its address, echoes gossip, answers questions.
"""

import json
import logging
import os
import resource
import sys
import tempfile
from pathlib import Path

import trio
from network_kit import PLAN, RUN

from psyche.network.limits import NetworkLimits
from psyche.network.node import P2PNode, open_node
from psyche.testing.builders import build_identity
from psyche.wire.ports import SyncReply, SyncRequest

LIMITS = NetworkLimits(
    hello_s=2.0,
    unread_per_connection_bytes=8 << 20,
    cut_rest_s=0.0,
    streams_per_connection=64,
    pending_per_ip=64,
    health_check_s=60,
)
BLOB = bytes(range(256)) * 4 * 1_024 * 16  # 16 MiB


async def answer(key: bytes, request: SyncRequest) -> SyncReply:
    if request.height == 13:
        raise ValueError("application bug")
    if request.height == 14:
        await trio.sleep_forever()
    if request.height == 15:
        return SyncReply(found=True, items=(get_memory().to_bytes(8, "little"),))
    return SyncReply(found=True, items=(key,))


def get_memory() -> int:
    """The most this process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


async def end_with_input() -> None:
    await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    os._exit(0)


async def echo(node: P2PNode) -> None:
    async for _, message in node.messages():
        await node.publish(b"echo " + message)


def break_validator(node: P2PNode) -> None:
    inner = node._inbox.is_acceptable

    def validate(origin: bytes, message: bytes) -> bool:
        if message == b"validator bug":
            raise KeyError("validator bug")
        return inner(origin, message)

    node._inbox.is_acceptable = validate  # type: ignore[method-assign]


def mute_our_own_log() -> None:
    """Whatever still comes to stderr is said by libp2p."""
    ours = logging.getLogger("psyche")
    ours.addHandler(logging.NullHandler())
    ours.propagate = False


async def main(number: int, allowed: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_node(build_identity(number), "127.0.0.1", 0, Path(folder), limits=LIMITS) as node:
            node.set_plan(RUN, PLAN)
            node.set_allowed(frozenset(build_identity(a).public for a in allowed))
            node.set_sync_handler(answer)
            break_validator(node)
            blob = await node.provide(BLOB, expires=None)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end_with_input)
                nursery.start_soon(echo, node)
                ready = {"address": node.address_record().addresses[0], "blob": blob.hex()}
                print(json.dumps(ready), flush=True)


if __name__ == "__main__":
    mute_our_own_log()
    trio.run(main, int(sys.argv[1]), [int(a) for a in sys.argv[2:]])
