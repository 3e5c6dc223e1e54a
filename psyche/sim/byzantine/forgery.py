"""Dishonest members that impersonate others, or relay forged data under another member's name.

Their messages are well formed and well timed: only the check of the signature, of the sender or of the hash can
reject them.
"""

import struct
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final

import msgspec
import trio

from psyche.backends.port import Backend
from psyche.backends.tcp.backend import TcpBackend
from psyche.backends.tcp.dial import ask, dial
from psyche.client.runtime.weights.serving import read_offer
from psyche.core.committee.bloom import BLOOM_BYTES
from psyche.core.encoding.header import decode_header, encode_header
from psyche.core.encoding.manifest import FileEntry, decode_manifest, encode_manifest
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.gossip import Finished, Gossip, GossipBody, Result
from psyche.core.state.messages import Join, LeaveRun, Withdraw, WitnessMessage
from psyche.core.state.state import Coordinator, RunState, WitnessFlag
from psyche.errors import BackendError, HandshakeError, WireError
from psyche.network.blobs.store import BlobStore
from psyche.sim.byzantine.program import ByzantineProgram
from psyche.sim.payloads import PayloadCodec
from psyche.wire import backend as wire
from psyche.wire.address_record import AddressRecord
from psyche.wire.crypto import Identity, blob_id_of, compute_commitment
from psyche.wire.gossip import decode_gossip, encode_gossip, sign_gossip
from psyche.wire.ports import Network, SyncReply, SyncRequest

FORGE_S: Final = 1.0
STRANGE_COUNT: Final = 79  # a `train_count` that no trainer has reached


class _Impostor(Identity):
    """Claims one key and signs with another."""

    def __init__(self, own: Identity, claimed: bytes) -> None:
        super().__init__(own.seed)
        self.public = claimed


class Forge(ByzantineProgram):
    """Attacks the server: connects under other members' keys, and sends requests in their names (B12)."""

    turn = 0

    async def run(self) -> None:
        while True:
            await trio.sleep(FORGE_S)
            others = [record for record in self.host.get_book() if record.p2p != self.host.key]
            if others and self.host.backend:
                self.turn += 1
                victim = others[self.turn % len(others)]
                server = self.host.backend if isinstance(self.host.backend, TcpBackend) else None
                if server is not None:
                    await self._find_elsewhere(server, victim)
                await self._speak_for(self.host.backend, self.host.get_state(), victim.p2p)
                if server is not None:
                    await self._connect_as(server, victim)

    async def _find_elsewhere(self, backend: TcpBackend, victim: AddressRecord) -> None:
        """Announce the victim's own record, the victim under a false address, and a false record of this client."""
        forged = msgspec.structs.replace(victim, addresses=("/memory/9999",))
        for claim in (victim, forged, msgspec.structs.replace(forged, p2p=self.host.key)):
            await self._lie(backend.announce(claim))
        if self.host.network is not None:
            await backend.announce(self.host.network.address_record())

    async def _speak_for(self, backend: Backend, state: Coordinator, key: bytes) -> None:
        """A witness record that has heard nobody, and a withdrawal, both in the victim's name."""
        member = next((number for number, client in enumerate(state.clients) if client.p2p == key), None)
        epoch, height = state.progress.epoch, state.current.height
        if member is None or not (state.in_round or state.run_state is RunState.WARMUP):
            return
        if state.in_round:
            no_digest = WitnessFlag.COMPLETE | WitnessFlag.NO_DIGEST
            empty = (0, 0, 0, 0, bytes(BLOOM_BYTES), bytes(32), bytes(32))
            await self._lie(backend.submit(WitnessMessage(epoch, height, member, no_digest, *empty)))
        await self.tell(backend.submit(Withdraw(epoch, member)))  # too late, it succeeds without effect (K3)

    async def _lie(self, request: Awaitable[None]) -> None:
        """Send a message that the server accepts only from the victim."""
        self.believed += await self.tell(request)

    async def _connect_as(self, backend: TcpBackend, victim: AddressRecord) -> None:
        """Connect under the victim's key; if the server accepts, join and leave in the victim's name."""
        impostor = _Impostor(self.host.identity, victim.p2p)
        self.told += 1
        try:
            frames = (await dial(backend.address, impostor, self.host.connect)).frames
        except HandshakeError:
            self.refused += 1
            return
        except (BackendError, WireError):  # the server is unreachable
            self.told -= 1
            return
        self.believed += 1
        join = wire.build_submit(Join(victim.p2p), victim)
        bodies = (wire.SubscribeRequest(), join, wire.build_submit(LeaveRun()))
        try:
            for number, body in enumerate(bodies, 1):
                await ask(frames, wire.Request(number, body))
        except (CoordinatorError, BackendError, WireError):
            return
        finally:
            await frames.aclose()


