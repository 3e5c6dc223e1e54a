"""Safe libp2p: with its defaults an unauthenticated peer can impersonate any peer and crash the process.

Every setting here counters an attack or fault that was measured: the reference of the peer-to-peer
layer lists the findings. Only this module and `node.py` import libp2p.
"""

import functools
import logging
import os
import struct
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
from libp2p.exceptions import ParseError
from libp2p.io.exceptions import ConnectionClosedError, IOException
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.protocol_muxer.exceptions import MultiselectCommunicatorError, MultiselectError
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.pubsub import gossipsub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.yamux import yamux
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.transport.exceptions import MuxerUpgradeFailure, OpenConnectionError
from libp2p.utils import read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr

from psyche.network.limits import NetworkLimits
from psyche.network.unread import PART_BYTES, StreamBuffers, UnreadBudget
from psyche.wire.line.descriptors import WAY_OUT, get_limit, is_spare

log: Final = logging.getLogger("psyche.network.libp2p")
NOT_SECURE: Final = "not secure"  # prefix of the reasons for failed handshakes
RESET_S: Final = 1.0
TELL_S: Final = 1.0
UPGRADE_S: Final = 5.0  # of a connection: until then it takes one of its address's waiting places
FIRST_WINDOW_BYTES: Final = yamux.DEFAULT_WINDOW_SIZE  # of a stream of yamux: what its peer may send unread
MAX_WINDOW_BYTES: Final = yamux.MAX_WINDOW_SIZE  # to which it grows while the stream is read fast
MAX_RPC_BYTES: Final = 64 << 10  # of a gossip RPC: messages of 4 KB and control data
MAX_NAME_BYTES: Final = 1_024  # of a protocol name; ours have up to 40
REMOVED_PROTOCOLS: Final = ("/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0")  # hello introduces us; nothing else needs them

# Module constants, not arguments: 32 queued RPCs per peer and 32 undelivered messages, the rest dropped unseen.
_pubsub.RpcQueue = functools.partial(RpcQueue, max_size=1_024)  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
_pubsub.SUBSCRIPTION_CHANNEL_SIZE = 4_096  # pyright: ignore[reportAttributeAccessIssue]


async def read_name(communicator: MultiselectCommunicator) -> str:
    """Read one protocol name of multistream-select.

    libp2p would allocate as many bytes as the length prefix claims, and lets text that is not UTF-8 raise through
    its own error classes. Every connection starts with such names, before the peer has authenticated.
    """
    try:
        name = await read_varint_prefixed_bytes_limited(communicator.read_writer, MAX_NAME_BYTES)
        if not name.endswith(b"\n"):
            raise ParseError("a name without a newline")
        return name[:-1].decode()
    except (ParseError, IOException, UnicodeDecodeError) as error:
        raise MultiselectCommunicatorError("not a protocol name") from error


MultiselectCommunicator.read = read_name  # pyright: ignore[reportAttributeAccessIssue]


