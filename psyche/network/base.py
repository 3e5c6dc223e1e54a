"""The node: implements the `Network` port over any transport (`node.py`: libp2p, `memory.py`: simulated links)."""

import dataclasses
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from psyche.errors import NetworkError, PsycheError, WireError
from psyche.network.addresses.exchange import AddressExchange
from psyche.network.addresses.kept import KEEP_EVERY_S, KeptAddresses
from psyche.network.addresses.table import RECORD_VALID_S
from psyche.network.announce import Inbox, Outboxes, check_message, receive_announcements
from psyche.network.blobs.fetcher import Fetcher
from psyche.network.blobs.serve import BlobServer
from psyche.network.blobs.store import BlobStore, RunIo, run_in_thread
from psyche.network.limits import NetworkLimits
from psyche.network.peers import Peer, PeerTable, Transport
from psyche.network.streams import BLOB, GOSSIP, HELLO, SYNC, ByteStream
from psyche.network.sync import Questions
from psyche.network.unread import UnreadBudget
from psyche.wire.address_record import AddressRecord, sign_address_record
from psyche.wire.crypto import Identity
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.peer_address import PeerAddress
from psyche.wire.ports import BootstrapPeer, Network, NetworkStatistics, SyncHandler, SyncReply, SyncRequest

_log: Final = logging.getLogger("psyche.network")
CLOSE_S: Final = 3.0


