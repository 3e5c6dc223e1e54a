"""Draws the tables and examples of docs/peer-protocol.md from the code, between their markers.

    python scripts/draw_peer_protocol.py           write them
    python scripts/draw_peer_protocol.py --check   only report whether the page is stale

Every example is made by the encoder that the programs use, from fixed keys: those of the secret seeds of 32 bytes 01
and 32 bytes 02.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import page_blocks
import trio
from example_peers import ALICE, BOB, EXPIRES_UNIX, PLAN_HASH, RUN_UID, build_record
from hex_tables import (
    Part,
    add_length,
    draw_example,
    draw_fields,
    draw_table,
    frame,
    split,
    split_head,
)
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX, signature_validator
from line_examples import (
    draw_codes,
    draw_data,
    draw_handshake,
    draw_line_limits,
    draw_messages,
    draw_nested,
    draw_requests,
    draw_requests_examples,
)

from psyche.client.runtime.weights.serving import Offer
from psyche.core.encoding.manifest import encode_manifest
from psyche.core.state.gossip import Leave
from psyche.core.state.limits import MAX_ADDRESSES, MAX_MESSAGE_BYTES
from psyche.network import hello, limits, safe, streams, sync
from psyche.network.addresses.messages import ITEM_BYTES, MAX_RECORDS, encode_address_record
from psyche.network.blobs import messages as blobs
from psyche.network.limits import NetworkLimits
from psyche.network.node import get_peer_id
from psyche.wire import address_record
from psyche.wire.crypto import (
    BLOB_CHUNK_BYTES,
    MAX_BLOB_BYTES,
    blake3_hash,
    blob_id_of,
    compute_chunk_hashes,
    compute_state_digest,
)
from psyche.wire.gossip import encode_gossip, get_signed_bytes, sign_gossip
from psyche.wire.line.length import pack_length
from psyche.wire.ports import SyncReply, SyncRequest

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "peer-protocol.md"
MIB: Final = 1 << 20
DEFAULTS: Final = NetworkLimits()


class Recorder:
    """A stream that reads from given bytes and keeps what is written."""

    def __init__(self, reads: bytes = b"") -> None:
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


def say_hello() -> tuple[hello.Hello, hello.Hello, list[bytes]]:
    """Both hellos of a successful introduction, and its three frames, as the code writes them."""
    dialers = hello.build_hello(RUN_UID, PLAN_HASH, build_record(ALICE, 4001))
    answers = hello.build_hello(RUN_UID, PLAN_HASH, build_record(BOB, 4002))
    first = msgspec.msgpack.encode(dialers)
    yes = msgspec.msgpack.encode([""])
    dialed = Recorder(pack_length(len(first)) + first + pack_length(len(yes)) + yes)
    trio.run(hello.answer, dialed, lambda: answers, lambda _theirs: "")
    dialer = Recorder(dialed.written[0])
    trio.run(hello.offer, dialer, dialers, lambda _theirs: "")
    return dialers, answers, [dialer.written[0], dialed.written[0], dialer.written[1]]


def draw_peer_id() -> list[str]:
    raw = get_peer_id(ALICE.public).to_bytes()
    parts: list[Part] = [("multihash: identity, 36 bytes", raw[:2]), ("key: Ed25519, 32 bytes", raw[2:6])]
    return [
        *draw_example([*parts, ("public key", raw[6:])], raw),
        "",
        f"In base58: `{get_peer_id(ALICE.public).to_base58()}`.",
    ]


def draw_protocols() -> list[str]:
    what = {
        streams.HELLO: ("who dialed", "the introduction", "one per introduction"),
        streams.GOSSIP: ("each side its own", "announcements, sent only", "one, kept open"),
        streams.SYNC: ("who asks", "question, answer, question, …", "kept for the next question"),
        streams.BLOB: ("who fetches", "requests, and replies in their order", "kept for the next fetch"),
    }
    ours = [(f"`{protocol}`", *what[protocol]) for protocol in streams.PROTOCOLS]
    mesh = ("`/meshsub/1.1.0`, `/meshsub/1.0.0`", "each side its own", "the gossip mesh", "one, kept open")
    ping = ("`/ipfs/ping/1.0.0`", "either", "32 bytes, sent back unchanged", "one per ping")
    return draw_table(("protocol", "opened by", "what", "streams"), [*ours, mesh, ping])


def draw_hello() -> list[str]:
    rules = {
        "version": f"{hello.HELLO_VERSION}; any other is refused",
        "run_uid": "32 bytes: the run; another is refused",
        "plan_hash": "32 bytes; zeros while you do not know it. Two that are not zero must be equal",
        "capabilities": f"at most {hello.MAX_CAPABILITIES} texts; "
        f"send {', '.join(f'`{one}`' for one in hello.CAPABILITIES)}; no rule reads them yet",
        "record": "your own address record, signed by the key of the connection",
    }
    return draw_fields(hello.Hello, rules)


def draw_hello_frames() -> list[str]:
    dialers, answers, frames = say_hello()
    yes = [split_head(1), ("reason: none", b"\xa0")]
    answer = [split_head(2), ("reason: none", b"\xa0"), *split(answers, "hello")]
    return [
        "The dialer's hello:", "", *draw_example(add_length(split(dialers)), frames[0]), "",
        "The answer:", "", *draw_example(add_length(answer), frames[1]), "",
        "The dialer's verdict:", "", *draw_example(add_length(yes), frames[2]),
    ]  # fmt: skip


def draw_record() -> list[str]:
    record = build_record(ALICE, 4001)
    signed = address_record.address_record_bytes(record.p2p, record.addresses, record.expires_unix)
    text, tag = record.addresses[0].encode(), len(address_record.ADDRESS_TAG)
    parts: list[Part] = [
        ("tag", signed[:tag]), ("p2p", record.p2p), ("expires_unix, u64", signed[tag + 32 : tag + 40]),
        ("addresses, u8: 1", b"\x01"), ("length, u8", bytes([len(text)])), ("address", text),
    ]  # fmt: skip
    rules = {
        "p2p": "the key of the node",
        "addresses": "multiaddrs without `/p2p/…`, in ASCII: `/ip4/…/tcp/PORT`, or with `ip6`, `dns`, `dns4`, `dns6`",
        "expires_unix": "Unix seconds; nodes sign for 24 hours. Of two records of a key the later one counts",
        "signature": "Ed25519 by `p2p` over the bytes below",
    }
    table = draw_fields(address_record.AddressRecord, rules)
    whole = encode_address_record(record)
    return [
        *table, "", "What the signature covers:", "", *draw_example(parts, signed), "",
        "The record, as it is in a hello, in an answer to *addresses*, and in a join:", "",
        *draw_example(split(record), whole),
    ]  # fmt: skip


def draw_announcement() -> list[str]:
    """The shortest gossip message, in a frame of `/psyche/gossip/1`."""
    message = sign_gossip(ALICE, RUN_UID, 3, 258, 5, Leave())
    whole = encode_gossip(message)
    tag = len(get_signed_bytes(message)) - 40
    parts: list[Part] = [
        ("tag", whole[:tag]), ("run_uid", RUN_UID), ("epoch 3, u16", whole[tag + 32 : tag + 34]),
        ("height 258, u32", whole[tag + 34 : tag + 38]), ("member 5, u16", whole[tag + 38 : tag + 40]),
        ("signature", message.signature),
    ]  # fmt: skip
    return draw_example(add_length(parts), pack_length(len(whole)) + whole)


def encode_varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + encode_varint(number // 128)


def encode_protobuf(name: str, number: int, value: bytes) -> list[Part]:
    """A protobuf field of bytes: its key and length, then its value."""
    return [(f"{name}: field {number}", encode_varint(number << 3 | 2) + encode_varint(len(value))), ("", value)]


def draw_mesh() -> list[str]:
    """A gossipsub RPC with the same message, checked by libp2p's own validator."""
    message = encode_gossip(sign_gossip(ALICE, RUN_UID, 3, 258, 5, Leave()))
    seqno = (EXPIRES_UNIX * 10**9).to_bytes(8, "big")
    peer_id, topic = get_peer_id(ALICE.public).to_bytes(), f"psyche/{RUN_UID.hex()}"
    sent = rpc_pb2.Message(data=message, topicIDs=[topic], from_id=peer_id, seqno=seqno)
    signed = PUBSUB_SIGNING_PREFIX.encode() + sent.SerializeToString()
    sent.signature = create_new_key_pair(ALICE.seed).private_key.sign(signed)
    if not signature_validator(sent):
        raise ValueError("libp2p refuses the example")
    inner = [
        *encode_protobuf("from", 1, peer_id), *encode_protobuf("data", 2, message),
        *encode_protobuf("seqno", 3, seqno), *encode_protobuf("topic", 4, topic.encode()),
        *encode_protobuf("signature", 5, sent.signature),
    ]  # fmt: skip
    size = sum(len(part) for _, part in inner)
    rpc = rpc_pb2.RPC(publish=[sent]).SerializeToString()
    parts = [("length, varint", encode_varint(len(rpc))), ("publish: field 2", b"\x12" + encode_varint(size)), *inner]
    return draw_example(parts, encode_varint(len(rpc)) + rpc)


