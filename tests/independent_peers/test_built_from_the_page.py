"""docs/peer-protocol.md is enough: a peer and a client that were built from it alone, without psyche, take part.

A peer in a process of its own meets a real node; a client talks to a real server and a real data server.
"""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from blake3 import blake3
from independent_client import fetch, follow, greet_wrongly
from kits.log import Log
from kits.packages import install_modules
from kits.server import OWNER, SERVER, RunFile

from psyche.core.encoding.account import decode_state
from psyche.core.state.gossip import Leave
from psyche.core.state.state import SlotState
from psyche.data.local import TokenRows
from psyche.data.server import DataServer
from psyche.network.limits import NetworkLimits
from psyche.network.node import P2PNode, open_node
from psyche.server.server import ServerSettings, run_server
from psyche.testing.builders import build_hash, build_identity
from psyche.wire.access import OPEN
from psyche.wire.crypto import blob_id_of
from psyche.wire.gossip import decode_gossip, encode_gossip, is_signed_by, sign_gossip
from psyche.wire.ports import SyncReply, SyncRequest

HERE = Path(__file__).parent
RUN, PLAN = build_hash("run"), build_hash("plan")
NODE, INDEPENDENT, ABSENT = (build_identity(name) for name in ("node", "independent", "absent"))
BLOB = bytes(range(256)) * 4_096 * 2 + b"two chunks and a bit"
OWN_BLOB, OWN_TIMES = "what the independent peer offers", 60_000
# An allowed key is missing at once: the node uses the mesh too, and asks for the key's address.
LIMITS = NetworkLimits(relay_after_s=0.0, wanted_after_s=0.0)


@pytest.mark.parametrize("path", sorted(HERE.glob("independent_*.py")), ids=lambda path: path.stem)
def test_what_was_built_from_the_pages_imports_nothing_of_psyche(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    roots = {one.partition(".")[0] for one in imported}
    assert roots
    assert roots - {one.stem for one in HERE.glob("independent_*.py")} <= sys.stdlib_module_names | {
        "msgspec", "trio", "blake3", "cryptography", "libp2p", "multiaddr", "numpy", "zstandard"
    }  # fmt: skip


async def answer(_peer: bytes, request: SyncRequest) -> SyncReply:
    if request.kind != "announcements":
        return SyncReply(found=False)
    assert (request.epoch, request.height, request.have) == (3, 258, 0b100001)
    return SyncReply(True, (build_leave(258),))


def build_leave(height: int) -> bytes:
    return encode_gossip(sign_gossip(NODE, RUN, 3, height, 7, Leave()))


async def publish(node: P2PNode) -> None:
    for height in range(1 << 32):
        await node.publish(build_leave(height))
        await trio.sleep(0.2)


async def hear_both_ways(node: P2PNode) -> None:
    """The independent peer sends as member 1 directly, as member 2 through the mesh."""
    heard: set[int] = set()
    async for origin, raw in node.messages():
        message = decode_gossip(raw)
        assert (origin, message.run_uid, message.epoch) == (INDEPENDENT.public, RUN, 3)
        assert is_signed_by(message, INDEPENDENT.public)
        heard.add(message.member)
        if heard == {1, 2}:
            return


async def learn_address(node: P2PNode) -> None:
    """The node finds the absent peer's address by asking the independent peer (N4)."""
    while ABSENT.public not in {record.p2p for record in node.peers.get_records(bytes(32))}:
        await trio.sleep(0.05)


async def talk(node: P2PNode, process: trio.Process, blob_id: bytes) -> dict[str, Any]:
    """Let both do all that peers do; returns what the independent peer saw."""
    told = {
        "node": NODE.public.hex(), "address": node.address_record().addresses[0], "seed": INDEPENDENT.seed.hex(),
        "other_seed": ABSENT.seed.hex(), "run_uid": RUN.hex(), "plan_hash": PLAN.hex(), "blob_id": blob_id.hex(),
        "blob_size": len(BLOB), "own_blob": OWN_BLOB, "own_blob_times": OWN_TIMES,
    }  # fmt: skip
    assert process.stdin is not None
    await process.stdin.send_all(json.dumps(told).encode() + b"\n")
    await node.wait_for_peers(frozenset({INDEPENDENT.public}))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, node)
        node.set_plan(RUN, PLAN)  # known only now: the node says hello once more
        question = SyncRequest("table", epoch=3, height=9, have=0b10, key=build_hash("root"))
        reply = await node.ask(INDEPENDENT.public, question, timeout_s=20)
        assert reply.found
        assert is_signed_by(decode_gossip(reply.items[0]), INDEPENDENT.public)
        own = OWN_BLOB.encode() * OWN_TIMES
        deadline = trio.current_time() + 30
        assert own == await node.fetch(blob_id_of(own), [INDEPENDENT.public], size_bytes=len(own), deadline=deadline)
        await learn_address(node)
        await hear_both_ways(node)
        seen = await read_line(process)
        nursery.cancel_scope.cancel()
    return json.loads(seen)


async def read_line(process: trio.Process) -> bytes:
    found = b""
    assert process.stdout is not None
    while not found.endswith(b"\n"):
        part = await process.stdout.receive_some()
        assert part, "the independent member's process ended"
        found += part
    return found