def silence_libp2p() -> None:
    """Send libp2p's warnings to our own logger, at debug level: their texts may contain bytes of unauthenticated peers.

    Parts of libp2p log through the root logger, which would otherwise install a handler on stderr.
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


class Resting(MuxerUpgradeFailure):
    """A peer that was cut connects before its rest is over."""


def bound_connections(swarm: Any, limits: NetworkLimits, budget: UnreadBudget) -> None:
    """Give every connection counted buffers and a write timeout.

    libp2p accepts no yamux class but its own, so each connection is modified here before it runs.
    """
    upgrade = swarm.upgrader.upgrade_connection

    async def upgrade_bounded(connection: Any, peer_id: Any) -> Any:
        if budget.is_resting(peer_id):
            raise Resting("the peer was cut a moment ago")
        _bound_writes(connection, limits.write_s)
        muxed = await upgrade(connection, peer_id)
        muxed.stream_buffers = StreamBuffers(budget, peer_id, limits.streams_per_connection)
        muxed.secured_conn.read = _Frames(muxed).read
        return muxed

    swarm.upgrader.upgrade_connection = upgrade_bounded


def _bound_writes(connection: Any, write_s: float) -> None:
    """Close a connection whose peer accepts no data for `write_s`.

    The writes of pubsub and yamux have no timeout, and closing waits for them: a peer that reads nothing could hold
    its connection's memory, and block the health monitor, indefinitely.
    """
    write = connection.write

    async def write_in_time(data: bytes) -> None:
        with trio.move_on_after(write_s) as scope:
            await write(data)
        if scope.cancelled_caught:
            await connection.close()
            raise ConnectionClosedError(f"the peer accepted no data within {write_s:g} s")

    connection.write = write_in_time


class _Frames:
    """Passes on the frames that yamux reads from a connection: checked against the windows, counted, and in parts.

    A peer may fill the window that it has with one frame, and js-libp2p does. yamux never looks at the window, and
    passes no byte on before all of a frame is there: a slow source would look silent, and 16 MiB would go uncounted.
    """

    def __init__(self, muxed: Any) -> None:
        self._muxed = muxed
        self._read = muxed.secured_conn.read
        self._body_bytes = 0  # of the part that is being read
        self._rest = b""  # the header of what is left of its frame

    async def read(self, size_bytes: int) -> bytes:
        """A header, or the body that it announced: yamux asks for nothing else. A peer that sends too much is cut."""
        if self._body_bytes:
            with self._muxed.stream_buffers.account.expecting(size_bytes):
                data = await self._read(size_bytes)
            self._body_bytes -= len(data)
            return data
        header, self._rest = self._rest or await self._read(size_bytes), b""
        return self._split(header) if len(header) == yamux.HEADER_SIZE else header

    def _split(self, header: bytes) -> bytes:
        version, kind, flags, stream_id, size = struct.unpack(yamux.YAMUX_HEADER_FORMAT, header)
        if kind != yamux.TYPE_DATA:
            return header
        if size > (window := self._get_window(stream_id, is_new=bool(flags & yamux.FLAG_SYN))):
            self._muxed.stream_buffers.account.break_off(f"a frame of {size} bytes in a window of {window}")
        self._body_bytes = min(size, PART_BYTES)
        if size <= PART_BYTES:
            return header
        opening, closing = yamux.FLAG_SYN | yamux.FLAG_ACK, yamux.FLAG_FIN | yamux.FLAG_RST
        head = (version, kind, flags & ~opening, stream_id, size - PART_BYTES)
        self._rest = struct.pack(yamux.YAMUX_HEADER_FORMAT, *head)
        return struct.pack(yamux.YAMUX_HEADER_FORMAT, version, kind, flags & ~closing, stream_id, PART_BYTES)

    def _get_window(self, stream_id: int, *, is_new: bool) -> int:
        stream = self._muxed.streams.get(stream_id)
        if stream is not None:
            return int(stream.recv_window)
        return FIRST_WINDOW_BYTES if is_new else MAX_WINDOW_BYTES  # sent before our reset was there: it is dropped


def describe_connection_failure(error: BaseException) -> str:
    """Describe why a connection failed, in our own words: libp2p's texts may contain bytes of unauthenticated peers."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    if isinstance(chain[-1], Resting):
        return str(chain[-1])
    if len(chain) == 1 or any(isinstance(one, OpenConnectionError | MuxerUpgradeFailure) for one in chain):
        return type(chain[-1]).__name__
    if any(isinstance(one, trio.TooSlowError) for one in chain):
        return f"{NOT_SECURE}: no handshake within {UPGRADE_S:g} s"
    if any(isinstance(one, MultiselectError) for one in chain):
        return f"{NOT_SECURE}: no agreement on Noise, and this node speaks nothing else"
    return f"{NOT_SECURE}: the Noise handshake failed"


async def reset_stream(stream: Any) -> None:
    """Reset a stream and drop its buffer, which yamux would keep for a minute; never raises, waits only briefly."""
    try:
        muxed = stream.muxed_stream
        if (buffer := muxed.conn.stream_buffers.get(muxed.stream_id)) is not None:
            buffer.end()
        with trio.move_on_after(RESET_S):
            await stream.reset()
    except Exception as error:  # noqa: BLE001 - whatever libp2p raises, the stream is over
        log.debug("reset: %s", type(error).__name__)


class SafePubsub(Pubsub):
    """Pubsub whose handling of a message or stream cannot raise into the service's nursery.

    Otherwise one malformed frame would end the process. Nothing is read from peers outside the allow-list.
    """

    is_allowed: Callable[[Any], bool] = staticmethod(lambda _peer_id: False)

    async def stream_handler(self, stream: Any) -> None:
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
        """Process one message; a broken key, id or validator drops only that message."""
        if msg_forwarder != self.my_id and not self.is_allowed(msg_forwarder):
            return
        try:
            await super().push_msg(msg_forwarder, msg)
        except Exception as error:  # noqa: BLE001
            log.debug("pubsub message dropped: %s", type(error).__name__)


