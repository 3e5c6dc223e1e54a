"""Address exchange: a node whose backend does not know the peers' addresses asks its connected peers for them."""

import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from psyche.errors import NetworkError, WireError
from psyche.network.addresses.table import MAX_RECORDS, decode_address_record
from psyche.network.limits import NetworkLimits
from psyche.network.peers import PeerTable
from psyche.wire.ports import SyncReply, SyncRequest

_log: Final = logging.getLogger("psyche.network")
ASK_S: Final = 5.0
PAUSE_S: Final = 0.2  # least pause between questions; peers that connect together cause one

Ask = Callable[[bytes, SyncRequest, float], Awaitable[SyncReply]]


class AddressExchange:
    """Asks connected peers for address records, one request at a time, until every allowed peer is found."""

    def __init__(self, peers: PeerTable, limits: NetworkLimits, rng: random.Random, ask: Ask) -> None:
        self._peers = peers
        self._limits = limits
        self._rng = rng
        self._ask = ask
        self._liars: set[bytes] = set()  # sent records that no honest node keeps; not asked again in this run
        self._run_uid = b""

    async def run(self) -> None:
        """Ask after 1 s, doubling to 60 s while nothing new is learned; ask at once when a peer connects."""
        delay_s = self._limits.redial_first_s
        while True:
            is_better = await self._ask_someone()
            delay_s = self._limits.redial_first_s if is_better else min(2 * delay_s, self._limits.redial_longest_s)
            with trio.move_on_after(delay_s * (0.5 + 0.5 * self._rng.random())):
                await self._peers.changed.wait()
                delay_s = self._limits.redial_first_s
            await trio.sleep(PAUSE_S)

    async def _ask_someone(self) -> bool:
        if self._peers.run_uid != self._run_uid:
            self._run_uid = self._peers.run_uid
            self._liars.clear()
        wanted, connected = sorted(self._peers.get_wanted()), self._peers.connected()
        sources = sorted(connected - self._liars)
        if not wanted or not sources:
            return False
        key = self._rng.choice(wanted)
        peer = key if key in sources else self._rng.choice(sources)
        try:
            reply = await self._ask(peer, SyncRequest("addresses", key=key), ASK_S)
            return self._take(reply.items)
        except WireError as error:
            _log.info("peer %s is not asked for addresses again: %s", peer.hex()[:16], error)
            self._liars.add(peer)
        except NetworkError as error:
            _log.debug("addresses of %s: %s", peer.hex()[:16], error)
        return False

    def _take(self, items: tuple[bytes, ...]) -> bool:
        if len(items) > MAX_RECORDS:
            raise WireError(f"addresses: {len(items)} records, at most {MAX_RECORDS}")
        return sum(self._peers.learn_address(decode_address_record(raw)) for raw in items) > 0
