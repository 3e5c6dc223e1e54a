"""libp2p as it can be used safely: its defaults let a stranger pose as any peer and end the process.

Every setting here stands against something that was measured: the reference of the peer-to-peer
layer lists the findings. This module and `node.py` are the only ones that import libp2p.
"""

import functools
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Final

# Read at call time: with 1, every read of a length prefix costs an encrypted frame.
os.environ.setdefault("PY_YAMUX_RELEASE_ON_READ", "0")

import libp2p.pubsub.pubsub as _pubsub
import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_x25519
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.pubsub import gossipsub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

from psyche.network.limits import NetworkLimits

log: Final = logging.getLogger("psyche.network.libp2p")
RESET_S: Final = 1.0
UPGRADE_S: Final = 5.0  # of a connection: until then it holds a waiting place of its address
MAX_RPC_BYTES: Final = 64 << 10  # a gossip RPC: messages of 4 KB and control
REMOVED_PROTOCOLS: Final = ("/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0")  # hello says who we are; nothing else needs them

# Module constants, not arguments: 32 queued RPCs per peer and 32 undelivered messages, the rest dropped unseen.
_pubsub.RpcQueue = functools.partial(RpcQueue, max_size=1_024)  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
_pubsub.SUBSCRIPTION_CHANNEL_SIZE = 4_096  # pyright: ignore[reportAttributeAccessIssue]


def silence_libp2p() -> None:
    """Send libp2p's warnings to our own logger, at debug: its texts may hold bytes of strangers.

    Parts of libp2p log through the root logger, which would install a handler on stderr.
    """
    logger = logging.getLogger("libp2p")
    if not any(isinstance(h, _ToOurs) for h in logger.handlers):
        logger.addHandler(_ToOurs(logging.WARNING))
        logging.getLogger().addFilter(_is_not_libp2p)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.NullHandler())


