"""The libp2p node: the node of `base.py` over TCP, Noise, yamux and gossipsub.

async with open_node(identity, "0.0.0.0", 0, folder) as node:
    node.set_plan(run_uid, plan_hash)
    node.set_allowed(keys)
    node.set_addresses(records)
"""

import functools
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio
from libp2p.abc import INotifee
from libp2p.crypto.ed25519 import Ed25519PublicKey
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from psyche.core.state.state import ZERO32
from psyche.errors import NetworkError
from psyche.network import safe
from psyche.network.addresses.kept import FILE_NAME, KeptAddresses
from psyche.network.base import CLOSE_S, BaseNode
from psyche.network.limits import NetworkLimits
from psyche.network.listening import build_address, get_reachable_addresses, lock_port
from psyche.network.streams import PROTOCOLS, Signal, StreamError
from psyche.network.unread import Standing, UnreadBudget, give_memory_back
from psyche.wire.crypto import Identity
from psyche.wire.nursery import open_plain_nursery

_log: Final = logging.getLogger("psyche.network")
WRITE_BYTES: Final = 1 << 20  # smaller writes cost more CPU, larger ones gain nothing
GOODBYE_S: Final = 0.8
TRIM_S: Final = 5.0
TRIM_BYTES: Final = 32 << 20  # held at once and mostly read since: freed memory worth returning to the system
DIALABLE: Final = frozenset({"ip4", "ip6", "dns", "dns4", "dns6"})


def get_peer_id(key: bytes) -> ID:
    try:
        return ID.from_pubkey(Ed25519PublicKey.from_bytes(key))
    except Exception as error:
        raise NetworkError(f"peer {key.hex()[:16]}: not an Ed25519 key") from error


def get_key(peer_id: ID) -> bytes:
    try:
        public = peer_id.extract_public_key()
        if isinstance(public, Ed25519PublicKey):
            return public.to_bytes()
    except Exception as error:
        raise NetworkError("peer id: not readable") from error
    raise NetworkError("peer id: not of an Ed25519 key")


class _Stream:
    """A libp2p stream as a `ByteStream`; converts libp2p's errors into `StreamError`."""

    def __init__(self, stream: Any, limits: NetworkLimits) -> None:
        self._stream = stream
        self._limits = limits

    async def read_some(self, max_bytes: int) -> bytes:
        try:
            data = await self._stream.read(max_bytes)
        except Exception as error:
            raise StreamError(f"stream: {type(error).__name__} while reading") from error
        if not data:
            raise StreamError("stream: at its end")
        return data

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), WRITE_BYTES):
            part = data if len(data) <= WRITE_BYTES else data[start : start + WRITE_BYTES]
            await self._write_part(part)
            await trio.lowlevel.checkpoint_if_cancelled()

    async def _write_part(self, part: bytes) -> None:
        """Write a part, shielded: a frame cancelled half-way would break the encryption of the whole connection."""
        shield = trio.CancelScope(shield=True, deadline=trio.current_time() + self._limits.write_s)  # pyright: ignore[reportCallIssue]
        with shield:
            try:
                await self._stream.write(part)
            except Exception as error:
                raise StreamError(f"stream: {type(error).__name__} while writing") from error
        if shield.cancelled_caught:
            raise StreamError(f"stream: the peer accepted no data within {self._limits.write_s:g} s")

    async def close(self) -> None:
        try:
            with trio.move_on_after(CLOSE_S):
                await self._stream.close_write()
        except Exception as error:  # noqa: BLE001 - whatever libp2p raises, nothing more will be written
            _log.debug("close: %s", type(error).__name__)

    async def reset(self) -> None:
        await safe.reset_stream(self._stream)


class _Notifee(INotifee):
    def __init__(self, transport: "_LibP2PTransport") -> None:
        self._transport = transport

    async def connected(self, network: Any, conn: Any) -> None:  # noqa: ARG002
        self._transport.add_connection(conn)

    async def disconnected(self, network: Any, conn: Any) -> None:  # noqa: ARG002
        self._transport.remove_connection(conn)

    async def _ignore(self, *_event: Any, **_named: Any) -> None:
        """The node follows connections only."""

    opened_stream = closed_stream = listen = listen_close = _ignore