class Impersonate(ByzantineProgram):
    """Attacks peers: sends messages in others' names under its own key, and others' signed messages altered (B11)."""

    async def publish(self, node: Network, raw: bytes) -> None:
        await node.publish(raw)
        message = decode_gossip(raw)
        if not isinstance(message.body, Result | Finished) or not self.is_due():
            return
        others = [number for number in range(len(self.host.get_state().clients)) if number != message.member]
        forged = [self._flip(message)]
        if others:
            member = self.rng.choice(others)
            forged += self._speak_for(message, member) + self._change(message.height, member)
        for one in forged:
            self.told += 1
            await node.publish(encode_gossip(one))

    def _flip(self, message: Gossip) -> Gossip:
        """Its own message with one bit of the signature flipped."""
        bits = int.from_bytes(message.signature, "little") ^ (1 << self.rng.randrange(8 * len(message.signature)))
        return replace(message, signature=bits.to_bytes(len(message.signature), "little"))

    def _speak_for(self, message: Gossip, member: int) -> list[Gossip]:
        """Its own message in another member's name: everything is right but the key."""
        body = message.body
        if isinstance(body, Result):
            record = self.host.find_record(message.height)
            batch = None if record is None else record.assignments.get(member)
            if batch is None:
                return []
            key = self.host.get_state().clients[member].p2p
            start, end = batch
            body = build_result(body, member=member, trainer_key=key, batch_start=start, batch_end=end)
        return [sign_gossip(self.host.identity, message.run_uid, message.epoch, message.height, member, body)]

    def _change(self, height: int, member: int) -> list[Gossip]:
        """Another member's message with changed figures under the old signature."""
        record = self.host.find_record(height)
        signed = {} if record is None else record.signed.get(member, {})
        found = [decode_gossip(raw) for raw in signed.values()]
        return [replace(one, body=build_result(one.body, train_count=STRANGE_COUNT)) for one in found[:1]]


def build_result(body: GossipBody, **changes: Any) -> Result:
    assert isinstance(body, Result), "only results have headers"
    header = encode_header(replace(decode_header(body.header), **changes))
    return Result(compute_commitment(header), header)


class Swap(ByzantineProgram):
    """Serves well-formed bytes of the right length but the wrong content, different for each requester (B17)."""

    async def run(self) -> None:
        if self.host.network is not None:
            self._replace_read(self.host.network.store, self.host.codec)
        await trio.sleep_forever()

    def _replace_read(self, store: BlobStore, codec: PayloadCodec) -> None:
        read = store.read

        async def lie(blob_id: bytes, first: int, count: int) -> bytes | None:
            data = await read(blob_id, first, count)
            return self._swap(data, codec) if data and self.is_due() else data

        store.read = lie

    def _swap(self, data: bytes, codec: PayloadCodec) -> bytes:
        payload = codec.make(self.rng.randbytes(32))
        return payload if len(payload) == len(data) else bytes([data[0] ^ 1]) + data[1:]


class OtherFiles(ByzantineProgram):
    """Lists wrong model files beside the right weights: alternately a changed config and sixty large files (B25)."""

    async def run(self) -> None:
        if self.host.network is not None:
            await self.host.network.provide(STRANGE_CONFIG, expires=None)
        await trio.sleep_forever()

    def change_reply(self, request: SyncRequest, reply: SyncReply) -> SyncReply:
        offer = read_offer(reply.items[0]) if request.kind == "manifest" and reply.items else None
        if offer is None or not self.is_due():
            return reply
        tensors = decode_manifest(offer.manifest).tensors
        manifest = encode_manifest(tensors, [STRANGE_FILE]) if self.told % 2 else encode_manifest(tensors, ())
        if not self.told % 2:
            manifest = manifest[:-4] + _LARGE_FILES
        return SyncReply(found=True, items=(msgspec.msgpack.encode(msgspec.structs.replace(offer, manifest=manifest)),))


STRANGE_CONFIG: Final = b'{"rms_norm_eps": 1000}'
STRANGE_FILE: Final = FileEntry("config.json", len(STRANGE_CONFIG), blob_id_of(STRANGE_CONFIG))
_LARGE_FILE: Final = struct.pack("<H", 8) + b"big.json" + struct.pack("<Q", 60 << 20) + bytes(32)
_LARGE_FILES: Final = struct.pack("<I", 60) + 60 * _LARGE_FILE
