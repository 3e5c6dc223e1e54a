"""Requests to peers. Their answers are hints and always checked (W7, S7)."""

import random
from typing import Final, Protocol

import trio

from psyche.client.engine import actions as act
from psyche.errors import NetworkError
from psyche.telemetry import types
from psyche.wire.ports import Network, SyncRequest

SYNC_PEERS: Final = 4  # peers asked for announcements at a time
SYNC_TIMEOUT_S: Final = 5.0


class QueryContext(Protocol):
    def feed(self, event: act.EngineEvent) -> None: ...

    def take_answer(self, items: tuple[bytes, ...]) -> None: ...

    def log(self, event: types.Event) -> None: ...


class PeerQueries:
    """Sends requests to peers, each with a time-out of `SYNC_TIMEOUT_S`; `name` seeds the choice of peers."""

    def __init__(self, network: Network, context: QueryContext, name: str) -> None:
        self._network = network
        self._x = context
        self._name = name
        self._asked = 0

    async def ask_announcements(self, action: act.AskAnnouncements) -> None:
        """Ask a few random peers for the missing announcements of a round; each call draws anew."""
        peers = sorted(self._network.connected())
        request = SyncRequest("announcements", epoch=action.epoch, height=action.height, have=action.have)
        # only spreads the load, so the randomness need not be strong
        self._asked += 1
        spread = random.Random(f"{self._name}{action}{self._asked}")  # noqa: S311
        chosen = spread.sample(peers, min(SYNC_PEERS, len(peers)))
        async with trio.open_nursery() as nursery:
            for peer in chosen:
                nursery.start_soon(self._ask_one, peer, request)

    async def _ask_one(self, peer: bytes, request: SyncRequest) -> None:
        try:
            reply = await self._network.ask(peer, request, timeout_s=SYNC_TIMEOUT_S)
        except NetworkError:
            return
        if reply.items:
            self._x.take_answer(reply.items)

    async def ask_table(self, action: act.AskTable) -> None:
        """Ask for the signed results behind a results root; a failure is reported to the engine too (W7)."""
        items: tuple[bytes, ...] | None = None
        try:
            request = SyncRequest("table", epoch=action.epoch, height=action.height, key=action.root)
            reply = await self._network.ask(action.key, request, timeout_s=SYNC_TIMEOUT_S)
            items = reply.items if reply.found else None
        except NetworkError as error:
            self._x.log(types.Error(message=str(error)))
        self._x.feed(act.TableArrived(action.epoch, action.height, action.member, action.root, items))

    async def ask_weights(self, action: act.AskWeights) -> None:
        """Ask a member to keep a copy of its weights of a round; only a promise is reported to the engine (S7)."""
        request = SyncRequest("manifest", epoch=action.epoch, height=action.height)
        try:
            reply = await self._network.ask(action.key, request, timeout_s=SYNC_TIMEOUT_S)
        except NetworkError:
            return
        if reply.found:
            self._x.feed(act.WeightsPromised(action.epoch, action.height, action.member))