class _LibP2PTransport:
    def __init__(self, host: Any, addresses: tuple[str, ...], limits: NetworkLimits, unread: UnreadBudget) -> None:
        self.node: P2PNode
        unread.get_standing = self._get_standing
        unread.on_cut = self._close_greedy
        self._host = host
        self._swarm: Any = host.get_network()
        self._addresses = addresses
        self._limits = limits
        self._unread = unread
        self._swarm.register_notifee(_Notifee(self))
        for protocol in PROTOCOLS:
            host.set_stream_handler(TProtocol(protocol), functools.partial(self._handle, protocol))

    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    async def dial(self, key: bytes, address: str) -> None:
        peer_id = get_peer_id(key)
        if self._swarm.get_connections(peer_id):
            return
        if self._unread.is_resting(peer_id):
            raise NetworkError(f"peer {key.hex()[:16]} at {address}: cut less than {self._limits.cut_rest_s:g} s ago")
        try:
            await self._swarm.dial_addr(parse_address(address), peer_id)
        except NetworkError:
            raise
        except Exception as error:
            reason = safe.describe_connection_failure(error)
            if reason.startswith(safe.NOT_SECURE):
                _log.info("peer %s at %s: %s", key.hex()[:16], address, reason)
            raise NetworkError(f"peer {key.hex()[:16]} at {address}: {reason}") from error

    async def open_stream(self, key: bytes, protocol: str) -> _Stream:
        peer_id = get_peer_id(key)
        if not self._swarm.get_connections(peer_id):
            raise NetworkError(f"peer {key.hex()[:16]}: not connected")
        try:
            stream = await self._host.new_stream(peer_id, [TProtocol(protocol)])
        except Exception as error:
            raise NetworkError(f"peer {key.hex()[:16]}: no stream of {protocol}: {type(error).__name__}") from error
        return _Stream(stream, self._limits)

    async def disconnect(self, key: bytes) -> None:
        await self.close_peer(get_peer_id(key))
        if not self._swarm.get_connections(get_peer_id(key)):  # one that it never took up is not reported as gone
            self.node.peers.remove_connections(key)

    async def close_peer(self, peer_id: ID) -> None:
        """Close all connections to a peer; never raises and waits only briefly.

        If a connection's writer is stuck, its socket is closed without goodbye.
        """
        connections = list(self._swarm.get_connections(peer_id))
        if not await self._try_close(self._swarm.close_peer, peer_id):
            await self._try_close(self._abort, connections)
            await self._try_close(self._swarm.close_peer, peer_id)

    async def _try_close(self, close: Callable[[Any], Awaitable[None]], what: object) -> bool:
        try:
            with trio.move_on_after(GOODBYE_S):
                await close(what)
                return True
        except Exception as error:  # noqa: BLE001 - it is gone either way
            _log.debug("close of a peer: %s", type(error).__name__)
        return False

    async def _abort(self, connections: list[Any]) -> None:
        for connection in connections:
            await connection.muxed_conn.secured_conn.close()

    async def run(self, listen: Multiaddr, pubsub: Any, router: Any, stop: trio.Event, task_status: Any) -> None:
        """Run libp2p's own tasks, which outlive the node's; errors while stopping are only logged."""
        try:
            async with (
                self._host.run(listen_addrs=[listen]),
                background_trio_service(pubsub),
                background_trio_service(router),
            ):
                try:
                    await pubsub.wait_until_ready()
                    if not self._swarm.listeners:
                        raise NetworkError(f"listen on {listen}: failed")
                    task_status.started()
                    await self._trim_until(stop, router)
                finally:
                    shield = trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S)  # pyright: ignore[reportCallIssue]
                    with shield:
                        await self.close_all()
        except* Exception as group:
            if not stop.is_set():
                raise NetworkError("libp2p ended") from group
            _log.debug("libp2p while stopping: %s", [type(e).__name__ for e in group.exceptions])

    async def _trim_until(self, stop: trio.Event, router: Any) -> None:
        while not stop.is_set():
            with trio.move_on_after(TRIM_S):
                await stop.wait()
            # A list that only the adaptive mode trims grows by a float for every message.
            router.recent_message_deliveries.clear()
            if self._unread.is_worth_trimming(TRIM_BYTES):
                await trio.to_thread.run_sync(give_memory_back)

    async def close_all(self) -> None:
        """Stop listening, then close all connections at once: one after another would take seconds."""
        for listener in list(self._swarm.listeners.values()):
            await listener.close()
        async with trio.open_nursery() as nursery:
            for peer_id in list(self._swarm.connections):
                nursery.start_soon(self.close_peer, peer_id)
        await self._host.close()

    def add_connection(self, conn: Any) -> None:
        is_dialer = str(conn.direction).lower().endswith("outbound")
        try:
            key = get_key(conn.muxed_conn.peer_id)
        except NetworkError:
            self.node.start_soon(self.close_peer, conn.muxed_conn.peer_id)
            return
        self.node.peers.add_connection(key, is_dialer=is_dialer)

    def _get_standing(self, peer_id: ID) -> Standing:
        return self.node.peers.get_standing(get_key(peer_id))

    def _close_greedy(self, peer_id: ID, reason: str) -> None:
        key = get_key(peer_id)
        if self.node.peers.get(key) is None:  # the swarm has not reported the connection yet
            self.node.start_soon(self.close_peer, peer_id)
        self.node.peers.drop(key, reason)

    def remove_connection(self, conn: Any) -> None:
        conn.muxed_conn.stream_buffers.account.close()
        peer_id = conn.muxed_conn.peer_id
        if any(not c.is_closed for c in self._swarm.get_connections(peer_id)):
            return
        try:
            self.node.peers.remove_connections(get_key(peer_id))
        except NetworkError:
            return

    async def _handle(self, protocol: str, stream: Any) -> None:
        key = get_key(stream.muxed_conn.peer_id)
        if self.node.peers.get(key) is None:  # its first stream may arrive before the swarm reports the connection
            self.node.peers.add_connection(key, is_dialer=False)
        await self.node.handle_stream(key, protocol, _Stream(stream, self._limits))


