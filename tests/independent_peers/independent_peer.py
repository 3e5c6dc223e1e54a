"""A peer built from docs/peer-protocol.md alone, in a process of its own: it imports nothing of psyche.

Reads one line of JSON with what a backend would have told it, then talks to one node, and prints what it saw as a line
of JSON. It serves until its standard input ends.
"""

import json
import os
import struct
import sys
import time
from typing import Any

import trio
from independent_messages import Failed, build_record, check_record, demand, read, sign
from independent_network import BLOB, Mates, Question, get_peer_id, make_host, pack, read_exactly, unpack
from independent_trainer import MIB, hash3
from libp2p.custom_types import TProtocol
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr


class OwnPeer:
    """One peer, connected to one node."""

    def __init__(self, told: dict[str, Any], host: Any) -> None:
        self.told, self.host = told, host
        self.seed, self.node = bytes.fromhex(told["seed"]), bytes.fromhex(told["node"])
        self.mates = Mates(host, self.seed, self.answer)
        self.mates.allowed, self.mates.plan_hash = {self.node}, bytes.fromhex(told["plan_hash"])
        self.mates.offer(told["own_blob"].encode() * told["own_blob_times"])
        self.seen: dict[str, Any] = {"mesh": [], "questions": [], "failures": self.mates.failures}

    def build_leave(self, round_: tuple[int, int], member: int) -> bytes:
        return sign(self.seed, "leave", self.mates.run_uid, round_, member, b"").raw

    def read_leave(self, message: bytes) -> list[int]:
        """Epoch, height and member of a Leave that the node signed."""
        said = read(message, self.mates.run_uid)
        demand(said is not None and said.kind == "leave" and said.is_signed_by(self.node), "not a Leave of the node")
        return [said.epoch, said.height, said.member]  # pyright: ignore[reportOptionalMemberAccess]

    def answer(self, question: Question) -> list[bytes]:
        kind, epoch, height, have, key = question
        if kind == "addresses":
            other = build_record(bytes.fromhex(self.told["other_seed"]), ["/ip4/127.0.0.1/tcp/9"])
            return [pack(one) for one in sorted([self.mates.build_record(), other])]
        members = [member for member in range(256) if int.from_bytes(have, "little") >> member & 1]
        self.seen["questions"].append([kind, epoch, height, members, key.hex()])
        return [self.build_leave((epoch, height), 1)]

    async def meet(self) -> None:
        """Be refused in another run, then welcome; the node may still be closing the connection that it refused."""
        await self.mates.dial(self.node, self.told["address"])
        await self.host.disconnect(get_peer_id(self.node))
        self.mates.run_uid = bytes.fromhex(self.told["run_uid"])
        with trio.fail_after(120):
            while self.node not in self.mates.connected:
                await trio.sleep(0.1)
                try:
                    await self.mates.dial(self.node, self.told["address"])
                except Failed:
                    raise
                except Exception:  # noqa: BLE001
                    continue

    async def ask_questions(self) -> None:
        have, nothing = (0b100001).to_bytes(32, "little"), bytes(32)
        items = await self.mates.ask(self.node, ("announcements", 3, 258, have, b""))
        self.seen["announcements"] = [self.read_leave(one) for one in items or ()]
        records = await self.mates.ask(self.node, ("addresses", 0, 0, nothing, nothing))
        self.seen["records"] = [check_record(unpack(one)).hex() for one in records or ()]
        self.seen["nothing"] = await self.mates.ask(self.node, ("manifest", 0, 0, nothing, nothing))

    async def ask_for_blobs(self) -> None:
        """The node's blob; then its list, a range outside and an unknown blob, in one go."""
        blob_id, size = bytes.fromhex(self.told["blob_id"]), self.told["blob_size"]
        self.seen["fetched"] = hash3(await self.mates.fetch(self.node, blob_id, size) or b"").hex()
        stream, count = await self.mates.open(self.node, BLOB), -(-size // MIB)
        for kind, wanted, first, number in ((b"M", blob_id, 0, 0), (b"R", blob_id, count, 1), (b"M", bytes(32), 0, 0)):
            await stream.write(struct.pack("<c32sII", kind, wanted, first, number))
        status, length = struct.unpack("<BQ", await read_exactly(stream, 9))
        demand((status, length) == (0, 8 + 32 * count), "the chunk list has another length")
        body = await read_exactly(stream, length)
        listed = hash3(b"psyche/blob/1", body[:8], struct.pack("<I", MIB), body[8:])
        demand(body[:8] == struct.pack("<Q", size) and listed == blob_id, "the list does not give the id")
        heads = [struct.unpack("<BQ", await read_exactly(stream, 9)) for _ in range(2)]
        demand(heads == [(2, 0), (1, 0)], f"a range outside and an unknown blob: {heads}")

    async def read_mesh(self, subscription: Any) -> None:
        async for message in subscription:
            if message.from_id == get_peer_id(self.node).to_bytes():
                self.seen["mesh"].append(self.read_leave(message.data))

    async def announce(self, pubsub: Any, topic: str) -> None:
        """Say something new over both ways; the mesh needs a moment to form."""
        for height in range(1 << 32):
            await self.mates.say(self.build_leave((3, height), 1))
            await pubsub.publish(topic, self.build_leave((3, height), 2))
            await trio.sleep(0.2)

    async def take_part(self, pubsub: Any, nursery: trio.Nursery) -> None:
        await self.meet()
        topic = f"psyche/{self.mates.run_uid.hex()}"
        nursery.start_soon(self.read_mesh, await pubsub.subscribe(topic))
        nursery.start_soon(self.announce, pubsub, topic)
        await self.ask_questions()
        await self.ask_for_blobs()
        with trio.move_on_after(30):
            while not (self.mates.heard and self.seen["mesh"] and self.mates.answered):
                await trio.sleep(0.05)
        self.seen |= {"direct": [*map(self.read_leave, self.mates.heard)], "answered": self.mates.answered}
        self.seen["refusal"] = self.mates.refusals[0]


async def main() -> None:
    told = json.loads(sys.stdin.readline())
    host = make_host(bytes.fromhex(told["seed"]))
    meshsub = [TProtocol("/meshsub/1.1.0"), TProtocol("/meshsub/1.0.0")]
    router = GossipSub(
        meshsub, 6, 4, 12, heartbeat_interval=1, heartbeat_initial_delay=0.1,
        gossip_window=3, gossip_history=6, prune_back_off=10, unsubscribe_back_off=5,
    )  # fmt: skip
    pubsub = Pubsub(host, router, strict_signing=True, seen_ttl=120)
    pubsub.counter = time.time_ns()
    own = OwnPeer(told, host)
    async with (
        host.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]),
        background_trio_service(pubsub),
        background_trio_service(router),
        trio.open_nursery() as nursery,
    ):
        await pubsub.wait_until_ready()
        own.mates.listen()
        await own.take_part(pubsub, nursery)
        own.seen["psyche"] = sorted(name for name in sys.modules if name.partition(".")[0] == "psyche")
        print(json.dumps(own.seen), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        os._exit(0)


if __name__ == "__main__":
    trio.run(main)
