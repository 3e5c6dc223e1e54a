"""Several endpoints as one: each request goes to them in their order until one has answered."""

import random
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import base58
import httpx2
import msgspec
import trio
from solders.pubkey import Pubkey

from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.interface.accounts import AccountKind
from psyche.backends.solana.rpc import replies
from psyche.backends.solana.rpc.http import HttpTransport
from psyche.backends.solana.rpc.replies import U64, Answer, Blockhash, ChainAccount, reads
from psyche.backends.solana.rpc.transport import RequestFailed, Transport, ask_endpoint
from psyche.errors import BackendError, WireError
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink, NoEvents
from psyche.wire.nursery import open_plain_nursery

T = TypeVar("T")
TRIES: Final = 3  # at each endpoint
FIRST_WAIT_S: Final = 0.5
WAIT_FACTOR: Final = 1.5
MAX_WAIT_S: Final = 10.0
REST_S: Final = 30.0  # an endpoint that failed is asked after the others for this long
GRACE_S: Final = 0.5  # the other endpoints have this long after the first answer
CONFIRMED: Final = "confirmed"
CLOCK_ADDRESS: Final = Pubkey.from_string("SysvarC1ock11111111111111111111111111111111")
MAX_KEYS: Final = 100  # of one getMultipleAccounts


class NoEndpoint(BackendError):
    """No endpoint has answered; the text names each one's reason."""


def _explain_silence(method: str, reasons: Mapping[Endpoint, RequestFailed]) -> NoEndpoint:
    """The error for endpoints of which none has answered, with the way out."""
    told = "; ".join(f"{one.name}: {error}" for one, error in reasons.items())
    closed = next((one for one, error in reasons.items() if one.is_here and error.is_closed), None)
    if closed is not None and len(reasons) == 1:
        return NoEndpoint(closed.describe_start())
    way_out = "check --rpc and your connection" if closed is None else closed.describe_start()
    return NoEndpoint(f"no RPC endpoint answers {method} ({told}); {way_out}")