def draw_sync() -> list[str]:
    key = bytes(range(32))
    request = sync.encode_sync_request(SyncRequest("announcements", epoch=3, height=258, have=0b100001))
    parts: list[Part] = [
        split_head(5), ("kind", b"\xad" + b"announcements"), ("epoch 3", b"\x03"), ("height 258", b"\xcd\x01\x02"),
        ("have: members 0, 5", b"\xc4\x20" + (0b100001).to_bytes(32, "little")), ("key: empty", b"\xc4\x00"),
    ]  # fmt: skip
    record = encode_address_record(build_record(ALICE, 4001))
    reply = sync.encode_sync_reply(SyncReply(True, (record,)))
    reply_parts: list[Part] = [
        split_head(2), ("found", b"\xc3"), ("items: array of 1", b"\x91"),
        ("item 0: bin", b"\xc4" + bytes([len(record)])), ("", record),
    ]  # fmt: skip
    return [
        "A question for announcements:", "", *draw_example(add_length(parts), frame(request)), "",
        "A question for addresses:", "", *draw_question("addresses", key), "",
        "Its answer, with one record:", "", *draw_example(add_length(reply_parts), frame(reply)), "",
        *draw_manifest_answer(), "",
        "The answer of a peer that has nothing:", "",
        *draw_example(add_length([split_head(2), ("found", b"\xc2"), ("items: none", b"\x90")]),
                      frame(sync.encode_sync_reply(SyncReply(False)))),
    ]  # fmt: skip