async def test_a_peer_built_from_the_page_takes_part(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "independent_peer.py")]
    async with open_node(NODE, "127.0.0.1", 0, tmp_path, limits=LIMITS) as node, trio.open_nursery() as nursery:
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            node.set_plan(RUN, bytes(32))
            node.set_allowed(frozenset({INDEPENDENT.public, ABSENT.public}))
            node.set_sync_handler(answer)
            with trio.fail_after(120):
                seen = await talk(node, process, await node.provide(BLOB, expires=None))
        finally:
            process.kill()
            await process.wait()
        nursery.cancel_scope.cancel()
    assert seen["failures"] == []
    assert seen["psyche"] == []
    assert seen["refusal"].startswith("another run")
    assert all(epoch == 3 and member == 7 for epoch, _, member in seen["direct"] + seen["mesh"])
    assert seen["direct"]
    assert seen["mesh"]
    assert seen["answered"] == 1
    assert seen["announcements"] == [[3, 258, 7]]
    assert set(seen["records"]) >= {NODE.public.hex(), INDEPENDENT.public.hex()}
    assert seen["nothing"] is None
    assert seen["questions"] == [["table", 3, 9, [1], build_hash("root").hex()]]
    assert seen["fetched"] == blake3(BLOB).hexdigest()


@pytest.fixture
def javascript_peer(tmp_path: Path) -> list[str]:
    """The command of a peer on js-libp2p, with its muxer as npm has it."""
    modules = install_modules(HERE / "javascript" / "package.json").with_name("node_modules")
    (tmp_path / "node_modules").symlink_to(modules)
    return ["node", str(shutil.copy(HERE / "javascript" / "peer.mjs", tmp_path))]


async def test_a_peer_on_js_libp2p_gives_and_takes_blobs_of_any_size(
    javascript_peer: list[str], tmp_path: Path
) -> None:
    """Its yamux fills a window with one frame, and the window grows with every blob that it gives."""
    sizes = [kib << 10 for kib in (100, 256, 300, 1_024, 4_096)]
    async with open_node(NODE, "127.0.0.1", 0, tmp_path / "node") as node:
        node.set_plan(RUN, PLAN)
        node.set_allowed(frozenset({INDEPENDENT.public}))
        process = await trio.lowlevel.open_process(javascript_peer, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        told = {
            "node": NODE.public.hex(), "address": node.address_record().addresses[0], "seed": INDEPENDENT.seed.hex(),
            "run_uid": RUN.hex(), "plan_hash": PLAN.hex(), "sizes": sizes,
            "blobs": [[(await node.provide(OWN_BLOB.encode()[:1] * size, expires=None)).hex(), size] for size in sizes],
        }  # fmt: skip
        try:
            with trio.fail_after(120):
                assert process.stdin is not None
                await process.stdin.send_all(json.dumps(told).encode() + b"\n")
                offered = json.loads(await read_line(process))["offered"]
                await node.wait_for_peers(frozenset({INDEPENDENT.public}))
                seen = json.loads(await read_line(process))
                for blob_id, size in zip(offered, sizes, strict=True):
                    deadline = trio.current_time() + 30
                    got = await node.fetch(
                        bytes.fromhex(blob_id), [INDEPENDENT.public], size_bytes=size, deadline=deadline
                    )
                    assert len(got) == size
        finally:
            process.kill()
            await process.wait()
        assert node.statistics().cuts == 0
        assert node.refusals() == {}
    assert seen == {"fetched": sizes, "muxers": ["/yamux/1.0.0"]}


async def test_a_client_built_from_the_page_follows_a_run(tmp_path: Path) -> None:
    settings = ServerSettings(
        run=RunFile(), identity=SERVER, state_dir=tmp_path / "state", port=0, sink=Log(), access=OPEN,
        owners=frozenset({OWNER.public}),
    )  # fmt: skip
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(run_server, settings)
            wrong = await trio.to_thread.run_sync(greet_wrongly, bound.port, SERVER.public, INDEPENDENT.seed)
            seen = await trio.to_thread.run_sync(follow, bound.port, SERVER.public, INDEPENDENT.seed, "test-run")
            nursery.cancel_scope.cancel()
    state = decode_state(seen["state"])
    assert wrong == ["reply", "WrongVersion", "goodbye"]
    assert seen["greeting"][2][:4] == ["greeting", 4, "test-run", state.run_uid]
    assert seen["status"][2][:3] == ["status", "test-run", state.run_uid]
    assert seen["too early"][0] == "BadRequest"
    assert [seen[name] for name in ("subscribed", "reported", "pinged", "announced")] == [["", False, None]] * 4
    assert seen["joined"] == seen["repeated"] == ["", False, None]
    assert [slot.p2p for slot in state.registry.slots if slot.state is SlotState.JOINED] == [INDEPENDENT.public]
    assert seen["deltas"] > 0
    assert seen["recorded"]
    (member,) = seen["members"][2][2]
    assert (member[0], member[3], member[4][:3]) == (
        INDEPENDENT.public,
        True,
        ["independent", "waiting", "for members"],
    )


async def test_a_client_built_from_the_page_gets_its_samples(tmp_path: Path) -> None:
    np.arange(100 * 4).astype("<u2").tofile(tmp_path / "tokens.bin")
    server = DataServer(TokenRows([tmp_path], 2, 4), SERVER)
    server.set_assignments(3, 5, {INDEPENDENT.public: (10, 19)})
    asked = ([3, 5, 10, 11], [3, 5, 20, 21])
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(server.serve, "127.0.0.1", 0)
            rows, refused = await trio.to_thread.run_sync(fetch, port, SERVER.public, INDEPENDENT.seed, *asked)
            nursery.cancel_scope.cancel()
    assert rows == [0, 10, 11, 4, 2, np.arange(40, 48).astype("<u2").tobytes()]
    assert (refused[0], refused[2]) == (1, False)
