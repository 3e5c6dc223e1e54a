"""docs/peer-protocol.md: its tables are generated from the code, and the code makes the bytes of its examples."""

from typing import Any

import msgspec
import trio
from kits.reader import DOCS, Page
from kits.scripts import load
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import signature_validator

from psyche.client.runtime.weights.serving import Offer
from psyche.core.encoding.manifest import encode_manifest
from psyche.core.state.gossip import Leave
from psyche.core.state.messages import Join
from psyche.network import hello, sync
from psyche.network.addresses.table import encode_address_record
from psyche.network.blobs import messages as blobs
from psyche.network.node import get_peer_id
from psyche.wire import backend, data
from psyche.wire.address_record import AddressRecord, address_record_bytes, sign_address_record
from psyche.wire.crypto import (
    BLOB_CHUNK_BYTES,
    Identity,
    blake3_hash,
    blob_id_of,
    compute_chunk_hashes,
    compute_state_digest,
)
from psyche.wire.gossip import encode_gossip, sign_gossip
from psyche.wire.line import handshake
from psyche.wire.line.length import pack_length
from psyche.wire.line.tls import make_channel
from psyche.wire.ports import SyncReply, SyncRequest

PAGE = Page("peer-protocol.md")
ALICE, BOB = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
RUN_UID, PLAN_HASH, CHALLENGE = b"\x07" * 32, b"\x09" * 32, b"\x0c" * 32
NOW_UNIX = 1_800_000_000
ANNOUNCEMENT = encode_gossip(sign_gossip(ALICE, RUN_UID, 3, 258, 5, Leave()))


def build_record(identity: Identity, port: int) -> AddressRecord:
    return sign_address_record(identity, [f"/ip4/192.0.2.7/tcp/{port}"], NOW_UNIX)


def frame(message: bytes | msgspec.Struct) -> bytes:
    body = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
    return pack_length(len(body)) + body