def draw_question(kind: str, key: bytes) -> list[str]:
    """A question for something by its key."""
    parts: list[Part] = [
        split_head(5), ("kind", bytes([0xA0 + len(kind)]) + kind.encode()), ("epoch", b"\x00"), ("height", b"\x00"),
        ("have", b"\xc4\x20" + bytes(32)), ("key", b"\xc4\x20" + key),
    ]  # fmt: skip
    return draw_example(add_length(parts), frame(sync.encode_sync_request(SyncRequest(kind, key=key))))


def draw_manifest_answer() -> list[str]:
    """The question for weights without a tensor or file, and the answer."""
    manifest, chain = encode_manifest((), ()), b"\x0e" * 32
    key = compute_state_digest(chain, blake3_hash(manifest))
    offer = msgspec.msgpack.encode(Offer(manifest=manifest, chain=chain, epoch=3, step=7, data_index=1_000))
    parts: list[Part] = [
        split_head(2), ("found", b"\xc3"), ("items: array of 1", b"\x91"),
        ("item 0: bin", b"\xc4" + bytes([len(offer)])), ("map of 5", b"\x85"),
        ("manifest", b"\xa8manifest" + b"\xc4" + bytes([len(manifest)]) + manifest),
        ("chain", b"\xa5chain\xc4\x20" + chain), ("epoch 3", b"\xa5epoch\x03"), ("step 7", b"\xa4step\x07"),
        ("data_index 1,000", b"\xaadata_index\xcd\x03\xe8"),
    ]  # fmt: skip
    reply = sync.encode_sync_reply(SyncReply(True, (offer,)))
    return [
        "A question for weights, here of a model without tensors and files, and its answer:", "",
        *draw_question("manifest", key), "", *draw_example(add_length(parts), frame(reply)),
    ]  # fmt: skip


