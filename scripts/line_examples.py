"""What docs/peer-protocol.md shows of a client and its server: tables and examples, drawn from the code."""

from collections.abc import Sequence
from typing import get_args

from example_peers import ALICE, BOB, CHALLENGE, EXPIRES_UNIX, RUN_UID, build_record
from hex_tables import (
    Part,
    draw_example,
    draw_frame,
    draw_kinds,
    draw_table,
    get_fields,
)

from psyche.core.state.errors import REFUSALS
from psyche.core.state.messages import Join
from psyche.errors import BackendError
from psyche.server.connections import limits as server_limits
from psyche.wire import backend, data
from psyche.wire.line import handshake
from psyche.wire.line.tls import make_channel


def draw_handshake() -> list[str]:
    channel = make_channel(BOB)
    signed = handshake.signed_bytes(channel, CHALLENGE, backend.PURPOSE)
    tag = len(signed) - 96 - len(backend.PURPOSE)
    answer = handshake.HandshakeResponse(ALICE.public, backend.PURPOSE, ALICE.sign(signed))
    parts: list[Part] = [
        ("tag", signed[:tag]), ("server's key", channel.server), ("hash of its certificate", channel.binding),
        ("challenge", CHALLENGE), ("purpose", backend.PURPOSE.encode()),
    ]  # fmt: skip
    return [
        "Challenge:", "", *draw_frame(handshake.HandshakeChallenge(handshake.PROTOCOL_VERSION, CHALLENGE)), "",
        "What the client signs:", "", *draw_example(parts, signed), "",
        "Answer:", "", *draw_frame(answer), "", "Welcome:", "", *draw_frame(handshake.Welcome()),
    ]  # fmt: skip


def draw_requests() -> list[str]:
    first = "keys with a slot, allowed keys, owners (K7)"
    follow = "keys that may join or command, and members"
    more: dict[str, Sequence[str]] = {
        "HelloRequest": ("`greeting`", "anybody, as the first request and only then"),
        "SubscribeRequest": ("nil; then `state`, `book` and every change", follow),
        "PingRequest": ("nil", "anybody"),
        "SubmitRequest": ("nil", "subscribers; commands: owners and the join authority, also without"),
        "AnnounceRequest": ("nil", "subscribers"),
        "AllowedRequest": ("`allowed`", "owners and the join authority"),
        "EarningsRequest": ("`earnings`", "owners"),
        "StatusRequest": ("`status`", "anybody"),
        "ReportRequest": ("nil", f"subscribers: {first}"),
        "MembersRequest": ("`members`", first),
        "RecordRequest": ("`state`", follow),
    }
    return draw_kinds(get_args(backend.RequestBody), more, ("type", "fields, in order", "body of the answer", "who"))


def draw_messages() -> list[str]:
    more: dict[str, Sequence[str]] = {
        "Reply": ("the answer to the request with this id",),
        "FullState": ("the whole state; also the body of an answer to `record`",),
        "StateDelta": ("what changed; each run is an array: offset, bytes",),
        "BookChange": ("address records that are new or changed; `whole`: they replace the book",),
        "Goodbye": ("the server hangs up",),
    }
    bodies = {
        "Greeting": ("to `hello`",), "RunStatus": ("to `status`",), "Earnings": ("to `earnings`",),
        "AllowedKeys": ("to `allowed`",), "Members": ("to `members`; each a MemberInfo",),
    }  # fmt: skip
    answers = [one for one in get_args(backend.ReplyBody) if one.__name__ in bodies]
    return [
        *draw_kinds(get_args(backend.ServerMessage), more, ("type", "fields, in order", "what")), "",
        "Bodies of answers, besides `state`:", "",
        *draw_kinds(answers, bodies, ("type", "fields, in order", "answer")),
    ]  # fmt: skip


def draw_nested() -> list[str]:
    """Structs without a tag that messages contain."""
    kinds = (backend.MemberInfo, backend.SelfReport, backend.ChangedBytes)
    rows = [(f"`{kind.__name__}`", "; ".join(f"{n}: {text}" for n, text in get_fields(kind))) for kind in kinds]
    return draw_table(("array", "fields, in order"), rows)


def draw_codes() -> list[str]:
    """Every code of a refusal, with the first line of its class's documentation."""
    kinds = [one for one in vars(backend).values() if isinstance(one, type) and issubclass(one, BackendError)]
    own = [one for one in kinds if one.__module__ == backend.__name__]
    found = [(f"`{one.__name__}`", (one.__doc__ or "").splitlines()[0]) for one in (*own, *REFUSALS.values())]
    return draw_table(("code", "meaning"), found)


def draw_requests_examples() -> list[str]:
    record = build_record(ALICE, 4001)
    first = backend.Request(1, backend.HelloRequest(backend.VERSION, "my-run", "stranger 1"))
    join = backend.Request(3, backend.build_submit(Join(record.p2p), record))
    greeting = backend.Greeting(backend.VERSION, "my-run", RUN_UID, "psyche", EXPIRES_UNIX)
    return [
        "The first request:", "", *draw_frame(first), "",
        "Its answer:", "", *draw_frame(backend.Reply(1, body=greeting)), "",
        "Subscribe:", "", *draw_frame(backend.Request(2, backend.SubscribeRequest())), "",
        "Join (message 2; `fields` is the msgpack array of its p2p key and the time 0, as bin):", "", *draw_frame(join),
    ]  # fmt: skip


def draw_data() -> list[str]:
    asked = data.FetchRequest(3, 258, 1_000, 1_001)
    rows = data.Rows(1_000, 1_001, 3, 2, bytes.fromhex("010002000300040005000600"))
    refused = data.Refused("not assigned to you", False)
    more = {
        "Rows": ("what was asked for: rows one after another, ids little-endian",),
        "Refused": ("why there are none; `may_retry`: ask again",),
    }
    request = draw_table(
        ("field, in order", "type"), [(f"`{name}`", text) for name, text in get_fields(data.FetchRequest)]
    )
    return [
        *request, "", *draw_kinds((data.Rows, data.Refused), more, ("type", "fields, in order", "what")), "",
        "A request for samples 1,000 and 1,001, the rows (three ids of two bytes each), and a refusal:", "",
        *draw_frame(asked), "", *draw_frame(rows), "", *draw_frame(refused),
    ]  # fmt: skip


def draw_line_limits() -> list[str]:
    x = server_limits
    rows = [
        (f"{x.HANDSHAKE_TIMEOUT_S:g} s", "for TLS and the handshake, and again for the first request"),
        (f"{handshake.MAX_HANDSHAKE_BYTES:,} bytes", "a frame before Welcome"),
        (f"{backend.MAX_REQUEST_BYTES:,} bytes", "a request to the server"),
        (f"{backend.MAX_SERVER_FRAME_BYTES:,} bytes", "a frame of the server"),
        (f"{x.IDLE_TIMEOUT_S:g} s", "without a request: the server hangs up, so send `ping` every 5 s"),
        (f"{x.SEND_TIMEOUT_S:g} s", "within which a frame of the server must be taken"),
        (f"{x.MAX_REPLIES}", "answers that are not yet taken"),
        (f"{x.REQUESTS_PER_S:g} a second", f"requests of a connection, in bursts of {x.REQUEST_BURST:g}"),
        (f"{data.MAX_REQUEST_BYTES} bytes", "a request to the data server"),
        (f"{data.MAX_REPLY_BYTES:,} bytes", "a frame of the data server"),
        (f"{data.MAX_ROWS_BYTES:,} bytes", "of token ids in one reply: ask for no more samples than that"),
    ]
    return draw_table(("limit", "of what"), rows)