class Rpc:
    """The chain over RPC endpoints. Reads are of commitment `confirmed`. May be used by several tasks.

    Every method asks an endpoint up to three times, waiting longer each time, then the next one. It raises
    `NoEndpoint` if none has answered, and `RpcRefused` for a request that every endpoint would refuse.
    """

    def __init__(
        self, endpoints: Sequence[Endpoint], transport: Transport, *, sink: EventSink | None = None,
        rng: random.Random | None = None,
    ) -> None:  # fmt: skip
        assert endpoints, "a cluster has an endpoint"
        self.endpoints = tuple(endpoints)
        self.transport = transport
        self.sink = sink or NoEvents()
        self.rng = rng or random.SystemRandom()
        self._resting: dict[Endpoint, float] = {}  # until when, on trio's clock
        self._lost: set[Endpoint] = set()

    async def call(self, method: str, *params: Any) -> Any:
        return await self.read(lambda result: result, method, *params)

    async def read(self, convert: Callable[[Any], T], method: str, *params: Any) -> T:
        """Ask, and convert the result; an endpoint whose answer `convert` refuses with WireError has failed."""
        tries = dict.fromkeys(self.order(), 0)
        reasons: dict[Endpoint, RequestFailed] = {}
        wait_s = FIRST_WAIT_S
        while waiting := [one for one, count in tries.items() if count < TRIES]:
            if any(tries.values()):
                await trio.sleep(wait_s * self.rng.uniform(0.5, 1.0))
                wait_s = min(wait_s * WAIT_FACTOR, MAX_WAIT_S)
            for endpoint in waiting:
                try:
                    return await self._try_often(tries, endpoint, convert, method, params)
                except RequestFailed as error:
                    reasons[endpoint] = error
                    self._rest(endpoint, str(error))
        raise _explain_silence(method, reasons)

    async def _try_often(
        self, tries: dict[Endpoint, int], endpoint: Endpoint, convert: Callable[[Any], T], method: str, params: Any
    ) -> T:
        wait_s = FIRST_WAIT_S
        while True:
            tries[endpoint] += 1
            try:
                return await self.read_one(endpoint, convert, method, *params)
            except RequestFailed as error:
                if tries[endpoint] >= TRIES or not error.is_passing:
                    raise
                asked_s = min(error.wait_s, MAX_WAIT_S)
                if asked_s > wait_s and len(self.endpoints) > 1:
                    raise
                await trio.sleep(max(asked_s, wait_s * self.rng.uniform(0.5, 1.0)))
                wait_s = min(wait_s * WAIT_FACTOR, MAX_WAIT_S)

    async def read_one(self, endpoint: Endpoint, convert: Callable[[Any], T], method: str, *params: Any) -> T:
        """Ask one endpoint, once."""
        try:
            found = convert(await ask_endpoint(self.transport, endpoint, method, params))
        except WireError as error:
            raise RequestFailed(str(error), is_passing=False) from error
        self._resting.pop(endpoint, None)
        if endpoint in self._lost:
            self._lost.discard(endpoint)
            self.sink.emit(types.EndpointBack(endpoint=endpoint.name))
        return found

    async def read_all(
        self, convert: Callable[[Any], T], method: str, *params: Any, grace_s: float = GRACE_S
    ) -> list[T]:
        """Ask all endpoints at once, once; return what arrived, after the first answer and a time for the others."""
        found: list[T] = []
        reasons: dict[Endpoint, RequestFailed] = {}
        async with open_plain_nursery() as nursery:

            async def ask_one(endpoint: Endpoint) -> None:
                try:
                    found.append(await self.read_one(endpoint, convert, method, *params))
                except RequestFailed as error:
                    reasons[endpoint] = error
                    self._rest(endpoint, str(error))
                else:
                    deadline = trio.current_time() + grace_s
                    nursery.cancel_scope.deadline = min(nursery.cancel_scope.deadline, deadline)
                if len(found) + len(reasons) == len(self.endpoints):
                    nursery.cancel_scope.cancel()

            for endpoint in self.endpoints:
                nursery.start_soon(ask_one, endpoint)
        if not found:
            raise _explain_silence(method, reasons)
        return found

    def order(self) -> list[Endpoint]:
        now = trio.current_time()
        return sorted(self.endpoints, key=lambda one: self._resting.get(one, 0.0) > now)

    def is_resting(self, endpoint: Endpoint) -> bool:
        return self._resting.get(endpoint, 0.0) > trio.current_time()

    def _rest(self, endpoint: Endpoint, reason: str) -> None:
        self._resting[endpoint] = trio.current_time() + REST_S
        if endpoint not in self._lost:
            self._lost.add(endpoint)
            self.sink.emit(types.EndpointLost(endpoint=endpoint.name, reason=reason))

    # --- the chain ------------------------------------------------------------------------------------------

    async def get_account(self, key: Pubkey, min_slot: int | None = None) -> ChainAccount | None:
        config = {"encoding": "base64+zstd", "commitment": CONFIRMED, **_from_slot(min_slot)}
        return await self.read(_read_one_account, "getAccountInfo", str(key), config)

    async def get_accounts(self, keys: Sequence[Pubkey]) -> list[ChainAccount | None]:
        """Several accounts, None for each that is not there; those of one hundred are of one slot."""
        found: list[ChainAccount | None] = []
        for start in range(0, len(keys), MAX_KEYS):
            part = [str(key) for key in keys[start : start + MAX_KEYS]]
            config = {"encoding": "base64+zstd", "commitment": CONFIRMED}
            found += await self.read(partial(_read_many, len(part)), "getMultipleAccounts", part, config)
        return found

    async def find_accounts(
        self, kind: AccountKind, contents: Mapping[int, bytes] | None = None
    ) -> list[tuple[Pubkey, ChainAccount]]:
        wanted = {0: kind.discriminator, **(contents or {})}
        filters = [{"memcmp": {"offset": at, "bytes": base58.b58encode(raw).decode()}} for at, raw in wanted.items()]
        config = {"encoding": "base64+zstd", "commitment": CONFIRMED, "filters": filters, "withContext": True}
        return await self.read(partial(_read_owned, kind), "getProgramAccounts", str(kind.owner), config)

    async def get_balance(self, key: Pubkey) -> int:
        read = reads(Answer[U64], "getBalance")
        return (await self.read(read, "getBalance", str(key), {"commitment": CONFIRMED})).value

    async def get_slot(self) -> int:
        return await self.read(reads(U64, "getSlot"), "getSlot", {"commitment": CONFIRMED})

    async def get_newest_slot(self) -> int:
        return max(await self.read_all(reads(U64, "getSlot"), "getSlot", {"commitment": CONFIRMED}))

    async def get_clock(self) -> tuple[int, int]:
        """Slot and unix time of the chain, of the most advanced endpoint."""
        config = {"encoding": "base64", "commitment": CONFIRMED}
        return max(await self.read_all(_read_clock_account, "getAccountInfo", str(CLOCK_ADDRESS), config))

    async def get_deposit(self, size_bytes: int) -> int:
        method = "getMinimumBalanceForRentExemption"
        return await self.read(reads(U64, method), method, size_bytes)

    async def get_genesis_hash(self) -> str:
        return await self.read(reads(str, "getGenesisHash"), "getGenesisHash")

    async def get_blockhash(self, min_slot: int | None = None) -> Blockhash:
        config = {"commitment": CONFIRMED, **_from_slot(min_slot)}
        return await self.read(replies.read_blockhash, "getLatestBlockhash", config)


