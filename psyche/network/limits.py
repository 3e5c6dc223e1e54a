"""Every bound of a node, with the reason for it; a test or a testnet may pass tighter ones."""

from dataclasses import dataclass
from typing import Final

RANGE_CHUNKS: Final = 16  # largest range a source serves: 16 MiB, some seconds of a home uplink
ASK_CHUNKS: Final = 8  # what we ask for at once; two in flight keep a fast link busy
WINDOW_BYTES: Final = 16 << 20  # bytes asked for and not yet here, per source
HELLO_BYTES: Final = 8 << 10
SYNC_REQUEST_BYTES: Final = 1 << 10
SYNC_REPLY_BYTES: Final = 4 << 20
SYNC_ITEMS: Final = 4_096
MAX_BLOBS_AT_ONCE: Final = 65_536  # tensors of one model
ASKED_BYTES: Final = 64 << 20  # asked of all sources and not yet here: a fast line's second; one chunk each beyond it
# received on all connections together and not yet read: twice what is asked for, so that answers always have room
UNREAD_BYTES: Final = 128 << 20
UNREAD_PER_CONNECTION_BYTES: Final = 64 << 20  # one source may send all that is asked for
CUT_REST_S: Final = 60.0  # who is cut, and is no member, stays out for so long: else it fills all again at once


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """Bounds in seconds, bytes and counts; the defaults suit a run of up to 256 members."""

    hello_s: float = 5.0  # from the connection to a mutual hello
    dial_s: float = 10.0
    redial_first_s: float = 1.0
    redial_longest_s: float = 60.0
    wanted_after_s: float = 2.0  # a peer is missing for so long before others are asked for its address (N4)
    stream_open_s: float = 10.0
    write_s: float = 20.0  # a peer that takes nothing for so long is gone
    serve_sync_s: float = 30.0
    idle_stream_s: float = 600.0
    min_progress_s: float = 5.0  # deadlines of requests: max(this, 3 x median + size / rate)
    file_progress_s: float = 5.0  # the same for files, which come from many sources at once
    slowest_rate_bytes_s: float = 64 << 10  # assumed of a source that has not shown its rate yet
    range_target_s: float = 2.0  # ranges shrink until one takes about this long
    take_over_s: float = 2.0  # what a source has held for so long another one may deliver, when nothing else is left
    blobs_in_flight: int = 64  # requests for small ones on their way to one source

    gossip_per_s: float = 20.0  # per origin: a member needs three messages a round
    gossip_burst: int = 100
    direct_peers: int = 32  # up to so many peers announcements go over open streams
    relay_after_s: float = 15.0  # who is missing for so long is told through others; before, it is being dialed
    inbox_messages: int = 4_096
    outbox_messages: int = 256
    seen_messages: int = 65_536

    streams_per_peer: int = 8  # of one protocol, each way
    ranges_per_peer: int = 2
    ranges_total: int = 8
    fetches: int = 16  # fewer, and all fetch from the same few that announced first, while other lines stand idle
    sync_handlers: int = 32

    memory_blob_bytes: int = 1 << 30
    disk_blob_bytes: int = 16 << 30
    keep_fetched_rounds: int = 4  # a fetched payload is offered on for so many rounds

    connections: int = 512
    pending_per_ip: int = 64  # connections of one address that are still shaking hands
    unread_bytes: int = UNREAD_BYTES
    unread_per_connection_bytes: int = UNREAD_PER_CONNECTION_BYTES
    asked_bytes: int = ASKED_BYTES
    cut_rest_s: float = CUT_REST_S
    streams_per_connection: int = 256
    health_check_s: float = 15.0
    ping_s: float = 15.0