def draw_blobs() -> list[str]:
    """A blob of two chunks: its id, the two kinds of requests, and the heads of their replies."""
    content = bytes(BLOB_CHUNK_BYTES) + b"end"
    blob_id, hashes = blob_id_of(content), compute_chunk_hashes(content)
    asks_list, asks_range = blobs.BlobRequest(blob_id), blobs.BlobRequest(blob_id, 1, 1)
    body = blobs.encode_chunk_list(len(content), hashes)
    small = blobs.encode_reply_head(blobs.Status.OK, len(body))
    size = blobs.compute_range_bytes(len(content), 1, 1)
    part = blobs.encode_reply_head(blobs.Status.OK, size)
    u32 = (0).to_bytes(4, "little")
    one = (1).to_bytes(4, "little")
    no = blobs.encode_reply_head(blobs.Status.UNKNOWN)
    return [
        "The blob is 1 MiB of zero bytes and then the three bytes `end`. A request for its chunk list:", "",
        *draw_example([("M", b"M"), ("id", blob_id), ("first, u32", u32), ("count, u32", u32)],
                      blobs.encode_blob_request(asks_list)), "",
        "The reply:", "",
        *draw_example([("status OK", small[:1]), ("length, u64", small[1:]), ("size of the blob, u64", body[:8]),
                       ("hash of chunk 0", hashes[:32]), ("hash of chunk 1", hashes[32:])], small + body), "",
        "A request for the second chunk, and the reply:", "",
        *draw_example([("R", b"R"), ("id", blob_id), ("first, u32", one), ("count, u32", one)],
                      blobs.encode_blob_request(asks_range)), "",
        *draw_example([("status OK", part[:1]), ("length, u64", part[1:]), ("chunk 1", b"end")], part + b"end"), "",
        "The reply of a node that does not have the blob:", "",
        *draw_example([("status UNKNOWN", no[:1]), ("length, u64", no[1:])], no),
    ]  # fmt: skip


def draw_statuses() -> list[str]:
    what = {
        blobs.Status.OK: "the body follows",
        blobs.Status.UNKNOWN: "the node does not have the blob, or has it no longer; ask again later, or another",
        blobs.Status.REFUSED: "the range leaves the blob",
    }
    return draw_table(("status", "name", "meaning"), ((int(one), one.name, what[one]) for one in blobs.Status))