class Recorder:
    """A stream that reads from given bytes and keeps what is written."""

    def __init__(self, reads: bytes) -> None:
        self.written: list[bytes] = []
        self._reads = reads

    async def read_some(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        found, self._reads = self._reads[:max_bytes], self._reads[max_bytes:]
        return found

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.written.append(data)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    async def reset(self) -> None:
        await trio.lowlevel.checkpoint()


def test_the_tables_are_those_of_the_code() -> None:
    script = load("generate_peer_protocol")
    stale = script.page_blocks.find_stale([DOCS / "peer-protocol.md"], script.BLOCKS)
    assert stale == {}, "stale: run scripts/generate_peer_protocol.py"


def test_the_peer_id_is_that_of_the_page() -> None:
    peer_id = get_peer_id(ALICE.public)
    assert [peer_id.to_bytes()] == PAGE.read_bytes("peer id")
    assert f"`{peer_id.to_base58()}`" in PAGE.read_block("peer id")


async def test_both_sides_say_hello_as_on_the_page() -> None:
    asks, answers, agrees = PAGE.read_bytes("hello frames")
    alices, bobs = (
        hello.build_hello(RUN_UID, PLAN_HASH, build_record(one, port)) for one, port in ((ALICE, 4001), (BOB, 4002))
    )
    dialed = Recorder(asks + agrees)
    assert await hello.answer(dialed, lambda: bobs, lambda _theirs: "") == alices
    dialer = Recorder(answers)
    assert await hello.offer(dialer, alices, lambda _theirs: "") == bobs
    assert (dialer.written, dialed.written) == ([asks, agrees], [answers])


def test_the_address_record_is_that_of_the_page() -> None:
    record = build_record(ALICE, 4001)
    signed = address_record_bytes(record.p2p, record.addresses, record.expires_unix)
    assert [signed, encode_address_record(record)] == PAGE.read_bytes("address record example")


def test_an_announcement_and_its_rpc_of_the_mesh_are_those_of_the_page() -> None:
    assert [frame(ANNOUNCEMENT)] == PAGE.read_bytes("announcement")
    raw = PAGE.read_examples("mesh")[0]
    rpc: Any = rpc_pb2.RPC.FromString(raw[""][len(raw["length, varint"]) :])
    (message,) = rpc.publish
    assert signature_validator(message), "libp2p refuses the example"
    assert (message.data, message.from_id) == (ANNOUNCEMENT, get_peer_id(ALICE.public).to_bytes())
    assert (list(message.topicIDs), message.seqno) == ([f"psyche/{RUN_UID.hex()}"], (NOW_UNIX * 10**9).to_bytes(8))


def test_questions_and_answers_are_those_of_the_page() -> None:
    manifest, chain = encode_manifest((), ()), b"\x0e" * 32
    digest = compute_state_digest(chain, blake3_hash(manifest))
    offer = msgspec.msgpack.encode(Offer(manifest=manifest, chain=chain, epoch=3, step=7, data_index=1_000))
    record = encode_address_record(build_record(ALICE, 4001))
    questions = (
        SyncRequest("announcements", epoch=3, height=258, have=0b100001),
        SyncRequest("addresses", key=bytes(range(32))),
        SyncRequest("manifest", key=digest),
    )
    first, second, third = (frame(sync.encode_sync_request(one)) for one in questions)
    replies = (SyncReply(True, (record,)), SyncReply(True, (offer,)), SyncReply(False))
    addresses, weights, nothing = (frame(sync.encode_sync_reply(one)) for one in replies)
    assert [first, second, addresses, third, weights, nothing] == PAGE.read_bytes("sync")


def test_requests_for_blobs_are_those_of_the_page() -> None:
    content = bytes(BLOB_CHUNK_BYTES) + b"end"
    blob_id, size = blob_id_of(content), len(content)
    chunks = blobs.encode_chunk_list(size, compute_chunk_hashes(content))
    assert blobs.compute_range_bytes(size, 1, 1) == len(b"end")
    made = [
        blobs.encode_blob_request(blobs.BlobRequest(blob_id)),
        blobs.encode_reply_head(blobs.Status.OK, len(chunks)) + chunks,
        blobs.encode_blob_request(blobs.BlobRequest(blob_id, 1, 1)),
        blobs.encode_reply_head(blobs.Status.OK, len(b"end")) + b"end",
        blobs.encode_reply_head(blobs.Status.UNKNOWN),
    ]
    assert made == PAGE.read_bytes("blobs")


def test_the_handshake_is_that_of_the_page() -> None:
    signed = handshake.signed_bytes(make_channel(BOB), CHALLENGE, backend.PURPOSE)
    answer = handshake.HandshakeResponse(ALICE.public, backend.PURPOSE, ALICE.sign(signed))
    challenge = handshake.HandshakeChallenge(handshake.PROTOCOL_VERSION, CHALLENGE)
    made = [frame(challenge), signed, frame(answer), frame(handshake.Welcome())]
    assert made == PAGE.read_bytes("handshake")


def test_requests_to_the_server_are_those_of_the_page() -> None:
    record = build_record(ALICE, 4001)
    made = [
        backend.Request(1, backend.HelloRequest(backend.VERSION, "my-run", "stranger 1")),
        backend.Reply(1, body=backend.Greeting(backend.VERSION, "my-run", RUN_UID, "psyche", NOW_UNIX)),
        backend.Request(2, backend.SubscribeRequest()),
        backend.Request(3, backend.build_submit(Join(record.p2p), record)),
    ]
    assert list(map(frame, made)) == PAGE.read_bytes("request examples")


def test_samples_travel_as_on_the_page() -> None:
    made = [
        data.FetchRequest(3, 258, 1_000, 1_001),
        data.Rows(1_000, 1_001, 3, 2, bytes.fromhex("010002000300040005000600")),
        data.Refused("not assigned to you", False),
    ]
    assert list(map(frame, made)) == PAGE.read_bytes("data example")
