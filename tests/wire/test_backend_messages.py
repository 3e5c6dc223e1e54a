"""The client <-> server messages: what decodes may be used, what is out of range names its field."""

import contextlib
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.core.encoding.bodies import encode_body
from psyche.core.rules.apply import KINDS
from psyche.core.state.errors import REFUSALS
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.messages import Withdraw
from psyche.errors import BackendError, WireError
from psyche.wire import backend as wire
from psyche.wire.access import ACCESS_KINDS, Allow, Disallow
from psyche.wire.address_record import sign_address_record
from psyche.wire.crypto import Identity
from psyche.wire.report import SelfReport

KEY = bytes(range(32))
RECORD = sign_address_record(Identity(KEY), ["/ip4/10.0.0.1/tcp/4001"], 2_000_000_000)

bodies = st.one_of(
    st.builds(wire.HelloRequest, st.integers(0, 1 << 40), st.text(max_size=32), st.text(max_size=96)),
    st.just(wire.SubscribeRequest()),
    st.just(wire.PingRequest()),
    st.just(wire.AnnounceRequest(RECORD)),
    st.builds(
        wire.SubmitRequest,
        st.integers(0, 255),
        st.binary(max_size=4_000),
        st.none() | st.binary(min_size=16, max_size=16),
        st.none() | st.just(RECORD),
        st.none() | st.tuples(st.binary(max_size=700), st.binary(max_size=700)),
    ),
    st.just(wire.AllowedRequest()),
    st.just(wire.EarningsRequest()),
    st.just(wire.StatusRequest()),
    st.builds(wire.HistoryRequest, st.integers(0, 2**63 - 1)),
    st.just(wire.MembersRequest()),
    st.just(wire.RecordRequest()),
    st.builds(wire.DataManifestRequest, st.integers(0, 2**63 - 1)),
    st.builds(
        wire.ReportRequest,
        st.builds(SelfReport, *[st.text(max_size=32)] * 3, *[st.integers(0, 9)] * 3, st.none() | st.floats(-9, 9)),
    ),
)


@given(st.integers(0, 2**63 - 1), bodies)
def test_every_request_reads_back_as_it_was_written_and_fits_a_frame(number: int, body: wire.RequestBody) -> None:
    request = wire.Request(number, body)
    raw = wire.encode_message(request)
    assert wire.decode_backend_request(raw) == request
    assert len(raw) <= wire.MAX_REQUEST_BYTES


def test_the_strategies_cover_every_kind_of_request() -> None:
    covered = {type(example) for example in _find_examples(bodies)}
    assert covered == set(get_args(wire.RequestBody))


def _find_examples(strategy: st.SearchStrategy[Any]) -> list[Any]:
    found: list[Any] = []

    @given(st.lists(strategy, min_size=30, max_size=60))
    def collect(some: list[Any]) -> None:
        found.extend(some)

    collect()
    return found


