"""Whatever is asked, the chain answers and goes on."""

import base64
import json
from typing import Any

import base58
import pytest
import trio
import trio.testing
from box import NOW, encode, make_bank, open_box, pay
from httpx2.websockets import WebSocketUpgradeError
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.chain.chain_run import SOL, fund
from kits.tier import draw
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.localchain.bank import UPGRADEABLE
from psyche.localchain.chain import LocalChain
from psyche.localchain.rpc import web
from psyche.localchain.rpc.calls import MAX_BATCH, MAX_REQUEST_BYTES, answer_body
from psyche.localchain.rpc.hub import MAX_SUBSCRIPTIONS, SubscriptionHub
from psyche.localchain.rpc.methods import make_methods
from psyche.localchain.rpc.parsed_accounts import SYSVAR, parse_account
from psyche.localchain.rpc.parsed_instructions import PROGRAMS as INSTRUCTIONS
from psyche.localchain.rpc.parsed_instructions import parse_instruction
from psyche.localchain.tokens import TOKEN, TOKEN_2022
from psyche.wire import web as serving


class Silent:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def put(self, text: bytes) -> None:
        self.told.append(text)


BANK = make_bank()
PAYER = fund(BANK)
PAID = pay(BANK, PAYER, Keypair().pubkey())
BANK.execute(PAID)
LISTENER = Silent()
HUB = SubscriptionHub(BANK)
METHODS = {**make_methods(BANK), **HUB.make_methods(LISTENER)}
BANK.advance(NOW)

TEXTS = [
    str(PAYER.pubkey()),
    str(COORDINATOR),
    str(TOKEN),
    str(PAID.signatures[0]),
    str(BANK.newest_hash),
    encode(PAID),
    "all",
    "",
    "1" * 32,
    "1" * 40,
    "1" * 500,
    "\ud800",
    "Ω",
]
NAMES = [
    "encoding", "commitment", "minContextSlot", "dataSlice", "filters", "memcmp", "dataSize", "offset", "length",
    "bytes", "withContext", "limit", "before", "until", "mentions", "mint", "programId", "accounts", "addresses",
    "sigVerify", "replaceRecentBlockhash", "skipPreflight", "maxSupportedTransactionVersion",
]  # fmt: skip
CHOICES = ["base58", "base64", "base64+zstd", "jsonParsed", "json", "processed", "confirmed", "finalized", "binary"]
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(0, 20), st.floats(allow_nan=False),
    st.sampled_from(TEXTS[:-2]), st.sampled_from(CHOICES), st.text(max_size=20),
)  # fmt: skip
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)),
    max_leaves=8,
)