class _ToOurs(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log.debug("%s:%d %s", record.module, record.lineno, record.levelname)


def _is_not_libp2p(record: logging.LogRecord) -> bool:
    return record.name != "root" or f"{os.sep}libp2p{os.sep}" not in record.pathname


class _Overflow(trio.TooSlowError):
    """A peer sends more than it may; yamux closes the connection on this class."""


class _Buffers(dict[int, bytearray]):
    """The receive buffers of a connection, bounded in number and in bytes together.

    yamux announces windows and does not enforce them: without this, a peer fills the memory through
    a stream that nobody reads.
    """

    def __init__(self, max_bytes: int, max_streams: int) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        self.max_streams = max_streams

    def __setitem__(self, stream_id: int, buffer: bytearray) -> None:
        if len(self) >= self.max_streams and stream_id not in self:
            raise _Overflow(f"more than {self.max_streams} streams")
        super().__setitem__(stream_id, _Buffer(self))

    def check_room(self, more: int) -> None:
        if sum(map(len, self.values())) + more > self.max_bytes:
            raise _Overflow(f"more than {self.max_bytes} bytes unread")


class _Buffer(bytearray):
    def __init__(self, owner: _Buffers) -> None:
        super().__init__()
        self._owner = owner

    def extend(self, data: Any) -> None:
        self._owner.check_room(len(data))
        super().extend(data)


def bound_connections(swarm: Any, limits: NetworkLimits) -> None:
    """Give every connection bounded buffers; libp2p takes no other yamux class than its own."""
    upgrade = swarm.upgrader.upgrade_connection

    async def upgrade_bounded(connection: Any, peer_id: Any) -> Any:
        muxed = await upgrade(connection, peer_id)
        muxed.stream_buffers = _Buffers(limits.buffered_per_connection_bytes, limits.streams_per_connection)
        return muxed

    swarm.upgrader.upgrade_connection = upgrade_bounded


async def reset_stream(stream: Any) -> None:
    """Reset a stream; never raises, never waits long."""
    try:
        with trio.move_on_after(RESET_S):
            await stream.reset()
    except Exception as error:  # noqa: BLE001 - whatever libp2p raises, the stream is over
        log.debug("reset: %s", type(error).__name__)


class SafePubsub(Pubsub):
    """Pubsub whose work per message and stream cannot raise into the service's nursery.

    One malformed frame would end the process otherwise. Peers outside the allow-list are not read at all.
    """

    is_allowed: Callable[[Any], bool] = staticmethod(lambda _peer_id: False)

    async def stream_handler(self, stream: Any) -> None:
        """Read an allowed peer's RPCs; whatever is wrong with them ends the stream alone."""
        if not self.is_allowed(stream.muxed_conn.peer_id):
            await reset_stream(stream)
            return
        try:
            await super().stream_handler(stream)
        except Exception as error:  # noqa: BLE001 - DecodeError, LifecycleError, a closed nursery, ...
            log.debug("pubsub stream dropped: %s", type(error).__name__)
            await reset_stream(stream)
            try:
                self._handle_dead_peer(stream.muxed_conn.peer_id)
            except Exception as again:  # noqa: BLE001
                log.debug("pubsub dead peer: %s", type(again).__name__)

    async def push_msg(self, msg_forwarder: Any, msg: Any) -> None:
        """Look at one message; a broken key, id or validator drops it alone."""
        if msg_forwarder != self.my_id and not self.is_allowed(msg_forwarder):
            return
        try:
            await super().push_msg(msg_forwarder, msg)
        except Exception as error:  # noqa: BLE001
            log.debug("pubsub message dropped: %s", type(error).__name__)


def harden(host: Any) -> None:
    """Catch what any stream handler raises: the swarm runs them in a nursery of the connection."""
    network = host.get_network()
    inner = network.common_stream_handler

    async def handle(stream: Any) -> None:
        try:
            await inner(stream)
        except Exception as error:  # noqa: BLE001
            log.debug("stream handler: %s", type(error).__name__)
            await reset_stream(stream)

    network.set_stream_handler(handle)


class Gate:
    """Takes inbound connections in place of the swarm's own handler.

    That one gives back the slot of a connection only when the whole swarm ends, so a node would
    refuse everybody after its first hundred visitors. And half-open connections of one address
    may not take all slots.
    """

    def __init__(self, swarm: Any, limits: NetworkLimits) -> None:
        self._swarm = swarm
        self._limits = limits
        self._pending: dict[str, int] = {}
        self._open = 0

    async def handle(self, stream: Any, address: Multiaddr) -> None:
        """Shake hands within the upgrade's time-out, then wait until the connection is closed."""
        remote = stream.get_remote_address()
        ip = remote[0] if remote else ""
        if self._open >= self._limits.connections or self._pending.get(ip, 0) >= self._limits.pending_per_ip:
            await stream.close()
            return
        self._open += 1
        try:
            connection = await self._upgrade(stream, address, ip)
            if connection is not None:
                await connection.event_closed.wait()
        finally:
            self._open -= 1

    async def _upgrade(self, stream: Any, address: Multiaddr, ip: str) -> Any:
        self._pending[ip] = self._pending.get(ip, 0) + 1
        try:
            return await self._swarm.upgrade_inbound_raw_conn(RawConnection(stream, False), address)
        except Exception as error:  # noqa: BLE001 - strangers' bytes: anything may come
            log.debug("inbound connection: %s", type(error).__name__)
            return None
        finally:
            self._pending[ip] -= 1
            if not self._pending[ip]:
                del self._pending[ip]


def build_host(seed: bytes, listen: Multiaddr, limits: NetworkLimits) -> Any:
    """A libp2p host: Noise alone, yamux alone, no dialing of its own, dead peers noticed."""
    pair = create_new_key_pair(seed)
    host: Any = new_host(
        key_pair=pair,
        # The default list ends with plaintext: whoever offers only that is believed to be anybody.
        sec_opt={TProtocol(NOISE): Noise(pair, noise_privkey=create_x25519().private_key)},
        muxer_opt={TProtocol(YAMUX): Yamux},
        listen_addrs=[listen],
        disable_identify_address_discovery=True,
        connection_config=ConnectionConfig(
            max_connections=limits.connections,
            high_watermark=limits.connections,
            low_watermark=0,
            min_connections=0,
            inbound_upgrade_timeout=UPGRADE_S,
            outbound_upgrade_timeout=UPGRADE_S,
            inbound_stream_protocol_negotiation_timeout=limits.stream_open_s,
            outbound_stream_protocol_negotiation_timeout=limits.stream_open_s,
            enable_health_monitoring=True,
            health_initial_delay=limits.health_check_s / 3,
            health_warmup_window=min(5.0, limits.health_check_s / 3),
            health_check_interval=limits.health_check_s,
            ping_timeout=limits.ping_s,
            abort_connection_on_ping_failure=True,  # else a peer that lost power stays until TCP gives up
            max_failed_streams=1 << 30,  # replacing connections is our redial loop's work
            min_ping_success_rate=0.0,
            min_health_threshold=0.0,
            max_ping_latency=1e9,
        ),
    )
    swarm: Any = host.get_network()
    swarm.retry_config = RetryConfig(max_retries=0)
    swarm.auto_connector.maybe_connect = _do_nothing_async  # it dials whoever it has heard of
    swarm.set_resource_manager(None)  # our own limits hold per peer; its slots leak with streams that break
    swarm._handle_inbound_connection = Gate(swarm, limits).handle  # noqa: SLF001 - there is no setting for it
    for protocol in REMOVED_PROTOCOLS:
        host.remove_stream_handler(TProtocol(protocol))
    host._schedule_identify = _do_nothing  # noqa: SLF001
    bound_connections(swarm, limits)
    harden(host)
    return host


def _do_nothing(*_args: object, **_kwargs: object) -> None:
    """In place of identify, whose answers nobody needs."""


async def _do_nothing_async(*_args: object, **_kwargs: object) -> None:
    """In place of dialing: whom to dial is our redial loop's business."""


def build_pubsub(host: Any, topics: frozenset[str]) -> tuple[SafePubsub, gossipsub.GossipSub]:
    """Gossipsub 1.1 with the settings that deliver."""
    router = gossipsub.GossipSub(
        [gossipsub.PROTOCOL_ID_V11, gossipsub.PROTOCOL_ID],  # 1.2 doubles the cost of a 1 KB message
        6,
        4,
        12,
        heartbeat_interval=1,
        heartbeat_initial_delay=0.1,
        gossip_window=3,
        gossip_history=6,
        spam_protection_enabled=False,  # counts per forwarder: loses other nodes' messages
        adaptive_gossip_enabled=False,  # "poor health" sets the heartbeat to 30 s and more
        eclipse_protection_enabled=False,
        prune_back_off=10,
        unsubscribe_back_off=5,
    )
    pubsub = SafePubsub(
        host, router, strict_signing=True, seen_ttl=120, max_inbound_rpc_size=MAX_RPC_BYTES, allowed_topics=topics
    )
    pubsub.counter = time.time_ns()  # else a restarted node repeats sequence numbers and is not heard
    return pubsub, router