@pytest.mark.parametrize(
    "message",
    [
        wire.Reply(3, "DuplicateWitness", "there already", "W4, K3", on_record=True, nonce=9),
        wire.Reply(4, body=wire.Greeting(1, "run", KEY, "psyche", 5)),
        wire.Reply(6, body=wire.Earnings(((KEY, 2**64 - 1),))),
        wire.Reply(5, body=wire.RunStatus("run", KEY, "p", 1, 2, 3, 4, False, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)),
        wire.Reply(7, body=wire.Members(1, (wire.MemberInfo(KEY, 0, 1, True, SelfReport("ada"), 2, True, 3),))),
        wire.Reply(8, body=wire.Members(1, (wire.MemberInfo(KEY, None, None, False),))),
        wire.FullState(1, 2, bytes(16), b"zstd"),
        wire.Reply(9, body=wire.FullState(1, 2, bytes(16), b"zstd")),
        wire.StateDelta(1, 2, 3, bytes(16), (wire.ChangedBytes(0, b"a"), wire.ChangedBytes(STATE_BYTES - 1, b"b"))),
        wire.BookChange(True, (RECORD,), (KEY,)),
        wire.Goodbye("Replaced", "by another"),
    ],
)
def test_every_server_message_reads_back_as_it_was_written(message: wire.ServerMessage) -> None:
    assert wire.decode_server_message(wire.encode_message(message)) == message


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (["submit", 256, b""], "[1][1]"),
        (["submit", 2, bytes(4_001)], "[1][2]"),
        (["submit", 10, b"", bytes(15)], "[1][3]"),
        (["submit", 2, b"", None, [KEY, ["/a"] * 9, 0, bytes(64)]], "[1][4][1]"),
        (["submit", 9, b"", None, None, [b"", bytes(1_025)]], "[1][5][1]"),
        (["announce", [KEY, ["a" * 129], 0, bytes(64)]], "[1][1][1][0]"),
        (["announce", [KEY, [], 1 << 63, bytes(64)]], "[1][1][2]"),
        (["nothing"], "[1][0]"),
    ],
)
def test_a_field_out_of_range_is_refused_by_its_place(body: list[Any], place: str) -> None:
    with pytest.raises(WireError) as refused:
        wire.decode_backend_request(msgspec.msgpack.encode([1, body]))
    assert place in str(refused.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_wire_error(raw: bytes) -> None:
    for decode in (wire.decode_backend_request, wire.decode_server_message):
        with contextlib.suppress(WireError):
            decode(raw)


def test_deeply_nested_bytes_are_refused() -> None:
    for decode in (wire.decode_backend_request, wire.decode_server_message):
        with pytest.raises(WireError):
            decode(b"\x91" * 8_000)


def test_a_newer_clients_extra_fields_are_ignored() -> None:
    raw = msgspec.msgpack.encode([7, ["submit", 4, b"", None, None, None, "new", {"more": 3}], "and more"])
    assert wire.decode_backend_request(raw) == wire.Request(7, wire.SubmitRequest(4, b""))


def test_every_error_of_the_coordinator_crosses_the_wire() -> None:
    for kind in REFUSALS.values():
        error = wire.error_from_code(kind.__name__, "why", "M1")
        assert type(error) is kind
        assert (error.message, error.rule, str(error)) == ("why", "M1", "why (M1)")


def test_the_servers_own_refusals_cross_the_wire_and_unknown_ones_are_backend_errors() -> None:
    assert isinstance(wire.error_from_code("NotOwner", "no"), wire.NotOwner)
    strange = wire.error_from_code("FromTheFuture", "hm")
    assert type(strange) is BackendError
    assert str(strange) == "FromTheFuture: hm"
    assert type(wire.error_from_code("Exception", "no class of ours")) is BackendError


def test_a_long_reason_is_cut_so_that_the_reply_can_be_read() -> None:
    reply = wire.Reply(1, "Halted", wire.shorten("x" * 5_000))
    assert wire.decode_server_message(wire.encode_message(reply)) == reply


@pytest.mark.parametrize("decode", [wire.decode_backend_request, wire.decode_server_message])
def test_a_tag_that_is_no_text_is_a_wire_error(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(WireError):
        decode(b"\x91\xa6\x00\x00\x00\x00\x00\x80")


def test_numbers_and_names_of_access_messages_never_change_and_meet_no_other() -> None:
    assert [(kind.number, kind.name) for kind in ACCESS_KINDS] == [(128, "allow"), (129, "disallow")]
    assert len(wire.BY_NUMBER) == len(KINDS) + len(ACCESS_KINDS)


@pytest.mark.parametrize("message", [Withdraw(65_535, 255), Allow(KEY), Allow(KEY, (KEY,) * 64), Disallow(KEY, KEY)])
def test_a_message_is_found_by_its_number(message: wire.AnyMessage) -> None:
    assert wire.decode_message(wire.get_kind(message).number, encode_body(message)) == message


def test_a_number_without_a_message_is_refused() -> None:
    with pytest.raises(WireError, match="no message has the number 99"):
        wire.decode_message(99, b"")