def draw_limits() -> list[str]:
    """What a peer must keep, and what happens if it does not."""
    x = DEFAULTS
    rows: list[tuple[str, str, str]] = [
        (f"{safe.UPGRADE_S:g} s", "from TCP to yamux", "the connection is closed"),
        (f"{x.hello_s:g} s", "from the connection to a mutual hello", "the connection is closed"),
        (f"{x.pending_per_ip}", "connections of one address in the middle of this", "more are closed at once"),
        (f"{x.connections}", "connections of a node", "more are closed at once"),
        (f"{safe.MAX_NAME_BYTES:,} bytes", "a name of multistream-select", "the stream ends, or the connection"),
        (f"{safe.FIRST_WINDOW_BYTES:,} bytes", "the window of a stream at first", "the connection is cut"),
        (f"{safe.MAX_WINDOW_BYTES:,} bytes", "the same at its widest", "the connection is cut"),
        (f"{x.streams_per_connection}", "streams of a connection", "the connection is cut"),
        (f"{x.streams_per_peer}", "streams of one protocol that you open", "further ones are reset"),
        (f"{x.unread_per_connection_bytes // MIB} MiB", "sent by you and not yet read", "the connection is cut"),
        (f"{x.unread_bytes // MIB} MiB", "the same of all connections together", "the greediest is cut, members last"),
        (f"{x.cut_rest_s:g} s", "after a cut", "not let in; a member is, unless it broke the rules of yamux"),
        (f"{x.write_s:g} s", "within which you take what is sent", "the connection is closed"),
        (f"{x.health_check_s:g} s", "between two pings of a node", "answer each"),
        (f"{x.ping_s:g} s", "for the answer to a ping", "the connection is closed"),
        (f"{limits.HELLO_BYTES:,} bytes", "a frame of hello", "the connection is closed"),
        (f"{hello.MAX_REASON} characters", "of a reason that are shown", "the rest is not read"),
        (f"{MAX_MESSAGE_BYTES:,} bytes", "a gossip message; at least 1", "the stream is reset; in the mesh, dropped"),
        (f"{x.gossip_per_s:g} a second", f"gossip of one origin, in bursts of {x.gossip_burst}", "dropped"),
        (f"{safe.MAX_RPC_BYTES:,} bytes", "an RPC of the mesh", "the stream is reset"),
        (f"{limits.SYNC_REQUEST_BYTES:,} bytes", "a sync question", "the stream is reset"),
        (f"{sync.REPLY_FRAME_BYTES:,} bytes", "the frame of a sync answer", "the question failed"),
        (f"{limits.SYNC_REPLY_BYTES:,} bytes", f"its items together; at most {limits.SYNC_ITEMS:,}", "the same"),
        (f"{sync.ADDRESSES_FRAME_BYTES:,} bytes", "the frame of an answer to *addresses*", "you are not asked again"),
        (f"{MAX_RECORDS}", f"records of it, of at most {ITEM_BYTES:,} bytes each", "the same"),
        (f"{MAX_ADDRESSES}", f"addresses of a record, of at most {address_record.MAX_ADDRESS_BYTES} bytes", "the same"),
        (f"{x.sync_handlers}", f"questions answered at a time, each within {x.serve_sync_s:g} s", "*not found*"),
        (f"{limits.RANGE_CHUNKS}", "chunks of a blob request; at least 1", "the stream is reset"),
        (f"{x.ranges_per_peer}", f"requests served at once to you; {x.ranges_total} to all", "the others wait"),
        (f"{MAX_BLOB_BYTES // MIB:,} MiB", "a blob", "never asked for"),
        (f"{x.idle_stream_s:g} s", "without a question or request on a stream", "the stream is reset"),
    ]  # fmt: skip
    return draw_table(("limit", "of what", "otherwise"), rows)


BLOCKS: Final[dict[str, Callable[[], list[str]]]] = {
    "peer id": draw_peer_id,
    "protocols": draw_protocols,
    "hello": draw_hello,
    "hello frames": draw_hello_frames,
    "address record": draw_record,
    "announcement": draw_announcement,
    "mesh": draw_mesh,
    "sync": draw_sync,
    "blobs": draw_blobs,
    "statuses": draw_statuses,
    "limits": draw_limits,
    "handshake": draw_handshake,
    "requests": draw_requests,
    "server messages": draw_messages,
    "nested": draw_nested,
    "request examples": draw_requests_examples,
    "codes": draw_codes,
    "data": draw_data,
    "line limits": draw_line_limits,
}


if __name__ == "__main__":
    sys.exit(page_blocks.run("draw_peer_protocol.py", __doc__, sys.argv[1:], [PAGE], BLOCKS))
