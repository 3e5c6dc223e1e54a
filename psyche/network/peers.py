"""The peer table: which peers are connected, and which are admitted.

A new connection is closed unless, within `hello_s`, both sides have exchanged hellos with their run and plan
and accepted each other.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from psyche.core.state.state import ZERO32
from psyche.errors import NetworkError, PsycheError
from psyche.network import hello
from psyche.network.addresses.table import AddressTable
from psyche.network.dialing import Dialer
from psyche.network.limits import NetworkLimits
from psyche.network.streams import HELLO, ByteStream, Lease, Signal, StreamPool, run_until
from psyche.network.unread import Standing
from psyche.wire.address_record import AddressRecord
from psyche.wire.peer_address import PeerAddress
from psyche.wire.ports import BootstrapPeer

_log: Final = logging.getLogger("psyche.network")
MAX_REFUSALS: Final = 256
FAREWELL_S: Final = 1.0
NO_PLACE: Final = "no place in the run yet"  # for a key without a slot; newcomers get one when they join


class Transport(Protocol):
    def addresses(self) -> tuple[str, ...]: ...

    async def dial(self, key: bytes, address: str) -> None:
        """Connect to a peer and prove its key.

        Raises:
            NetworkError: the peer is unreachable, has another key, or the address is not of this transport.
        """
        ...

    async def open_stream(self, key: bytes, protocol: str) -> ByteStream:
        """Open a new stream on an existing connection.

        Raises:
            NetworkError: there is no connection, or the peer does not speak the protocol.
        """
        ...

    async def disconnect(self, key: bytes) -> None:
        """Close all connections to a peer; never raises."""
        ...


@dataclass(slots=True, eq=False)
class Peer:
    key: bytes
    admitted: trio.Event = field(default_factory=trio.Event)
    gone: trio.Event = field(default_factory=trio.Event)
    pools: dict[str, StreamPool] = field(default_factory=dict)
    inbound: dict[str, int] = field(default_factory=dict)
    reason: str = ""  # the reason why it was not admitted


class PeerTable:
    def __init__(
        self, key: bytes, limits: NetworkLimits, transport: Transport, rng: random.Random, *,
        get_record: Callable[[], AddressRecord], get_unix: Callable[[], int], start_soon: Callable[..., None],
    ) -> None:  # fmt: skip
        self.changed = Signal()
        self.allowed: frozenset[bytes] = frozenset()
        self.members: frozenset[bytes] = frozenset()
        self.run_uid = ZERO32
        self.plan_hash = ZERO32
        self.refusals: dict[bytes, str] = {}
        self.on_admitted: Callable[[], None] = lambda: None
        self._key = key
        self._limits = limits
        self._transport = transport
        self._get_record = get_record
        self._start_soon = start_soon
        self._peers: dict[bytes, Peer] = {}
        self._addresses = AddressTable(key, get_unix)
        self._remembered: dict[bytes, AddressRecord] = {}  # of the last start
        self._missing_since: dict[bytes, float] = {}
        self.dialer = Dialer(key, limits, self._addresses, self, self._dial, rng, start_soon)

    # connected peers

    def connected(self) -> frozenset[bytes]:
        return frozenset(k for k, p in self._peers.items() if p.admitted.is_set())

    def count_streams(self) -> int:
        admitted = (peer for peer in self._peers.values() if peer.admitted.is_set())
        return max((count for peer in admitted for count in peer.inbound.values()), default=0)

    def is_connected(self, key: bytes) -> bool:
        peer = self._peers.get(key)
        return peer is not None and peer.admitted.is_set()

    def has_unreachable(self) -> bool:
        """Whether some allowed peer has been missing for longer than dialing may take."""
        latest = trio.current_time() - self._limits.relay_after_s
        return any(since <= latest for since in self._missing_since.values())

    def is_here(self, key: bytes) -> bool:
        return key in self._peers

    def is_wanted(self, key: bytes) -> bool:
        return key not in self._peers and key in self.allowed and self.run_uid != ZERO32

    def is_member(self, key: bytes) -> bool:
        return key in self.members

    def get(self, key: bytes) -> Peer | None:
        return self._peers.get(key)

    def get_standing(self, key: bytes) -> Standing:
        if not self.is_connected(key):
            return Standing.UNKNOWN
        return Standing.MEMBER if key in self.members else Standing.ALLOWED

    def lease(self, key: bytes, protocol: str) -> Lease:
        """Lease a stream to an admitted peer from its pool; entering raises NetworkError if none can be opened."""
        peer = self._peers.get(key)
        if peer is None or not peer.admitted.is_set():
            raise NetworkError(f"peer {key.hex()[:16]}: not connected")
        pool = peer.pools.get(protocol)
        if pool is None:
            pool = peer.pools[protocol] = StreamPool(
                lambda: self._open(key, protocol), self._limits.streams_per_peer, self._limits.idle_stream_s
            )
        return Lease(pool)

    async def _dial(self, key: bytes, address: str) -> None:
        await self._transport.dial(key, address)

    async def _open(self, key: bytes, protocol: str) -> ByteStream:
        with trio.move_on_after(self._limits.stream_open_s):
            return await self._transport.open_stream(key, protocol)
        raise NetworkError(f"peer {key.hex()[:16]}: no stream of {protocol} within {self._limits.stream_open_s:g} s")

    # settings by the node's owner

    def set_allowed(self, keys: frozenset[bytes]) -> None:
        new = keys - self.allowed
        now = trio.current_time()
        self._missing_since = {k: s for k, s in self._missing_since.items() if k in keys}
        self._missing_since.update((k, now) for k in new if k != self._key and not self.is_connected(k))
        self.allowed = keys
        self._addresses.forget(keys)
        self._recall()
        self.dialer.forget_unknown()
        for key in list(self._peers):
            if key not in keys:
                self.drop(key, "no place in the run any more")
        self.dialer.dial_now(new)

    def set_plan(self, run_uid: bytes, plan_hash: bytes) -> None:
        """Set run and plan; a new run disconnects all peers, a new plan is compared with every peer again."""
        if len(run_uid) != len(ZERO32) or len(plan_hash) != len(ZERO32):
            raise NetworkError("plan: run_uid and plan_hash must have 32 bytes")
        old_run, old_plan = self.run_uid, self.plan_hash
        self.run_uid, self.plan_hash = run_uid, plan_hash
        if run_uid != old_run:
            self._addresses.forget(())
            for key in list(self._peers):
                self.drop(key, "another run")
            self._recall()
            self.dialer.dial_now(self._addresses.get_keys())
        elif plan_hash != old_plan:
            for peer in self._peers.values():
                if peer.admitted.is_set():
                    self._start_soon(self._offer_hello, peer)

    def set_addresses(self, records: Sequence[AddressRecord]) -> None:
        new = self._addresses.set_book(records, self._peers.keys())
        self.dialer.forget_unknown()
        self.dialer.dial_now(new)

    def set_bootstrap(self, addresses: Sequence[PeerAddress]) -> None:
        """Set bootstrap addresses; they are dialed once their key is allowed, before its other addresses."""
        new = self._addresses.set_bootstrap(addresses)
        self.dialer.forget_unknown()
        self.dialer.dial_now(new)

    def learn_address(self, record: AddressRecord) -> bool:
        """Keep a peer's record of an allowed key (N2), and dial that key; return whether the record was new."""
        if record.p2p not in self.allowed or not self._addresses.learn(record):
            return False
        if record.p2p not in self._peers and self.dialer.get(record.p2p) is None:
            self.dialer.dial_now(frozenset({record.p2p}))  # otherwise its turn comes (N3): renewing records is cheap
        return True

    def remember(self, records: Sequence[AddressRecord]) -> None:
        """Take records of the last start, signed by their keys; each is learned while its key is allowed (N5)."""
        self._remembered = {record.p2p: record for record in records}
        self._recall()

    def _recall(self) -> None:
        for key in self._remembered.keys() & self.allowed:
            self.learn_address(self._remembered[key])

    def get_known(self) -> tuple[AddressRecord, ...]:
        return tuple(self._addresses.get_unexpired(self.allowed).values())

    def get_records(self, first: bytes) -> list[AddressRecord]:
        return self._addresses.get_records(first, self.allowed, self._get_record())

    def is_without_book(self) -> bool:
        """Whether the backend's book may be incomplete: it is empty, or bootstrap addresses are set."""
        return not self._addresses.has_book or bool(self._addresses.bootstrap)

    def get_wanted(self) -> frozenset[bytes]:
        """The allowed keys to ask peers for (N4): not in the backend's book, and missing or with an old record."""
        if not self.is_without_book():
            return frozenset()
        latest, connected = trio.current_time() - self._limits.wanted_after_s, self.connected()
        return frozenset(
            key
            for key in self.allowed - {self._key}
            if not self._addresses.is_in_book(key)
            and (self._addresses.is_old(key) if key in connected else self._missing_since.get(key, latest) <= latest)
        )

    def get_bootstrap(self) -> tuple[BootstrapPeer, ...]:
        return tuple(
            self._describe(key, address) for key, known in self._addresses.bootstrap.items() for address in known
        )

    def _describe(self, key: bytes, address: str) -> BootstrapPeer:
        redial = self.dialer.get(key)
        return BootstrapPeer(
            key=key,
            address=address,
            is_allowed=key in self.allowed,
            is_connected=self.is_connected(key),
            failure=redial.failure if redial is not None else "",
            next_dial_at=redial.next_at if redial is not None else 0.0,
        )

    # connections, reported by the transport

    def add_connection(self, key: bytes, *, is_dialer: bool) -> None:
        """Note a new connection to `key`; the side that dialed says hello first."""
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = Peer(key)
            self._start_soon(self._watch_hello, peer)
        if is_dialer and not peer.admitted.is_set():
            self._start_soon(self._offer_hello, peer)

    def remove_connections(self, key: bytes) -> None:
        peer = self._peers.pop(key, None)
        if peer is None:
            return
        peer.gone.set()
        if peer.admitted.is_set():
            self._note_missing(key)
            _log.info("peer %s is gone", key.hex()[:16])
        self.dialer.note_gone(key, was_connected=peer.admitted.is_set())
        self.changed.notify()

    def drop(self, key: bytes, reason: str) -> None:
        peer = self._peers.get(key)
        if peer is None:
            return
        level = logging.DEBUG if reason == NO_PLACE else logging.INFO  # newcomers knock until they have joined
        _log.log(level, "peer %s is closed: %s", key.hex()[:16], reason)
        if len(self.refusals) < MAX_REFUSALS or key in self.refusals:
            self.refusals[key] = reason
        if peer.admitted.is_set():
            peer.admitted = trio.Event()
            self._note_missing(key)
            self.changed.notify()
        self._start_soon(self._transport.disconnect, key)

    def _note_missing(self, key: bytes) -> None:
        if key in self.allowed:
            self._missing_since.setdefault(key, trio.current_time())

    # hello

    def _get_hello(self) -> hello.Hello:
        return hello.build_hello(self.run_uid, self.plan_hash, self._get_record())

    def _judge(self, key: bytes, theirs: hello.Hello) -> str:
        hello.check_hello(theirs, key)
        if key not in self.allowed:
            return NO_PLACE
        return hello.get_refusal(self._get_hello(), theirs)

    async def wait_for_hello(self, key: bytes) -> str:
        """Wait until hello with a peer succeeds or fails; return why it is not connected, or an empty text."""
        peer = self._peers[key]
        with trio.move_on_after(2 * self._limits.hello_s):
            await run_until(peer.gone, peer.admitted.wait)
        return "" if self.is_connected(key) else self.refusals.get(key, "")

    async def _watch_hello(self, peer: Peer) -> None:
        with trio.move_on_after(self._limits.hello_s):
            await run_until(peer.gone, peer.admitted.wait)
        if not peer.admitted.is_set() and self._peers.get(peer.key) is peer:
            self.drop(peer.key, peer.reason or self._get_silence())

    async def _offer_hello(self, peer: Peer) -> None:
        if self.run_uid == ZERO32 or peer.key not in self.allowed:
            self.drop(peer.key, NO_PLACE if self.run_uid != ZERO32 else "this node has no run yet")
            return

        async def offer() -> hello.Hello:
            stream = await self._transport.open_stream(peer.key, HELLO)
            return await hello.offer(stream, self._get_hello(), lambda theirs: self._judge(peer.key, theirs))

        await self._say_hello(peer, offer)

    async def answer_hello(self, key: bytes, stream: ByteStream) -> None:
        async def answer() -> hello.Hello:
            await trio.lowlevel.checkpoint()
            return await hello.answer(stream, self._get_hello, lambda theirs: self._judge(key, theirs))

        peer = self._peers.get(key)
        if peer is not None:
            await self._say_hello(peer, answer)

    async def _say_hello(self, peer: Peer, exchange: Callable[[], Awaitable[hello.Hello]]) -> None:
        with trio.move_on_after(self._limits.hello_s):
            try:
                theirs = await exchange()
            except PsycheError as error:
                peer.reason = str(error)
                if isinstance(error, hello.HelloRefused):  # the reason is on its way: let it arrive
                    with trio.move_on_after(FAREWELL_S):
                        await peer.gone.wait()
            else:
                self._admit(peer, theirs)
                return
        if self._peers.get(peer.key) is peer:
            self.drop(peer.key, peer.reason or self._get_silence())

    def _get_silence(self) -> str:
        return f"no hello within {self._limits.hello_s:g} s"

    def _admit(self, peer: Peer, theirs: hello.Hello) -> None:
        if self._peers.get(peer.key) is not peer or peer.key not in self.allowed:
            return
        self._addresses.learn(theirs.record)
        self.refusals.pop(peer.key, None)
        self._missing_since.pop(peer.key, None)
        if not peer.admitted.is_set():
            peer.admitted.set()
            self.dialer.note_connected(peer.key)
            _log.info("peer %s is connected", peer.key.hex()[:16])
            self.on_admitted()
            self.changed.notify()
