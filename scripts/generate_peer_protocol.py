"""Generates the tables of docs/peer-protocol.md that follow from the code, between their markers.

    python scripts/generate_peer_protocol.py           write them
    python scripts/generate_peer_protocol.py --check   only report whether the page is stale

The examples of bytes on the page are fixed: tests/docs/test_peer_protocol_page.py holds the code to them.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import page_blocks
from msgspec.inspect import (
    BoolType,
    BytesType,
    FloatType,
    IntType,
    ListType,
    NoneType,
    StrType,
    StructType,
    TupleType,
    UnionType,
    VarTupleType,
    type_info,
)
from page_blocks import format_table

from psyche.core.state.errors import REFUSALS
from psyche.core.state.limits import MAX_ADDRESSES, MAX_MESSAGE_BYTES
from psyche.errors import BackendError
from psyche.network import hello, limits, safe, streams, sync
from psyche.network.addresses.table import ITEM_BYTES, MAX_RECORDS
from psyche.network.blobs.messages import Status
from psyche.network.limits import NetworkLimits
from psyche.server.connections import limits as server_limits
from psyche.wire import address_record, backend, data, report
from psyche.wire.crypto import MAX_BLOB_BYTES
from psyche.wire.line import handshake

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "peer-protocol.md"
MIB: Final = 1 << 20
DEFAULTS: Final = NetworkLimits()

# --- types ----------------------------------------------------------------------------------------------


def describe_type(kind: Any) -> str:
    """Describe a field's msgpack type and its limits in words."""
    match kind:
        case BytesType():
            return describe_size("bin", kind.min_length, kind.max_length, "bytes")
        case StrType():
            return describe_size("str", kind.min_length, kind.max_length, "characters")
        case IntType():
            return describe_int(kind)
        case FloatType():
            return "float" if kind.le is None else f"float, {kind.ge} to {kind.le:g}"
        case StructType():
            return kind.cls.__name__
        case _:
            return describe_composed(kind)


def describe_int(kind: IntType) -> str:
    """Describe the range of an integer; the largest ones by their power of two."""
    most = kind.le if kind.le is not None else kind.lt and kind.lt - 1
    if most is None:
        return "int" if kind.ge is None else f"int, at least {kind.ge}"
    bits = most.bit_length()
    is_power = bits > 8 and most == (1 << bits) - 1
    return f"int, {kind.ge} to {f'2^{bits} - 1' if is_power else f'{most:,}'}"


def describe_composed(kind: Any) -> str:
    """Describe a union or an array."""
    match kind:
        case BoolType() | NoneType():
            return "bool" if isinstance(kind, BoolType) else "nil"
        case UnionType():
            return " or ".join(describe_type(one) for one in kind.types)
        case TupleType():
            return f"array ({', '.join(describe_type(one) for one in kind.item_types)})"
        case ListType() | VarTupleType():
            most = "" if kind.max_length is None else f" of at most {kind.max_length:,}"
            return f"array{most}: {describe_type(kind.item_type)}"
        case _:
            raise TypeError(f"{kind}: no words for it")


def describe_size(kind: str, low: int | None, high: int | None, unit: str) -> str:
    if low is not None and low == high:
        return f"{kind}, {low} {unit}"
    return kind if high is None else f"{kind}, at most {high:,} {unit}"


