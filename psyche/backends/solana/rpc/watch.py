"""Following an account over all endpoints at once, so that the fastest one counts and no single one is needed."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import trio
from solders.pubkey import Pubkey

from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.interface.accounts import AccountKind
from psyche.backends.solana.member.link import Reading
from psyche.backends.solana.rpc import replies
from psyche.backends.solana.rpc.client import CONFIRMED, Rpc
from psyche.backends.solana.rpc.transport import RequestFailed, RpcRefused, Socket
from psyche.errors import ChainReplaced, WireError
from psyche.telemetry import types
from psyche.wire.nursery import open_plain_nursery

FIRST_WAIT_S: Final = 0.5  # before a socket is opened again
MAX_WAIT_S: Final = 30.0
SUBSCRIBE_S: Final = 5.0
POLL_S: Final = 10.0  # providers drop sockets without a word
FAST_POLL_S: Final = 1.0  # while there is no socket
_CONFIG: Final = {"encoding": "base64+zstd", "commitment": CONFIRMED}  # else subscriptions wait for `finalized`


@dataclass(slots=True, eq=False)
class _Feed:
    endpoint: Endpoint
    is_live: bool = False
    turned: trio.Event = field(default_factory=trio.Event)  # when it goes live, or is not any more
    newest: Reading | None = None  # not handed out yet
    slot: int = -1  # of the newest one ever
    is_told: bool = False  # whether a socket works, or why none does
    is_known: bool = False  # whether it leads to the chain, as far as it can have changed since it was asked
    foreign: str = ""  # the genesis hash of another chain that it leads to

    def turn(self, *, live: bool) -> None:
        self.is_live = live
        self.is_known &= live
        self.turned.set()
        self.turned = trio.Event()


class AccountWatch:
    """Follows one account. `run` must be running while `readings` is used.

    An endpoint that shows another owner or kind has failed; what claims to be larger than its size is not unpacked.
    """

    def __init__(self, rpc: Rpc, key: Pubkey, kind: AccountKind, size_bytes: int) -> None:
        self._rpc = rpc
        self._key = key
        self._kind = kind
        self._size_bytes = size_bytes
        self._feeds = [_Feed(endpoint) for endpoint in rpc.endpoints]
        self._arrived = trio.Event()
        self._genesis = ""

    async def run(self) -> None:
        async with open_plain_nursery() as nursery:
            for feed in self._feeds:
                nursery.start_soon(self._listen, feed)
                nursery.start_soon(self._poll, feed)

    async def readings(self) -> AsyncGenerator[Reading, None]:
        """Receive what the endpoints show: of each of them the newest that was not received yet."""
        while True:
            arrived = self._arrived
            if all(feed.foreign for feed in self._feeds):
                self._raise_replaced()
            for feed in self._feeds:
                reading, feed.newest = feed.newest, None
                if reading is not None:
                    yield reading
            await arrived.wait()

    def _show(self, feed: _Feed, slot: int, data: bytes) -> None:
        if slot < feed.slot:
            return  # an answer that a notification has overtaken
        feed.slot = slot
        feed.newest = Reading(feed.endpoint.name, slot, data)
        self._wake()

    def _wake(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()

    # --- sockets --------------------------------------------------------------------------------------------

    async def _listen(self, feed: _Feed) -> None:
        wait_s = FIRST_WAIT_S

        async def follow(socket: Socket) -> None:
            nonlocal wait_s
            await self._subscribe(feed, socket)
            wait_s = FIRST_WAIT_S
            while True:
                self._take(feed, await socket.receive())

        while True:
            reason = await self._rpc.transport.talk(feed.endpoint, follow)
            if not feed.is_told and not feed.is_live:
                self._rpc.sink.emit(types.WatchRefused(message=self._explain_polling(feed.endpoint, reason)))
            feed.is_told = True
            feed.turn(live=False)
            pause_s = wait_s * self._rpc.rng.uniform(0.5, 1.0)
            self._rpc.sink.emit(
                types.WatchLost(endpoint=feed.endpoint.name, reason=reason, again_in_s=round(pause_s, 3))
            )
            await trio.sleep(pause_s)
            wait_s = min(MAX_WAIT_S, wait_s * 2)

    def _explain_polling(self, endpoint: Endpoint, reason: str) -> str:
        host = urlsplit(endpoint.ws).netloc.rpartition("@")[2]  # the rest may hold a secret key
        return (
            f"no subscription at {host} ({reason}): this client asks {endpoint.name} for the run every "
            f"{FAST_POLL_S:.0f} s instead, which takes ten times as many calls; check --ws-rpc"
        )

    async def _subscribe(self, feed: _Feed, socket: Socket) -> None:
        with trio.fail_after(SUBSCRIBE_S):
            question = {"jsonrpc": "2.0", "id": 1, "method": "accountSubscribe", "params": [str(self._key), _CONFIG]}
            await socket.send(question)
            while (reply := await socket.receive()).get("id") != 1:
                pass
            if type(reply.get("result")) is not int:
                raise RequestFailed(f"accountSubscribe: {str(reply.get('error'))[:200]}")
            # Asked for once the subscription stands: a change between both would be missed otherwise. An endpoint that
            # refuses one question of two (429) would hardly ever get past this if each refusal cost the socket.
            await self._ask_often(feed)
        feed.turn(live=True)
        self._rpc.sink.emit(types.WatchBegun(endpoint=feed.endpoint.name))

    def _take(self, feed: _Feed, message: dict[str, Any]) -> None:
        match message:
            case {"method": "accountNotification", "params": {"result": result}}:
                try:
                    slot, data = self._read(result)
                except WireError as error:
                    raise RequestFailed(str(error)) from error
                self._show(feed, slot, data)
            case {"error": error}:
                raise RequestFailed(f"over WebSocket: {str(error)[:200]}")
            case _:
                pass  # notifications of other kinds are nobody's

    def _read(self, reply: Any) -> tuple[int, bytes]:
        slot, account = replies.read_account_answer(reply, limit_bytes=self._size_bytes)
        return slot, replies.get_data(self._kind, self._key, account) or b""

    # --- questions ------------------------------------------------------------------------------------------

    async def _ask(self, feed: _Feed) -> None:
        if not feed.is_known:
            await self._check_chain(feed)
        slot, data = await self._rpc.read_one(feed.endpoint, self._read, "getAccountInfo", str(self._key), _CONFIG)
        if slot < feed.slot:
            await self._check_chain(feed)  # another chain counts other slots
        self._show(feed, slot, data)

    async def _ask_often(self, feed: _Feed) -> None:
        """Ask an endpoint until it answers, unless it leads to another chain."""
        while True:
            try:
                await self._ask(feed)
            except RequestFailed as error:
                if feed.foreign or not error.is_passing:
                    raise
                await trio.sleep(FIRST_WAIT_S)
            else:
                return

    async def _check_chain(self, feed: _Feed) -> None:
        """Show nothing of an endpoint that leads to another chain than the first one that answered."""
        found = await self._rpc.read_one(feed.endpoint, replies.reads(str, "getGenesisHash"), "getGenesisHash")
        self._genesis = self._genesis or found
        known, feed.foreign = feed.foreign, "" if found == self._genesis else found
        feed.is_known = not feed.foreign
        if not feed.foreign:
            return
        reason = f"it leads to another chain: its genesis hash is {found}, and must be {self._genesis}"
        if not known:
            self._rpc.sink.emit(types.StateMismatch(reason=f"{feed.endpoint.name}: {reason}"))
        self._wake()
        raise RequestFailed(reason)

    def _raise_replaced(self) -> None:
        names = ", ".join(feed.endpoint.name for feed in self._feeds)
        raise ChainReplaced(
            f"the chain at {names} was replaced by another one: its genesis hash is {self._feeds[0].foreign}, and was "
            f"{self._genesis} when this client started. If the run is on the old chain, start that one again, or name "
            "it with --rpc; if its owner has created it again on the new one, start this client again"
        )

    async def _poll(self, feed: _Feed) -> None:
        """Ask for the account now and then, and at once and often while there is no socket."""
        wait_s = 0.0
        while True:
            turned = feed.turned
            with trio.move_on_after(wait_s or (POLL_S if feed.is_live else FAST_POLL_S)):
                await turned.wait()
                if feed.is_live:
                    continue  # it was asked for just now
            try:
                await self._ask(feed)
                wait_s = 0.0
            except (RequestFailed, RpcRefused):
                feed.is_known = False
                wait_s = min(MAX_WAIT_S, max(FAST_POLL_S, wait_s * 2))