def ask(method: str, params: Any) -> dict[str, Any]:
    reply = answer_body(METHODS, json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    assert reply is not None
    return json.loads(reply)


@settings(max_examples=draw(600), deadline=None)
@given(st.sampled_from(sorted(METHODS)), st.one_of(st.lists(VALUES, max_size=3), VALUES))
def test_any_parameters_give_a_result_or_an_error_that_says_why(method: str, params: Any) -> None:
    reply = ask(method, params)
    HUB.settle()
    HUB.forget(LISTENER)
    LISTENER.told.clear()
    assert ("result" in reply) != ("error" in reply)
    if "error" in reply:
        assert reply["error"]["code"] != -32603 or reply["error"]["message"].startswith("the faucet")


@settings(max_examples=draw(200), deadline=None)
@given(st.one_of(st.binary(max_size=200), VALUES.map(lambda value: json.dumps(value).encode())))
def test_any_bytes_are_answered(body: bytes) -> None:
    reply = answer_body(METHODS, body)
    assert reply is None or json.loads(reply)


@settings(max_examples=draw(200), deadline=None)
@given(st.data())
def test_any_change_of_a_transaction_is_answered(data: st.DataObject) -> None:
    raw = bytearray(bytes(pay(BANK, PAYER, Keypair().pubkey(), 10**6)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    text = base64.b64encode(raw).decode()
    for method, options in (("simulateTransaction", {}), ("sendTransaction", {"skipPreflight": True})):
        reply = ask(method, [text, {"encoding": "base64", **options}])
        assert reply.get("error", {}).get("code") != -32603, reply


OWNERS = st.sampled_from([TOKEN, TOKEN_2022, UPGRADEABLE, SYSVAR, COORDINATOR])
LENGTHS = st.sampled_from([0, 4, 12, 36, 40, 45, 82, 165, 166, 170, 355])


@settings(max_examples=draw(500), deadline=None)
@given(OWNERS, LENGTHS, st.data())
def test_any_account_is_told_or_left_as_bytes(owner: Pubkey, length: int, data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=length, max_size=length)) if length else b""
    small = bytes(byte % 3 for byte in raw)  # more of it has a meaning
    for content in (raw, small):
        told = parse_account(Account(SOL, content, owner), lambda _key: Account(SOL, small[:82], TOKEN))
        assert told is None or told["space"] == length


@settings(max_examples=draw(500), deadline=None)
@given(st.sampled_from(sorted(INSTRUCTIONS)), st.integers(0, 24), st.binary(max_size=80), st.integers(0, 12))
def test_any_instruction_is_told_or_left_as_bytes(program: str, kind: int, body: bytes, count: int) -> None:
    for head in (bytes([kind]), bytes([kind, 0, 0, 0])):
        shown = {"programIdIndex": 0, "accounts": list(range(count)), "data": base58.b58encode(head + body).decode()}
        told = parse_instruction({**shown, "stackHeight": 1}, [Pubkey.from_string(program), *[COORDINATOR] * 12])
        assert ("parsed" in told) != ("accounts" in told)


def test_deep_nesting_is_answered() -> None:
    reply = answer_body(METHODS, b"[" * 20_000)
    assert reply is not None
    assert json.loads(reply)["error"]["code"] == -32700


def test_a_call_without_id_gets_no_answer() -> None:
    assert answer_body(METHODS, b'{"jsonrpc":"2.0","method":"ping"}') is None
    assert answer_body(METHODS, b'[{"jsonrpc":"2.0","method":"ping"}]') is None


def test_a_batch_is_answered_in_its_order() -> None:
    calls = [{"jsonrpc": "2.0", "id": number, "method": "getSlot"} for number in (3, 1, 2)]
    reply = answer_body(METHODS, json.dumps([*calls, {"jsonrpc": "2.0", "method": "ping"}, 7]))
    assert reply is not None
    assert [one["id"] for one in json.loads(reply)] == [3, 1, 2, None]


@pytest.mark.parametrize("count", [0, MAX_BATCH + 1])
def test_a_batch_of_none_or_too_many_is_refused(count: int) -> None:
    reply = answer_body(METHODS, json.dumps([{"id": 1, "method": "getSlot"}] * count))
    assert reply is not None
    assert json.loads(reply)["error"]["code"] == -32600


@pytest.mark.parametrize("method", ["sendTransaction", "simulateTransaction"])
def test_a_transaction_without_signatures_is_refused_as_malformed(method: str) -> None:
    error = ask(method, ["1" * 40])["error"]  # 40 zero bytes: a message of no signatures and no accounts
    assert error["code"] == -32602
    assert error["message"].startswith("invalid transaction: Transaction failed to sanitize")


def test_a_connection_has_a_limited_number_of_subscriptions() -> None:
    for _ in range(MAX_SUBSCRIPTIONS):
        assert "result" in ask("accountSubscribe", [str(Keypair().pubkey())])
    assert "at most" in ask("accountSubscribe", [str(Keypair().pubkey())])["error"]["message"]
    HUB.forget(LISTENER)


async def test_a_request_that_is_too_large_is_refused() -> None:
    async with open_box() as (chain, caller):
        reply = await caller.http.post(chain.http, content=b" " * (MAX_REQUEST_BYTES + 1))
        assert reply.status_code == 413
        assert (await caller.call("getHealth")) == "ok"


async def test_each_port_says_what_it_is_for() -> None:
    async with open_box() as (chain, caller):
        reply = await caller.http.get(chain.ws.replace("ws:", "http:"))
        assert reply.status_code == 405
        assert "WebSocket" in reply.text
        with pytest.raises(WebSocketUpgradeError):
            async with caller.http.websocket(chain.http.replace("http:", "ws:")):
                pass


async def open_deaf(chain: LocalChain, method: str, *params: Any) -> trio.SocketStream:
    """A subscriber that reads no further than its subscription's number."""
    deaf = await trio.open_tcp_stream("127.0.0.1", int(chain.ws.rpartition(":")[2]))
    request = (
        "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    await deaf.send_all(request.encode())
    assert b"101" in await deaf.receive_some(4_096)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    await deaf.send_all(b"\x81\xfe" + len(body).to_bytes(2, "big") + bytes(4) + body)
    while b"result" not in await deaf.receive_some(4_096):
        pass
    return deaf


async def test_a_subscriber_whose_queue_is_full_is_cut_off_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web, "MAX_QUEUED", 8)
    async with open_box() as (chain, caller):
        deaf = await open_deaf(chain, "slotSubscribe", *([""] * 60))
        for _ in range(20):  # no task runs between these, so nothing is sent meanwhile
            chain.bank.advance(NOW)
        raw = b""
        with trio.fail_after(120):
            while b"too many notifications" not in raw:
                part = await deaf.receive_some(65_536)
                assert part
                raw += part
        async with caller.listen() as alert:
            await alert.call("slotSubscribe")
            chain.bank.advance(NOW)
            assert (await alert.receive())["method"] == "slotNotification"


async def test_a_subscriber_that_takes_nothing_does_not_hold_up_the_end() -> None:
    with trio.fail_after(serving.SEND_TIMEOUT_S / 2):
        async with open_box() as (chain, _):
            key = Keypair().pubkey()
            deaf = await open_deaf(chain, "accountSubscribe", str(key), {"encoding": "base64"})
            for _ in range(4):
                chain.bank.put_account(key, Account(SOL, bytes(5 << 20), COORDINATOR))
                chain.bank.advance(NOW)
                await trio.testing.wait_all_tasks_blocked()
    await deaf.aclose()


async def open_bare(chain: LocalChain, text: bytes = b"") -> trio.SocketStream:
    """A connection to the port for calls."""
    bare = await trio.open_tcp_stream("127.0.0.1", int(chain.http.rpartition(":")[2]))
    await bare.send_all(text)
    return bare


ASKED = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("text", [b"", b"POST / HTTP", ASKED], ids=["nothing", "a part", "a call"])
async def test_connections_that_end_leave_their_places(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 4)
    async with open_box() as (chain, caller):
        with trio.fail_after(120):
            for _ in range(12):
                bare = await open_bare(chain, text)
                while text == ASKED and b"ok" not in await bare.receive_some():
                    pass
                await bare.aclose()
                await trio.testing.wait_all_tasks_blocked(0.02)
            assert await caller.call("getHealth") == "ok"


@pytest.mark.parametrize("text", [b"", b"POST / HTTP"])
async def test_a_connection_without_a_request_is_closed_soon(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving.ServedConnection, "_idle_s", 0.1)
    async with open_box() as (chain, _):
        bare = await open_bare(chain, text)
        with trio.fail_after(120):
            assert await bare.receive_some() == b""


async def test_a_request_whose_body_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "REQUEST_S", 0.1)
    async with open_box() as (chain, _):
        bare = await open_bare(chain, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        with trio.fail_after(120):
            assert b" 408 " in await bare.receive_some()


async def test_airdrops_beyond_the_faucet_are_refused_in_words() -> None:
    async with open_box() as (_, caller):
        error = await caller.refuse("requestAirdrop", str(Keypair().pubkey()), 2**64 - 1)
        assert "ask for fewer" in error["message"]
        assert await caller.call("requestAirdrop", str(Keypair().pubkey()), SOL)