@asynccontextmanager
async def open_rpc(endpoints: Sequence[Endpoint], *, sink: EventSink | None = None) -> AsyncGenerator[Rpc]:
    # A WebSocket cannot begin on a connection that has agreed on HTTP/2.
    async with (
        httpx2.AsyncClient(verify=_trust(endpoints), http2=True, timeout=None, follow_redirects=False) as http,
        httpx2.AsyncClient(verify=_trust(endpoints), http2=False, timeout=None, follow_redirects=False) as sockets,
    ):
        yield Rpc(endpoints, HttpTransport(http, sockets), sink=sink)


def _trust(endpoints: Sequence[Endpoint]) -> ssl.SSLContext:
    """Whom to trust: the system's authorities, which take long to read; nobody, if no endpoint has TLS."""
    if any(one.http.startswith("https:") or one.ws.startswith("wss:") for one in endpoints):
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _from_slot(slot: int | None) -> dict[str, int]:
    return {} if slot is None else {"minContextSlot": slot}


def _read_one_account(reply: Any) -> ChainAccount | None:
    return replies.read_account_answer(reply)[1]


def _read_many(count: int, reply: Any) -> list[ChainAccount | None]:
    answer: Answer[list[Any]] = replies.read_as(Answer[list[Any]], reply, "getMultipleAccounts")
    if len(answer.value) != count:
        raise WireError(f"getMultipleAccounts: no {count} accounts")
    return [replies.read_account(value, answer.context.slot) for value in answer.value]


class _Entry(msgspec.Struct):
    pubkey: str
    account: Any


def _read_owned(kind: AccountKind, reply: Any) -> list[tuple[Pubkey, ChainAccount]]:
    answer: Answer[list[_Entry]] = replies.read_as(Answer[list[_Entry]], reply, "getProgramAccounts")
    found: list[tuple[Pubkey, ChainAccount]] = []
    for entry in answer.value:
        account = replies.read_account(entry.account, answer.context.slot)
        if account is None:
            raise WireError("getProgramAccounts: an entry without account")
        key = replies.read_key(entry.pubkey, "pubkey")
        kind.check(key, account.owner, account.data)
        found.append((key, account))
    return found


def _read_clock_account(reply: Any) -> tuple[int, int]:
    account = _read_one_account(reply)
    if account is None:
        raise WireError("Clock: there is no such account")
    return replies.read_clock(account.data)
