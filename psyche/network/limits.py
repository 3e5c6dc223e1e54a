"""Every limit of a node, with the reason for it; a test or a testnet may pass tighter ones."""

from dataclasses import dataclass
from typing import Final

RANGE_CHUNKS: Final = 16  # largest range a source serves: 16 MiB, some seconds of a home uplink
ASK_CHUNKS: Final = 8  # largest range a node requests; two in flight keep a fast link busy
WINDOW_BYTES: Final = 16 << 20  # requested and not yet received, per source
HELLO_BYTES: Final = 8 << 10
SYNC_REQUEST_BYTES: Final = 1 << 10
SYNC_REPLY_BYTES: Final = 4 << 20
SYNC_ITEMS: Final = 4_096
MAX_BLOBS_AT_ONCE: Final = 65_536  # tensors of one model
ASKED_BYTES: Final = 64 << 20  # requested and not yet received, all sources: 1 s of a fast line; then one chunk each
# received and not yet read, of all connections: twice what is requested, so that replies always have room
UNREAD_BYTES: Final = 128 << 20
UNREAD_PER_CONNECTION_BYTES: Final = 64 << 20  # one source may send all that is requested
CUT_REST_S: Final = 60.0  # how long a cut non-member stays out, lest it fill the buffers again at once


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """Limits in seconds, bytes and counts; the defaults suit a run of up to 256 members."""

    hello_s: float = 5.0  # from the connection to a mutual hello
    dial_s: float = 10.0
    redial_first_s: float = 1.0
    redial_longest_s: float = 60.0
    wanted_after_s: float = 2.0  # how long a peer is missing before others are asked for its address (N4)
    stream_open_s: float = 10.0
    write_s: float = 20.0  # a peer that accepts no data for this long is considered gone
    serve_sync_s: float = 30.0
    idle_stream_s: float = 600.0
    min_progress_s: float = 5.0  # timeout of a request: max(this, 3 x median wait + size / rate)
    file_progress_s: float = 5.0  # the same for files, which come from many sources at once
    slowest_rate_bytes_s: float = 64 << 10  # assumed rate of a source that has not been measured yet
    range_target_s: float = 2.0  # ranges shrink until one takes about this long
    take_over_s: float = 2.0  # after this long, another source may take over a range when nothing else is left
    blobs_in_flight: int = 64  # requests for small blobs in flight to one source

    gossip_per_s: float = 20.0  # per origin: a member needs three messages a round
    gossip_burst: int = 100
    direct_peers: int = 32  # with up to this many peers, announcements go over open streams
    relay_after_s: float = 15.0  # a peer missing this long is reached through the mesh; until then it is dialed
    inbox_messages: int = 4_096
    outbox_messages: int = 256
    seen_messages: int = 65_536

    streams_per_peer: int = 8  # of one protocol, in each direction
    ranges_per_peer: int = 2
    ranges_total: int = 8
    fetches: int = 16  # with fewer, all fetch from the same few that announced first while other uplinks stay idle
    sync_handlers: int = 32

    memory_blob_bytes: int = 1 << 30
    disk_blob_bytes: int = 16 << 30
    keep_fetched_rounds: int = 4  # rounds for which a fetched payload is offered to others

    connections: int = 512
    pending_per_ip: int = 64  # connections from one address that are still in the handshake
    unread_bytes: int = UNREAD_BYTES
    unread_per_connection_bytes: int = UNREAD_PER_CONNECTION_BYTES
    asked_bytes: int = ASKED_BYTES
    cut_rest_s: float = CUT_REST_S
    streams_per_connection: int = 256
    health_check_s: float = 15.0
    ping_s: float = 15.0