class BaseNode:
    """A node among peers; `psyche.wire.ports.Network` documents what its methods promise."""

    def __init__(
        self, identity: Identity, transport: Transport, data_dir: Path, *, limits: NetworkLimits,
        rng: random.Random, run_io: RunIo = run_in_thread, get_unix: Callable[[], int] | None = None,
        unread: UnreadBudget, kept: KeptAddresses | None = None,
    ) -> None:  # fmt: skip
        self.limits = limits
        self._kept = kept
        self.unread = unread
        self._identity = identity
        self._transport = transport
        self._run_io = run_io
        self._get_unix = get_unix or (lambda: int(time.time()))
        self._statistics = NetworkStatistics()
        self._nursery: trio.Nursery | None = None
        self._inbox = Inbox(identity.public, limits, self._statistics)
        self._record: AddressRecord | None = None  # the last signed one, kept because every hello carries it
        self.store = BlobStore(
            data_dir / "blobs", memory_bytes=limits.memory_blob_bytes, disk_bytes=limits.disk_blob_bytes, run_io=run_io
        )
        self._server = BlobServer(self.store, limits, self._statistics)
        self.peers = PeerTable(
            identity.public, limits, transport, rng,
            get_record=self.address_record, get_unix=self._get_unix, start_soon=self.start_soon,
        )  # fmt: skip
        self._outboxes = Outboxes(self.peers, limits, self._statistics, self.start_soon)
        self._fetcher = Fetcher(identity.public, self.store, self.peers, limits, run_io)
        self.questions = Questions(self.peers, limits, self._statistics)
        self._exchange = AddressExchange(self.peers, limits, rng, self.questions.ask)
        self._is_exchanging = False
        self.peers.on_admitted = self._exchange_addresses

    # life

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self._run_io(self.store.clear_folder)
        try:
            async with open_plain_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self.peers.dialer.run)
                if self._kept is not None:
                    nursery.start_soon(self._keep_addresses, self._kept)
                try:
                    yield
                finally:
                    nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self._inbox.close()

    async def _keep_addresses(self, kept: KeptAddresses) -> None:
        self.peers.remember(await self._run_io(kept.load))
        try:
            while True:
                await trio.sleep(KEEP_EVERY_S)
                await self._run_io(kept.save, self.peers.get_known())
        finally:
            shield = trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S)  # pyright: ignore[reportCallIssue]
            with shield:
                await self._run_io(kept.save, self.peers.get_known())

    def start_soon(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        if self._nursery is not None and not self._nursery.cancel_scope.cancel_called:
            self._nursery.start_soon(self._guard, function, *args)

    async def _guard(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a task that serves a peer and log its failure, so that it cannot end the node."""
        try:
            await function(*args)
        except PsycheError as error:
            _log.debug("task ended: %s", error)
        except Exception:  # noqa: BLE001 - our own bug must not cost the node
            _log.exception("a task of the node failed")

    # who and where

    @property
    def key(self) -> bytes:
        return self._identity.public

    def address_record(self) -> AddressRecord:
        """Sign a fresh record of the addresses this node listens on, valid for a day."""
        addresses, expires_unix = self._transport.addresses(), self._get_unix() + RECORD_VALID_S
        known = self._record
        if known is None or (known.addresses, known.expires_unix) != (addresses, expires_unix):
            known = self._record = sign_address_record(self._identity, addresses, expires_unix)
        return known

    def set_allowed(self, keys: frozenset[bytes], members: frozenset[bytes] = frozenset()) -> None:
        self._inbox.allowed = keys
        self.peers.set_allowed(keys)
        self.peers.members = members

    def set_plan(self, run_uid: bytes, plan_hash: bytes) -> None:
        if run_uid != self.peers.run_uid:
            self._fetcher.book.banned.clear()
        self.peers.set_plan(run_uid, plan_hash)

    def set_addresses(self, records: Sequence[AddressRecord]) -> None:
        self.peers.set_addresses(records)

    def set_bootstrap(self, addresses: Sequence[PeerAddress]) -> None:
        self.peers.set_bootstrap(addresses)

    def bootstrap(self) -> tuple[BootstrapPeer, ...]:
        return self.peers.get_bootstrap()

    def _exchange_addresses(self) -> None:
        if not self._is_exchanging and self.peers.is_without_book():
            self._is_exchanging = True
            self.start_soon(self._exchange.run)

    def connected(self) -> frozenset[bytes]:
        return self.peers.connected()

    async def wait_for_peers(self, keys: frozenset[bytes]) -> None:
        while not keys <= self.connected():
            await self.peers.changed.wait()

    def refusals(self) -> dict[bytes, str]:
        return dict(self.peers.refusals)

    def banned(self) -> dict[bytes, str]:
        return dict(self._fetcher.book.banned)

    def statistics(self) -> NetworkStatistics:
        book = self._fetcher.book
        return dataclasses.replace(
            self._statistics,
            bytes_received=self._statistics.bytes_received + book.bytes_received,
            peers=len(self.connected()),
            unread_bytes=self.unread.held_bytes,
            cuts=self.unread.cuts,
            unread_messages=self._inbox.unread,
            unsent_messages=self._outboxes.count_unsent(),
            streams_per_peer=self.peers.count_streams(),
            asked_bytes=book.asked_bytes,
            blobs_offered=len(self.store),
            blob_memory_bytes=self.store.memory_bytes,
            blob_disk_bytes=self.store.disk_bytes,
        )

    # streams that peers open

    async def handle_stream(self, key: bytes, protocol: str, stream: ByteStream) -> None:
        """Serve a stream that a peer opened; called by the transport. Raises nothing but trio's `Cancelled`."""
        try:
            peer = self.peers.get(key)
            if peer is None:
                return
            if peer.inbound.get(protocol, 0) >= self.limits.streams_per_peer:
                _log.debug("peer %s opens too many streams", key.hex()[:16])
                return
            peer.inbound[protocol] = peer.inbound.get(protocol, 0) + 1
            try:
                await self._serve(peer, protocol, stream)
            finally:
                peer.inbound[protocol] -= 1
        except PsycheError as error:
            _log.debug("stream %s of %s ended: %s", protocol, key.hex()[:16], error)
        except Exception:  # noqa: BLE001 - our own bug must not cost the node
            _log.exception("stream %s of %s failed", protocol, key.hex()[:16])
        finally:
            with trio.CancelScope(shield=True):  # pyright: ignore[reportCallIssue]
                await stream.reset()

    async def _serve(self, peer: Peer, protocol: str, stream: ByteStream) -> None:
        if protocol == HELLO:
            await self.peers.answer_hello(peer.key, stream)
            return
        with trio.move_on_after(self.limits.hello_s):  # its verdict may still be on the way
            await peer.admitted.wait()
        if not peer.admitted.is_set():
            return
        if protocol == GOSSIP:
            await receive_announcements(stream, peer.key, self._inbox)
        elif protocol == SYNC:
            await self.questions.serve(peer.key, stream)
        elif protocol == BLOB:
            await self._server.serve(peer.key, stream)

    # gossip

    async def publish(self, message: bytes) -> None:
        check_message(message)
        self._statistics.gossip_sent += 1
        is_small = len(self.peers.allowed - {self.key}) <= self.limits.direct_peers
        if is_small:
            self._announce(sorted(self.connected()), message)
        if not is_small or self.peers.has_unreachable():
            await self._broadcast(message)
        await trio.lowlevel.checkpoint()

    def _announce(self, keys: Iterable[bytes], message: bytes) -> None:
        for key in keys:
            self._outboxes.put(key, message)

    async def _broadcast(self, message: bytes) -> None:
        """Publish the message to the gossip mesh, if the transport has one."""

    def messages(self) -> trio.MemoryReceiveChannel[tuple[bytes, bytes]]:
        return self._inbox.messages()

    # sync

    def set_sync_handler(self, handler: SyncHandler) -> None:
        self.questions.handler = handler

    async def ask(self, peer: bytes, request: SyncRequest, *, timeout_s: float) -> SyncReply:
        try:
            return await self.questions.ask(peer, request, timeout_s)
        except WireError as error:
            raise NetworkError(f"peer {peer.hex()[:16]}: {error}") from error

    # blobs

    async def provide(self, data: bytes | Path, *, expires: tuple[int, int] | None) -> bytes:
        if isinstance(data, Path):
            return await self.store.add_file(data, expires)
        return await self.store.add_bytes(data, expires)

    async def withdraw(self, blob_id: bytes) -> None:
        self.store.withdraw(blob_id)
        await trio.lowlevel.checkpoint()

    def expire(self, epoch: int, height: int) -> None:
        self._fetcher.begin_round(epoch, height)
        self.store.expire(epoch, height)

    async def fetch(self, blob_id: bytes, sources: Sequence[bytes], *, size_bytes: int, deadline: float) -> bytes:
        return await self._fetcher.fetch(blob_id, sources, size_bytes, deadline)

    async def fetch_many(
        self, blobs: Sequence[tuple[bytes, int]], sources: Sequence[bytes], folder: Path, *, deadline: float,
        progress: Callable[[int], None] | None = None,
    ) -> dict[bytes, Path]:  # fmt: skip
        return await self._fetcher.fetch_many(blobs, sources, folder, deadline, progress)


if TYPE_CHECKING:

    def _is_port(node: BaseNode) -> Network:
        return node
