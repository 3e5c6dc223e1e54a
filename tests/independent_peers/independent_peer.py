"""A peer built from docs/peer-protocol.md alone, in a process of its own: it imports nothing of psyche.

Reads one line of JSON with what a backend would have told it, then talks to one node, and prints what it saw as a line
of JSON. It serves until its standard input ends.
"""

import json
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_x25519
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

HELLO, GOSSIP, SYNC, BLOB = (f"/psyche/{name}/1" for name in ("hello", "gossip", "sync", "blob"))
MIB = 1 << 20
NO_PLAN = bytes(32)
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


class Failed(Exception):
    """The other side does not do what the page says."""


class Ended(Exception):
    """The other side ended the stream."""


def demand(is_so: bool, what: str) -> None:
    if not is_so:
        raise Failed(what)


# --- streams --------------------------------------------------------------------------------------------


async def read_exactly(stream: Any, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = await stream.read(size - len(found))
        if not part:
            raise Ended
        found += part
    return found


async def read_frame(stream: Any, most: int) -> bytes:
    (size,) = struct.unpack("<I", await read_exactly(stream, 4))
    demand(size <= most, f"a frame of {size} bytes, at most {most}")
    return await read_exactly(stream, size)


async def write_frame(stream: Any, body: bytes) -> None:
    await stream.write(struct.pack("<I", len(body)) + body)


# --- keys, records and messages -------------------------------------------------------------------------


def is_signed(key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def get_record_bytes(key: bytes, addresses: list[str], expires_unix: int) -> bytes:
    body = b"".join(bytes([len(one)]) + one.encode("ascii") for one in addresses)
    return b"psyche/address/1" + key + struct.pack("<QB", expires_unix, len(addresses)) + body


def build_record(seed: bytes, addresses: list[str]) -> list[Any]:
    secret = Ed25519PrivateKey.from_private_bytes(seed)
    key, expires_unix = secret.public_key().public_bytes_raw(), int(time.time()) + 24 * 3_600
    return [key, addresses, expires_unix, secret.sign(get_record_bytes(key, addresses, expires_unix))]


def check_record(record: list[Any]) -> bytes:
    key, addresses, expires_unix, signature = record
    demand(is_signed(key, get_record_bytes(key, addresses, expires_unix), signature), "a record is not signed")
    return key


def build_leave(seed: bytes, run_uid: bytes, epoch: int, height: int, member: int) -> bytes:
    signed = b"psyche/leave/1" + run_uid + struct.pack("<HIH", epoch, height, member)
    return signed + Ed25519PrivateKey.from_private_bytes(seed).sign(signed)


def read_leave(message: bytes, key: bytes, run_uid: bytes) -> list[int]:
    """Epoch, height and member of a Leave that `key` signed."""
    demand(len(message) == 118 and message.startswith(b"psyche/leave/1" + run_uid), "not a Leave of this run")
    demand(is_signed(key, message[:-64], message[-64:]), "a Leave is not signed by its origin")
    return list(struct.unpack("<HIH", message[46:54]))


def get_blob_id(size: int, hashes: bytes) -> bytes:
    return blake3(b"psyche/blob/1" + struct.pack("<QI", size, MIB) + hashes).digest()


def hash_chunks(data: bytes) -> bytes:
    return b"".join(blake3(data[i : i + MIB]).digest() for i in range(0, len(data), MIB))


# --- the peer -------------------------------------------------------------------------------------------


class OwnPeer:
    """One peer, connected to one node."""

    def __init__(self, told: dict[str, Any], host: Any) -> None:
        self.host = host
        self.seed, self.other_seed = bytes.fromhex(told["seed"]), bytes.fromhex(told["other_seed"])
        self.run_uid, self.plan_hash = bytes.fromhex(told["run_uid"]), bytes.fromhex(told["plan_hash"])
        self.node = bytes.fromhex(told["node"])
        self.node_id = ID(b"\x00\x24\x08\x01\x12\x20" + self.node)
        self.address = told["address"]
        self.blob_id, self.blob_size = bytes.fromhex(told["blob_id"]), told["blob_size"]
        self.own_blob = told["own_blob"].encode() * told["own_blob_times"]
        self.seen: dict[str, Any] = {"direct": [], "mesh": [], "questions": [], "hellos_answered": 0, "failures": []}

    def build_hello(self, run_uid: bytes) -> list[Any]:
        addresses = [str(one).partition("/p2p/")[0] for one in self.host.get_addrs()]
        record = build_record(self.seed, addresses)
        return [1, run_uid, self.plan_hash, ["blob/1", "gossip/1", "sync/1"], record]

    def judge(self, theirs: list[Any]) -> str:
        version, run_uid, plan_hash, _, record = theirs
        demand(check_record(record) == self.node, "the hello has another key's record")
        if version != 1 or run_uid != self.run_uid:
            return "another run"
        return "" if plan_hash in (NO_PLAN, self.plan_hash) else "another plan"

    async def open(self, protocol: str) -> Any:
        return await self.host.new_stream(self.node_id, [protocol])

    async def say_hello(self, run_uid: bytes) -> str:
        """Dial the node and introduce ourselves; the reason of a refusal, or an empty text."""
        await self.host.connect(PeerInfo(self.node_id, [Multiaddr(self.address)]))
        stream = await self.open(HELLO)
        await write_frame(stream, pack(self.build_hello(run_uid)))
        reason, theirs = unpack(await read_frame(stream, 8_192))
        if reason:
            return reason
        reason = self.judge(theirs)
        await write_frame(stream, pack([reason]))
        return reason

    async def answer_hello(self, stream: Any) -> None:
        reason = self.judge(unpack(await read_frame(stream, 8_192)))
        await write_frame(stream, pack([reason, self.build_hello(self.run_uid)]))
        if not reason:
            (verdict,) = unpack(await read_frame(stream, 8_192))
            demand(not verdict, f"the node says no to an answer: {verdict}")
            self.seen["hellos_answered"] += 1

    async def read_announcements(self, stream: Any) -> None:
        while True:
            message = await read_frame(stream, 4_096)
            self.seen["direct"].append(read_leave(message, self.node, self.run_uid))

    async def read_mesh(self, subscription: Any) -> None:
        async for message in subscription:
            if message.from_id == self.node_id.to_bytes():
                self.seen["mesh"].append(read_leave(message.data, self.node, self.run_uid))

    async def ask(self, stream: Any, *question: Any) -> tuple[bool, list[bytes]]:
        await write_frame(stream, pack(question))
        found, items = unpack(await read_frame(stream, 4_227_136))
        return found, items

    async def ask_questions(self) -> None:
        stream = await self.open(SYNC)
        have = (0b100001).to_bytes(32, "little")
        found, items = await self.ask(stream, "announcements", 3, 258, have, b"")
        self.seen["announcements"] = [found, [read_leave(one, self.node, self.run_uid) for one in items]]
        found, items = await self.ask(stream, "addresses", 0, 0, bytes(32), bytes(32))
        self.seen["records"] = [check_record(unpack(one)).hex() for one in items]
        self.seen["nothing"] = await self.ask(stream, "manifest", 0, 0, bytes(32), bytes(32))

    async def answer_questions(self, stream: Any) -> None:
        while True:
            kind, epoch, height, have, key = unpack(await read_frame(stream, 1_024))
            if kind == "addresses":
                records = [self.build_hello(self.run_uid)[4], build_record(self.other_seed, ["/ip4/127.0.0.1/tcp/9"])]
                await write_frame(stream, pack([True, [pack(one) for one in sorted(records)]]))
            else:
                members = [member for member in range(256) if int.from_bytes(have, "little") >> member & 1]
                self.seen["questions"].append([kind, epoch, height, members, key.hex()])
                await write_frame(stream, pack([True, [build_leave(self.seed, self.run_uid, epoch, height, 1)]]))

    async def fetch(self) -> bytes:
        """Fetch the node's blob: the list, then all chunks with one request, sent without waiting."""
        stream, count = await self.open(BLOB), -(-self.blob_size // MIB)
        await stream.write(struct.pack("<c32sII", b"M", self.blob_id, 0, 0))
        await stream.write(struct.pack("<c32sII", b"R", self.blob_id, 0, count))
        await stream.write(struct.pack("<c32sII", b"R", self.blob_id, count, 1))
        await stream.write(struct.pack("<c32sII", b"M", bytes(32), 0, 0))
        status, length = struct.unpack("<BQ", await read_exactly(stream, 9))
        demand((status, length) == (0, 8 + 32 * count), "the chunk list has another length")
        body = await read_exactly(stream, length)
        (size,), hashes = struct.unpack("<Q", body[:8]), body[8:]
        demand(size == self.blob_size and get_blob_id(size, hashes) == self.blob_id, "the list does not give the id")
        status, length = struct.unpack("<BQ", await read_exactly(stream, 9))
        demand((status, length) == (0, self.blob_size), "the range has another length")
        data = await read_exactly(stream, length)
        demand(hash_chunks(data) == hashes, "a chunk is wrong")
        heads = [struct.unpack("<BQ", await read_exactly(stream, 9)) for _ in range(2)]
        demand(heads == [(2, 0), (1, 0)], f"a range outside and an unknown blob: {heads}")
        return data

    async def serve_blob(self, stream: Any) -> None:
        hashes = hash_chunks(self.own_blob)
        own_id = get_blob_id(len(self.own_blob), hashes)
        while True:
            kind, blob_id, first, count = struct.unpack("<c32sII", await read_exactly(stream, 41))
            body = struct.pack("<Q", len(self.own_blob)) + hashes
            if kind == b"R":
                body = self.own_blob[first * MIB : (first + count) * MIB]
            status = 0 if blob_id == own_id else 1
            await stream.write(struct.pack("<BQ", status, len(body)) + body if not status else struct.pack("<BQ", 1, 0))

    def guard(self, serve: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """A stream's end is no failure; anything else that the page does not say is one."""

        async def handle(stream: Any) -> None:
            try:
                await serve(stream)
            except (Failed, TypeError, ValueError, struct.error) as error:
                self.seen["failures"].append(repr(error))
            except Exception:  # noqa: BLE001 - libp2p has many ways to say that a stream ended
                pass

        return handle

    def listen(self) -> None:
        self.host.set_stream_handler(HELLO, self.guard(self.answer_hello))
        self.host.set_stream_handler(GOSSIP, self.guard(self.read_announcements))
        self.host.set_stream_handler(SYNC, self.guard(self.answer_questions))
        self.host.set_stream_handler(BLOB, self.guard(self.serve_blob))


async def announce(own: OwnPeer, pubsub: Any, topic: str) -> None:
    """Say something new over both ways until the node has heard both; the mesh needs a moment to form."""
    stream = await own.open(GOSSIP)
    for height in range(1 << 32):
        await write_frame(stream, build_leave(own.seed, own.run_uid, 3, height, 1))
        await pubsub.publish(topic, build_leave(own.seed, own.run_uid, 3, height, 2))
        await trio.sleep(0.2)


async def meet(own: OwnPeer, pubsub: Any, nursery: trio.Nursery) -> None:
    own.seen["refusal"] = await own.say_hello(bytes(32))
    await own.host.disconnect(own.node_id)
    with trio.move_on_after(20):
        while reason := await say_hello_again(own):
            own.seen["failures"].append(reason)
            await trio.sleep(1.0)
    topic = f"psyche/{own.run_uid.hex()}"
    nursery.start_soon(own.read_mesh, await pubsub.subscribe(topic))
    nursery.start_soon(announce, own, pubsub, topic)
    await own.ask_questions()
    own.seen["fetched"] = blake3(await own.fetch()).hexdigest()
    with trio.move_on_after(30):
        while not (own.seen["direct"] and own.seen["mesh"] and own.seen["hellos_answered"]):
            await trio.sleep(0.05)


async def say_hello_again(own: OwnPeer) -> str:
    """The node may still be closing the connection that it refused."""
    for _ in range(50):
        try:
            return await own.say_hello(own.run_uid)
        except Failed:
            raise
        except Exception:  # noqa: BLE001
            await trio.sleep(0.1)
    return "cannot connect again"


async def main() -> None:
    told = json.loads(sys.stdin.readline())
    pair = create_new_key_pair(bytes.fromhex(told["seed"]))
    listen = Multiaddr("/ip4/127.0.0.1/tcp/0")
    security = {TProtocol("/noise"): Noise(pair, noise_privkey=create_x25519().private_key)}
    host: Any = new_host(key_pair=pair, sec_opt=security, muxer_opt={TProtocol("/yamux/1.0.0"): Yamux})
    meshsub = [TProtocol("/meshsub/1.1.0"), TProtocol("/meshsub/1.0.0")]
    router = GossipSub(
        meshsub, 6, 4, 12, heartbeat_interval=1, heartbeat_initial_delay=0.1,
        gossip_window=3, gossip_history=6, prune_back_off=10, unsubscribe_back_off=5,
    )  # fmt: skip
    pubsub = Pubsub(host, router, strict_signing=True, seen_ttl=120)
    pubsub.counter = time.time_ns()
    own = OwnPeer(told, host)
    async with (
        host.run(listen_addrs=[listen]),
        background_trio_service(pubsub),
        background_trio_service(router),
        trio.open_nursery() as nursery,
    ):
        await pubsub.wait_until_ready()
        own.listen()
        await meet(own, pubsub, nursery)
        own.seen["psyche"] = sorted(name for name in sys.modules if name.partition(".")[0] == "psyche")
        print(json.dumps(own.seen), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        os._exit(0)


if __name__ == "__main__":
    trio.run(main)
