"""Several endpoints as one: tries, waits, the next endpoint, and answers that are not believed."""

import base64
from contextlib import suppress
from itertools import pairwise
from typing import Any

import httpx2
import pytest
import trio
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kits.chain.endpoints import Refusal, ScriptedEndpoint, open_scripted
from solders.pubkey import Pubkey

from psyche.backends.solana.rpc import replies
from psyche.backends.solana.rpc.client import NoEndpoint
from psyche.backends.solana.rpc.http import MAX_REPLY_BYTES
from psyche.backends.solana.rpc.transport import RpcRefused
from psyche.errors import PsycheError, WireError
from psyche.telemetry import types

KEY = Pubkey.from_bytes(bytes(range(32)))


def slot_of(number: int) -> Any:
    return lambda _method, _params: number


def refuse(code: int, data: Any = None) -> Any:
    def answer(_method: str, _params: list[Any]) -> Any:
        raise Refusal(code, "no", data)

    return answer


FAULTS: list[Any] = [
    httpx2.ConnectError("refused"),
    httpx2.ReadError("cut"),
    httpx2.RemoteProtocolError("half an answer"),
    httpx2.Response(429),
    httpx2.Response(500),
    httpx2.Response(503, content=b"<html>"),
    httpx2.Response(200, content=b"<html>not JSON</html>"),
    httpx2.Response(200, content=b"[" * 100_000),
    httpx2.Response(200, content=b'{"jsonrpc":"2.0"}'),
    httpx2.Response(200, content=b'{"error": "text"}'),
    httpx2.Response(403, content=b"who are you"),
    httpx2.Response(302, headers={"location": "http://elsewhere"}),
    httpx2.Response(200, content=b'{"result": "no number"}'),
    "stall",
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault)[:40])
async def test_another_endpoint_answers_within_five_seconds(fault: Any, autojump_clock: Any) -> None:
    first, second = ScriptedEndpoint("first", slot_of(1), fault), ScriptedEndpoint("second", slot_of(2))
    async with open_scripted(first, second) as (rpc, events):
        assert await rpc.get_slot() == 2
        assert trio.current_time() < 5
        assert 1 <= len(first.asked) <= 3
        assert [event.endpoint for event in events.of(types.EndpointLost)] == ["first:8899"]
        before = len(first.asked)
        assert await rpc.get_slot() == 2  # the one that failed is asked last for a while
        assert len(first.asked) == before
        first.fault = None
        await trio.sleep(31)
        assert await rpc.get_slot() == 1
        assert [event.endpoint for event in events.of(types.EndpointBack)] == ["first:8899"]


@pytest.mark.parametrize("code", [-32004, -32005, -32007, -32014, -32016, -32603, -32002, -32429])
async def test_errors_that_pass_are_asked_again_elsewhere(code: int, autojump_clock: Any) -> None:
    first = ScriptedEndpoint("first", refuse(code))  # also without data, at which solders' readers panic
    async with open_scripted(first, ScriptedEndpoint("second", slot_of(2))) as (rpc, _):
        assert await rpc.get_slot() == 2


@pytest.mark.parametrize("code", [-32700, -32600, -32601, -32602, -32003, -32015])
async def test_errors_of_the_request_are_final(code: int, autojump_clock: Any) -> None:
    second = ScriptedEndpoint("second", slot_of(2))
    async with open_scripted(ScriptedEndpoint("first", refuse(code)), second) as (rpc, _):
        with pytest.raises(RpcRefused, match=f"first:8899 refuses getSlot: no \\({code}\\)"):
            await rpc.get_slot()
        assert second.asked == []


async def test_without_any_answer_each_endpoint_is_asked_three_times_and_named(autojump_clock: Any) -> None:
    endpoints = [ScriptedEndpoint(name, slot_of(1), httpx2.ConnectError("refused")) for name in ("first", "second")]
    async with open_scripted(*endpoints) as (rpc, _):
        with pytest.raises(NoEndpoint, match=r"first:8899: ConnectError: refused; second:8899: .*check --rpc"):
            await rpc.get_slot()
        assert [len(one.asked) for one in endpoints] == [3, 3]


async def test_waits_grow_and_an_endpoint_that_asks_for_time_gets_it(autojump_clock: Any) -> None:
    busy = ScriptedEndpoint("only", slot_of(1), httpx2.Response(429, headers={"retry-after": "7"}))
    async with open_scripted(busy) as (rpc, _):
        with pytest.raises(NoEndpoint):
            await rpc.get_slot()
    times = [at for _, at in busy.asked]
    assert [round(after - before) for before, after in pairwise(times)] == [7, 7]