def harden(host: Any) -> None:
    """Catch the errors of all stream handlers, which the swarm runs in the connection's nursery."""
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
    """Accepts inbound connections in place of the swarm's own handler.

    The swarm's handler releases the slot of a connection only when the whole swarm ends, so a node would
    refuse everybody after its first hundred connections. The gate also keeps the half-open connections of
    one address from taking all slots.
    """

    def __init__(self, swarm: Any, limits: NetworkLimits) -> None:
        self._swarm = swarm
        self._limits = limits
        self._pending: dict[str, int] = {}
        self._open = 0
        self._tell_at = 0.0  # limits log lines: anybody may open connections

    async def handle(self, stream: Any, address: Multiaddr) -> None:
        """Do the handshake within the upgrade timeout, then wait until the connection is closed."""
        remote = stream.get_remote_address()
        ip = remote[0] if remote else ""
        if is_spare(stream.stream.socket.fileno()):
            self._tell("connections are refused: this process may open only %d files; %s", get_limit(), WAY_OUT)
            await stream.close()
            return
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
        except Exception as error:  # noqa: BLE001 - unauthenticated bytes may raise anything
            self._tell("connection from %s refused: %s", ip, describe_connection_failure(error))
            return None
        finally:
            self._pending[ip] -= 1
            if not self._pending[ip]:
                del self._pending[ip]

    def _tell(self, text: str, *values: object) -> None:
        if trio.current_time() >= self._tell_at:
            self._tell_at = trio.current_time() + TELL_S
            log.info(text, *values)


def build_host(seed: bytes, listen: Multiaddr, limits: NetworkLimits, budget: UnreadBudget) -> Any:
    pair = create_new_key_pair(seed)
    host: Any = new_host(
        key_pair=pair,
        # The default list ends with plaintext: a peer that offers only that may claim any identity.
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
            abort_connection_on_ping_failure=True,  # otherwise a peer that lost power stays until TCP gives up
            max_failed_streams=1 << 30,  # replacing connections is the job of our redial loop
            min_ping_success_rate=0.0,
            min_health_threshold=0.0,
            max_ping_latency=1e9,
        ),
    )
    swarm: Any = host.get_network()
    swarm.retry_config = RetryConfig(max_retries=0)
    swarm.auto_connector.maybe_connect = _do_nothing_async  # it would dial every peer it hears of
    swarm.set_resource_manager(None)  # we limit streams per peer ourselves; its slots leak when streams break
    swarm._handle_inbound_connection = Gate(swarm, limits).handle  # noqa: SLF001 - there is no setting for it
    for protocol in REMOVED_PROTOCOLS:
        host.remove_stream_handler(TProtocol(protocol))
    host._schedule_identify = _do_nothing  # noqa: SLF001
    bound_connections(swarm, limits, budget)
    harden(host)
    return host


def _do_nothing(*_args: object, **_kwargs: object) -> None:
    """Replace identify, whose answers nobody needs."""


async def _do_nothing_async(*_args: object, **_kwargs: object) -> None:
    """Replace libp2p's dialing: our redial loop decides whom to dial."""


def build_pubsub(host: Any, topics: frozenset[str]) -> tuple[SafePubsub, gossipsub.GossipSub]:
    router = gossipsub.GossipSub(
        [gossipsub.PROTOCOL_ID_V11, gossipsub.PROTOCOL_ID],  # version 1.2 doubles the cost of a 1 KB message
        6,
        4,
        12,
        heartbeat_interval=1,
        heartbeat_initial_delay=0.1,
        gossip_window=3,
        gossip_history=6,
        spam_protection_enabled=False,  # counts per forwarder, and so loses other nodes' messages
        adaptive_gossip_enabled=False,  # "poor health" would set the heartbeat to 30 s or more
        eclipse_protection_enabled=False,
        prune_back_off=10,
        unsubscribe_back_off=5,
    )
    pubsub = SafePubsub(
        host, router, strict_signing=True, seen_ttl=120, max_inbound_rpc_size=MAX_RPC_BYTES, allowed_topics=topics
    )
    pubsub.counter = time.time_ns()  # otherwise a restarted node repeats sequence numbers and its messages are dropped
    return pubsub, router
