"""A peer of many others, built from docs/peer-protocol.md alone: hello, announcements, questions, blobs."""

import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio
from independent_messages import Failed, build_record, check_record, demand
from independent_trainer import MIB, get_blob_id, hash_chunks
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_x25519
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

HELLO, GOSSIP, SYNC, BLOB = (f"/psyche/{name}/1" for name in ("hello", "gossip", "sync", "blob"))
NO_PLAN = bytes(32)
SAY_S, ASK_S = 2.0, 5.0
Question = tuple[str, int, int, bytes, bytes]
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


class Ended(Exception):
    """The other side ended the stream."""


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


def make_host(seed: bytes) -> Any:
    pair = create_new_key_pair(seed)
    security = {TProtocol("/noise"): Noise(pair, noise_privkey=create_x25519().private_key)}
    return new_host(key_pair=pair, sec_opt=security, muxer_opt={TProtocol("/yamux/1.0.0"): Yamux})


def get_peer_id(key: bytes) -> ID:
    return ID(b"\x00\x24\x08\x01\x12\x20" + key)


def get_key(stream: Any) -> bytes:
    """The key of the connection."""
    return stream.muxed_conn.peer_id.to_bytes()[6:]


class Mates:
    """The peers that have passed hello, and what was heard from them."""

    def __init__(self, host: Any, seed: bytes, answer: Callable[[Question], list[bytes] | None]) -> None:
        self._host, self._seed, self._answer = host, seed, answer
        self.run_uid, self.plan_hash = bytes(32), NO_PLAN
        self.allowed: set[bytes] = set()
        self.connected: set[bytes] = set()
        self.heard: list[bytes] = []
        self.blobs: dict[bytes, bytes] = {}
        self.failures: list[str] = []
        self.refusals: list[str] = []
        self.answered = 0  # hellos of others that both found good
        self._voices: dict[bytes, Any] = {}

    def listen(self) -> None:
        """Answer all protocols."""
        handlers = {HELLO: self._answer_hello, GOSSIP: self._hear, SYNC: self._answer_questions, BLOB: self._serve}
        for protocol, handler in handlers.items():
            self._host.set_stream_handler(TProtocol(protocol), self._guard(handler))

    def _guard(self, serve: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        async def handle(stream: Any) -> None:
            try:
                await serve(stream)
            except (Failed, TypeError, ValueError, struct.error) as error:
                self.failures.append(repr(error))
            except Exception:  # noqa: BLE001 - libp2p has many ways to say that a stream ended
                pass

        return handle

    def build_record(self) -> list[Any]:
        return build_record(self._seed, [str(one).partition("/p2p/")[0] for one in self._host.get_addrs()])

    # --- hello ----------------------------------------------------------------------------------------------

    def _build_hello(self) -> list[Any]:
        return [1, self.run_uid, self.plan_hash, ["blob/1", "gossip/1", "sync/1"], self.build_record()]

    def _judge(self, key: bytes, theirs: list[Any]) -> str:
        version, run_uid, plan_hash, _, record = theirs
        demand(check_record(record) == key, "the hello has another key's record")
        if version != 1 or run_uid != self.run_uid:
            return "another run"
        if key not in self.allowed:
            return "no place in the run"
        return "" if NO_PLAN in (plan_hash, self.plan_hash) or plan_hash == self.plan_hash else "another plan"

    async def _answer_hello(self, stream: Any) -> None:
        key = get_key(stream)
        reason = self._judge(key, unpack(await read_frame(stream, 8_192)))
        await write_frame(stream, pack([reason, self._build_hello()]))
        if not reason:
            (verdict,) = unpack(await read_frame(stream, 8_192))
            if not verdict:
                self.connected.add(key)
                self.answered += 1

    async def dial(self, key: bytes, address: str) -> None:
        await self._host.connect(PeerInfo(get_peer_id(key), [Multiaddr(address)]))
        await self.say_hello(key)

    async def say_hello(self, key: bytes) -> None:
        stream = await self.open(key, HELLO)
        await write_frame(stream, pack(self._build_hello()))
        reason, theirs = unpack(await read_frame(stream, 8_192))
        if reason:
            self.refusals.append(reason)
            return
        reason = self._judge(key, theirs)
        await write_frame(stream, pack([reason]))
        demand(not reason, f"a peer that we dialed: {reason}")
        self.connected.add(key)

    async def open(self, key: bytes, protocol: str) -> Any:
        return await self._host.new_stream(get_peer_id(key), [TProtocol(protocol)])

    # --- announcements, questions -----------------------------------------------------------------------------

    async def say(self, message: bytes) -> None:
        """Send a message to every connected peer."""
        async with trio.open_nursery() as nursery:
            for key in self.connected:
                nursery.start_soon(self._tell, key, message)

    async def _tell(self, key: bytes, message: bytes) -> None:
        for _ in range(2):  # a stream may have been reset since it was used
            try:
                with trio.fail_after(SAY_S):
                    if key not in self._voices:
                        self._voices[key] = await self.open(key, GOSSIP)
                    await write_frame(self._voices[key], message)
                    return
            except Exception:  # noqa: BLE001
                self._voices.pop(key, None)

    async def _hear(self, stream: Any) -> None:
        while True:
            self.heard.append(await read_frame(stream, 4_096))

    async def ask(self, key: bytes, question: Question) -> list[bytes] | None:
        """The items of the answer; None if the peer has none."""
        with trio.move_on_after(ASK_S):
            stream = await self.open(key, SYNC)
            try:
                await write_frame(stream, pack(question))
                found, items = unpack(await read_frame(stream, 4_227_136))
                return items if found else None
            finally:
                await stream.reset()
        return None

    async def _answer_questions(self, stream: Any) -> None:
        while True:
            items = self._answer(tuple(unpack(await read_frame(stream, 1_024))))
            await write_frame(stream, pack([items is not None, items or []]))

    # --- blobs ------------------------------------------------------------------------------------------------

    def offer(self, data: bytes) -> bytes:
        """Serve a blob from now on."""
        blob_id = get_blob_id(data)
        self.blobs[blob_id] = data
        return blob_id

    async def fetch(self, key: bytes, blob_id: bytes, size: int) -> bytes | None:
        """A blob of at most 16 MiB; None if the peer does not give it."""
        count = -(-size // MIB)
        with trio.move_on_after(ASK_S):
            stream = await self.open(key, BLOB)
            try:
                await stream.write(struct.pack("<c32sII", b"R", blob_id, 0, count))
                status, length = struct.unpack("<BQ", await read_exactly(stream, 9))
                if (status, length) != (0, size):
                    return None
                data = await read_exactly(stream, length)
                return data if get_blob_id(data) == blob_id else None
            finally:
                await stream.reset()
        return None

    async def _serve(self, stream: Any) -> None:
        while True:
            kind, blob_id, first, count = struct.unpack("<c32sII", await read_exactly(stream, 41))
            data = self.blobs.get(blob_id)
            if data is None:
                await stream.write(struct.pack("<BQ", 1, 0))
                continue
            body = struct.pack("<Q", len(data)) + hash_chunks(data)
            if kind == b"R":
                body = data[first * MIB : (first + count) * MIB]
            await stream.write(struct.pack("<BQ", 0, len(body)) + body)