async def test_an_answer_without_end_is_not_read_to_its_end(autojump_clock: Any) -> None:
    huge = ScriptedEndpoint("first", slot_of(1), httpx2.Response(200, content=b" " * (MAX_REPLY_BYTES + 1)))
    async with open_scripted(huge, ScriptedEndpoint("second", slot_of(2))) as (rpc, events):
        assert await rpc.get_slot() == 2
        assert "more than" in events.of(types.EndpointLost)[0].reason


async def test_the_newest_slot_is_that_of_the_most_advanced_endpoint(autojump_clock: Any) -> None:
    stale, fresh = ScriptedEndpoint("stale", slot_of(5)), ScriptedEndpoint("fresh", slot_of(25))
    async with open_scripted(stale, fresh, ScriptedEndpoint("dead", slot_of(99), "stall")) as (rpc, _):
        assert await rpc.get_newest_slot() == 25
        assert trio.current_time() < 1
    async with open_scripted(ScriptedEndpoint("dead", slot_of(9), "stall")) as (rpc, _):
        with pytest.raises(NoEndpoint, match="no answer within 2"):
            await rpc.get_newest_slot()


async def test_an_account_is_unpacked_and_one_that_is_not_there_is_none(autojump_clock: Any) -> None:
    data = bytes(1_000) + b"end"
    packed = base64.b64encode(zstandard.compress(data)).decode()
    value: Any = {"data": [packed, "base64+zstd"], "owner": str(KEY), "lamports": 7}

    def answer(_method: str, params: list[Any]) -> Any:
        assert params[1]["minContextSlot"] == 40
        assert params[1]["commitment"] == "confirmed"  # the default would be finalized
        return {"context": {"slot": 41}, "value": value}

    async with open_scripted(ScriptedEndpoint("only", answer)) as (rpc, _):
        found = await rpc.get_account(KEY, min_slot=40)
        assert found == replies.ChainAccount(41, KEY, 7, data)
        value = None
        assert await rpc.get_account(KEY, min_slot=40) is None


def test_an_account_larger_than_it_may_be_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.compress(bytes(50 << 20))
    assert len(replies.unpack(bomb, 1_000)) == 1_001
    value = {"data": [base64.b64encode(bomb).decode(), "base64+zstd"], "owner": str(KEY), "lamports": 1}
    with pytest.raises(WireError, match="at most 1000"):
        replies.read_account(value, 1, limit_bytes=1_000)
    with pytest.raises(WireError, match="characters"):
        replies.read_account({**value, "data": ["A" * 4_000, "base64"]}, 1, limit_bytes=1_000)


def pack_without_size(data: bytes) -> bytes:
    """As validators do: the frame's head does not say how much comes."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("pack", [zstandard.compress, pack_without_size])
def test_an_account_whose_data_were_cut_off_is_refused_as_such(pack: Any) -> None:
    data = bytes(range(256)) * 600
    packed = pack(data)
    assert replies.unpack(packed, len(data)) == data
    assert replies.unpack(pack(b""), 0) == b""
    for length in (0, 1, 5, len(packed) // 2, len(packed) - 1):
        value = {"data": [base64.b64encode(packed[:length]).decode(), "base64+zstd"], "owner": str(KEY), "lamports": 1}
        with pytest.raises(WireError, match=r"account\.data: cannot be read as base64\+zstd: ."):
            replies.read_account(value, 1)
    with pytest.raises(zstandard.ZstdError, match=r"ends after \d+ bytes of data, before its end"):
        replies.unpack(packed[:-1], len(data))


json_values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["context", "value", "slot", "err", "data", "owner", "lamports"]), inner)
    ),
    max_leaves=12,
)


READERS: list[Any] = [
    replies.read_account_answer,
    lambda reply: replies.read_account(reply, 1),
    replies.reads(replies.U64, "x"),
    lambda reply: replies.read_key(reply, "x"),
    replies.read_fees,
    replies.read_blockhash,
    lambda reply: replies.read_statuses(reply, 1),
    replies.reads(replies.Answer[replies.SimulationReply], "x"),
]


@given(json_values)
def test_whatever_an_endpoint_answers_is_read_or_refused(reply: Any) -> None:
    for read in READERS:
        with suppress(PsycheError):
            read(reply)