def get_fields(struct: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """The names and described types of a struct's fields, in order."""
    info: Any = type_info(struct)
    return [(field.name, describe_type(field.type)) for field in info.fields]


def format_fields(struct: type[msgspec.Struct], rules: dict[str, str]) -> list[str]:
    """A table of a struct's fields; `rules` has what each means and must be.

    Raises:
        ValueError: the fields are others than `rules` knows.
    """
    found = get_fields(struct)
    if [name for name, _ in found] != list(rules):
        raise ValueError(f"{struct.__name__}: its fields are {[name for name, _ in found]}")
    return format_table(("field, in order", "type", "rule"), [(f"`{n}`", kind, rules[n]) for n, kind in found])


def format_kinds(
    kinds: Iterable[type[msgspec.Struct]], more: Mapping[str, Sequence[str]], head: Sequence[str]
) -> list[str]:
    """A table of tagged messages: tag, fields, and what else is to say of each."""
    rows: list[tuple[str, ...]] = []
    for kind in kinds:
        fields = "; ".join(f"{name}: {text}" for name, text in get_fields(kind)) or "none"
        rows.append((f"`{kind.__struct_config__.tag}`", fields, *more[kind.__name__]))
    return format_table(head, rows)


# --- between peers --------------------------------------------------------------------------------------


def generate_protocols() -> list[str]:
    what = {
        streams.HELLO: ("who dialed", "the introduction", "one per introduction"),
        streams.GOSSIP: ("each side its own", "announcements, sent only", "one, kept open"),
        streams.SYNC: ("who asks", "question, answer, question, …", "kept for the next question"),
        streams.BLOB: ("who fetches", "requests, and replies in their order", "kept for the next fetch"),
    }
    ours = [(f"`{protocol}`", *what[protocol]) for protocol in streams.PROTOCOLS]
    mesh = ("`/meshsub/1.1.0`, `/meshsub/1.0.0`", "each side its own", "the gossip mesh", "one, kept open")
    ping = ("`/ipfs/ping/1.0.0`", "either", "32 bytes, sent back unchanged", "one per ping")
    return format_table(("protocol", "opened by", "what", "streams"), [*ours, mesh, ping])


def generate_hello() -> list[str]:
    rules = {
        "version": f"{hello.HELLO_VERSION}; any other is refused",
        "run_uid": "32 bytes: the run; another is refused",
        "plan_hash": "32 bytes; zeros while you do not know it. Two that are not zero must be equal",
        "capabilities": f"at most {hello.MAX_CAPABILITIES} texts; "
        f"send {', '.join(f'`{one}`' for one in hello.CAPABILITIES)}; no rule reads them yet",
        "record": "your own address record, signed by the key of the connection",
    }
    return format_fields(hello.Hello, rules)


def generate_record() -> list[str]:
    rules = {
        "p2p": "the key of the node",
        "addresses": "multiaddrs without `/p2p/…`, in ASCII: `/ip4/…/tcp/PORT`, or with `ip6`, `dns`, `dns4`, `dns6`",
        "expires_unix": "Unix seconds; nodes sign for 24 hours. Of two records of a key the later one counts",
        "signature": "Ed25519 by `p2p` over the bytes below",
    }
    return format_fields(address_record.AddressRecord, rules)


def generate_statuses() -> list[str]:
    what = {
        Status.OK: "the body follows",
        Status.UNKNOWN: "the node does not have the blob, or has it no longer; ask again later, or another",
        Status.REFUSED: "the range leaves the blob",
    }
    return format_table(("status", "name", "meaning"), ((int(one), one.name, what[one]) for one in Status))


def generate_limits() -> list[str]:
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
    return format_table(("limit", "of what", "otherwise"), rows)


# --- the line to the servers ----------------------------------------------------------------------------


def generate_requests() -> list[str]:
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
        "DataManifestRequest": ("`data_manifest`", follow),
        "HistoryRequest": ("`history`", "anybody"),
    }
    return format_kinds(get_args(backend.RequestBody), more, ("type", "fields, in order", "body of the answer", "who"))


def generate_messages() -> list[str]:
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
        "History": ("to `history`; each a HistoryPoint",),
        "DataManifestPart": ("to `data_manifest`: the size of the whole, and bytes of it; none if it is not there",),
    }  # fmt: skip
    answers = [one for one in get_args(backend.ReplyBody) if one.__name__ in bodies]
    return [
        *format_kinds(get_args(backend.ServerMessage), more, ("type", "fields, in order", "what")), "",
        "Bodies of answers, besides `state`:", "",
        *format_kinds(answers, bodies, ("type", "fields, in order", "answer")),
    ]  # fmt: skip


def generate_nested() -> list[str]:
    """Structs without a tag that messages contain."""
    kinds = (
        backend.MemberInfo, backend.SelfReport, report.AuditedMember, backend.Verification,
        report.Accusation, backend.HistoryPoint, backend.ChangedBytes,
    )  # fmt: skip
    rows = [(f"`{kind.__name__}`", "; ".join(f"{n}: {text}" for n, text in get_fields(kind))) for kind in kinds]
    return format_table(("array", "fields, in order"), rows)


def generate_codes() -> list[str]:
    """Every code of a refusal, with the first line of its class's documentation."""
    kinds = [one for one in vars(backend).values() if isinstance(one, type) and issubclass(one, BackendError)]
    own = [one for one in kinds if one.__module__ == backend.__name__]
    found = [(f"`{one.__name__}`", (one.__doc__ or "").splitlines()[0]) for one in (*own, *REFUSALS.values())]
    return format_table(("code", "meaning"), found)


def generate_data() -> list[str]:
    more = {
        "Rows": ("what was asked for: rows one after another, tokens little-endian",),
        "Refused": ("why there are none; `may_retry`: ask again",),
    }
    request = [(f"`{name}`", text) for name, text in get_fields(data.FetchRequest)]
    answers = format_kinds((data.Rows, data.Refused), more, ("type", "fields, in order", "what"))
    return [*format_table(("field, in order", "type"), request), "", *answers]


def generate_line_limits() -> list[str]:
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
    return format_table(("limit", "of what"), rows)


BLOCKS: Final[dict[str, Callable[[], list[str]]]] = {
    "protocols": generate_protocols,
    "hello": generate_hello,
    "address record": generate_record,
    "statuses": generate_statuses,
    "limits": generate_limits,
    "requests": generate_requests,
    "server messages": generate_messages,
    "nested": generate_nested,
    "codes": generate_codes,
    "data": generate_data,
    "line limits": generate_line_limits,
}


if __name__ == "__main__":
    sys.exit(page_blocks.run("generate_peer_protocol.py", __doc__, sys.argv[1:], [PAGE], BLOCKS))