def parse_address(address: str) -> Multiaddr:
    """Parse a multiaddr of the form /ip4/1.2.3.4/tcp/1234 (or ip6, dns, dns4, dns6)."""
    try:
        found = Multiaddr(address)
        names = [p.name for p in found.protocols()]
    except Exception as error:
        raise NetworkError(f"address {address[:128]!r}: not a multiaddr") from error
    if len(names) != 2 or names[0] not in DIALABLE or names[1] != "tcp":
        raise NetworkError(f"address {address[:128]!r}: must be like /ip4/1.2.3.4/tcp/1234")
    return found


class P2PNode(BaseNode):
    def __init__(
        self, identity: Identity, transport: _LibP2PTransport, data_dir: Path, *, limits: NetworkLimits, pubsub: Any,
        unread: UnreadBudget,
    ) -> None:  # fmt: skip
        kept = KeptAddresses(data_dir / FILE_NAME)
        super().__init__(
            identity, transport, data_dir, limits=limits, rng=random.Random(), unread=unread, kept=kept,  # noqa: S311 - jitter
        )  # fmt: skip
        transport.node = self
        self._pubsub = pubsub
        self._topic = ""
        self._topic_changed = Signal()
        pubsub.is_allowed = self._is_allowed

    def set_plan(self, run_uid: bytes, plan_hash: bytes) -> None:
        super().set_plan(run_uid, plan_hash)
        self._topic = "" if run_uid == ZERO32 else f"psyche/{run_uid.hex()}"
        self._topic_changed.notify()

    def _is_allowed(self, peer_id: ID) -> bool:
        return get_key(peer_id) in self.peers.allowed

    async def _broadcast(self, message: bytes) -> None:
        if not self._topic or self._topic not in self._pubsub.topic_ids:
            return
        try:
            await self._pubsub.publish(self._topic, message)
            self._statistics.bytes_sent += len(message)
        except Exception as error:  # noqa: BLE001 - gossip may fail: sync delivers what the mesh does not
            _log.debug("mesh: %s", type(error).__name__)

    async def follow_topic(self) -> None:
        while True:
            topic = self._topic
            async with trio.open_nursery() as nursery:
                if topic:
                    nursery.start_soon(self._read_topic, topic)
                while self._topic == topic:
                    await self._topic_changed.wait()
                nursery.cancel_scope.cancel()
            if topic:
                await self._pubsub.unsubscribe(topic)

    async def _read_topic(self, topic: str) -> None:
        self._pubsub.allowed_topics = frozenset({topic})
        self._pubsub.set_topic_validator(topic, self._is_valid, False)  # an asynchronous one lets duplicates through
        subscription = await self._pubsub.subscribe(topic)
        async for message in subscription:
            self._inbox.deliver(get_key(ID(message.from_id)), message.data)

    def _is_valid(self, forwarder: ID, message: Any) -> bool:
        try:
            return forwarder == self._pubsub.my_id or self._inbox.is_acceptable(
                get_key(ID(message.from_id)), message.data
            )
        except Exception:  # noqa: BLE001 - a validator that raises takes pubsub down
            return False


@asynccontextmanager
async def open_node(
    identity: Identity, listen: str, port: int, data_dir: Path, *, limits: NetworkLimits | None = None
) -> AsyncIterator[P2PNode]:
    limits = limits or NetworkLimits()
    safe.silence_libp2p()
    with lock_port(listen, port) as number:
        address = Multiaddr(build_address(listen, number))
        unread = UnreadBudget(limits.unread_bytes, limits.unread_per_connection_bytes, limits.cut_rest_s)
        host = safe.build_host(identity.seed, address, limits, unread)
        pubsub, router = safe.build_pubsub(host, frozenset())
        transport = _LibP2PTransport(host, get_reachable_addresses(listen, number), limits, unread)
        node = P2PNode(identity, transport, data_dir, limits=limits, pubsub=pubsub, unread=unread)
        stop = trio.Event()
        async with open_plain_nursery() as nursery:
            await nursery.start(transport.run, address, pubsub, router, stop)
            async with node.running():
                node.start_soon(node.follow_topic)
                try:
                    yield node
                finally:
                    stop.set()  # close connections first, so that no write of the node's tasks blocks on them
