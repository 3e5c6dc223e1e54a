"""The ports of a client: the interfaces to a network and a trainer. That to the run's record is `backends.port`.

Implementations: `network.node` (libp2p), `network.memory` (in memory),
`modeling.trainer.process` (child process). Every wait of a port is bounded by a deadline that is passed in,
or else by its caller.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import trio

from psyche.core.state.gossip import Evidence
from psyche.wire.address_record import AddressRecord
from psyche.wire.peer_address import PeerAddress
from psyche.wire.trainer import (
    ApplyReply,
    ApplyRequest,
    AuditReply,
    AuditRequest,
    LoadReply,
    LoadRequest,
    MergeRequest,
    OpenReply,
    OpenRequest,
    ScoreReply,
    ScoreRequest,
    SnapshotReply,
    SnapshotRequest,
    TrainReply,
    TrainRequest,
)

Proof: TypeAlias = AddressRecord | Evidence | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapPeer:
    """The state of one bootstrap address, named by a person or the record."""

    key: bytes
    address: str
    is_allowed: bool  # keys without a place in the run are not dialed
    is_connected: bool
    failure: str  # why the last dial failed; empty if none has failed
    next_dial_at: float  # on trio's clock


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A request from one node to another: for missing gossip, or for something by its hash.

    kind "announcements": signed messages of (epoch, height) from members not in `have`.
    kind "table": the signed table of a witness with results root `key` (W7).
    kind "manifest": the weight manifest whose full digest is `key` (S7, S9); with an empty `key`: keep a copy
    of your weights of (epoch, height), so that their manifest can be asked for (S7).
    kind "upload": whether you upload certified weights to a lasting place (S10).
    kind "data": the size, u64 little-endian, of the data manifest with the blob id `key`, which the peer offers (D1).
    kind "opening": what the member in `have` opens of its result of (epoch, height): its blob id, and its size as u64
    little-endian (V11).
    kind "addresses": signed address records of at most 32 peers, in the order of their keys from `key` on, round the
    end (N1); nodes answer it by themselves.
    """

    kind: str
    epoch: int = 0
    height: int = 0
    have: int = 0
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The answer; `found` is false if the peer has nothing to send. Items are opaque bytes, at most 4 MiB in all."""

    found: bool
    items: tuple[bytes, ...] = ()


SyncHandler = Callable[[bytes, SyncRequest], Awaitable[SyncReply]]


@dataclass(slots=True)
class NetworkStatistics:
    """Counters of a node; bytes count payloads, parameters and gossip together."""

    bytes_sent: int = 0
    bytes_received: int = 0
    gossip_sent: int = 0
    gossip_received: int = 0
    gossip_refused: int = 0
    peers: int = 0
    unread_bytes: int = 0  # received on all connections and not read yet
    cuts: int = 0  # connections closed because they held too many unread bytes
    unread_messages: int = 0  # announcements received and not read yet
    unsent_messages: int = 0  # announcements in the fullest queue to a peer
    streams_per_peer: int = 0  # open streams of the peer that has most
    asked_bytes: int = 0  # requested from sources and not received yet
    blobs_offered: int = 0
    blob_memory_bytes: int = 0
    blob_disk_bytes: int = 0


class Network(Protocol):
    """A node among peers. Peers are named by their 32-byte p2p (Ed25519) key."""

    @property
    def key(self) -> bytes: ...

    def address_record(self) -> AddressRecord:
        """Sign a fresh record of the addresses this node listens on."""
        ...

    def set_allowed(self, keys: frozenset[bytes], members: frozenset[bytes] = frozenset()) -> None:
        """Set which keys may connect; others are disconnected and their messages refused.

        Connections of `members` of the epoch are the last to be cut when too many bytes are unread.
        """
        ...

    def set_plan(self, run_uid: bytes, plan_hash: bytes) -> None:
        """Set the run and plan that hello compares: peers with others are refused with a reason."""
        ...

    def set_addresses(self, records: Sequence[AddressRecord]) -> None:
        """Set the address records of the backend's book; the node dials these peers and redials by itself."""
        ...

    def set_bootstrap(self, addresses: Sequence[PeerAddress]) -> None:
        """Set addresses of nodes that need no book (N3); replaces those set before."""
        ...

    def bootstrap(self) -> tuple[BootstrapPeer, ...]: ...

    def set_sync_handler(self, handler: SyncHandler) -> None: ...

    async def publish(self, message: bytes) -> None:
        """Gossip one message of at most 4 KiB to all allowed peers.

        Raises:
            NetworkError: the message is too large.
        """
        ...

    def messages(self) -> trio.MemoryReceiveChannel[tuple[bytes, bytes]]:
        """Receive gossip: (key of the node that first sent it, message). The queue is bounded and drops the oldest."""
        ...

    async def provide(self, data: bytes | Path, *, expires: tuple[int, int] | None) -> bytes:
        """Offer a blob and return its id.

        `expire` drops it after round `expires` (epoch, height); if `expires` is None, only `withdraw` does.
        """
        ...

    async def withdraw(self, blob_id: bytes) -> None: ...

    def expire(self, epoch: int, height: int) -> None:
        """Drop the blobs that expire before round (epoch, height)."""
        ...

    async def fetch(self, blob_id: bytes, sources: Sequence[bytes], *, size_bytes: int, deadline: float) -> bytes:
        """Fetch a payload of exactly `size_bytes` from one source, or from another on failure; check it against its id.

        `deadline` is on trio's clock. This node offers the blob afterwards.

        Raises:
            NetworkError: no source delivered it in time.
        """
        ...

    async def fetch_many(
        self, blobs: Sequence[tuple[bytes, int]], sources: Sequence[bytes], folder: Path, *, deadline: float,
        progress: Callable[[int], None] | None = None,
    ) -> dict[bytes, Path]:  # fmt: skip
        """Fetch blobs, given as (id, size in bytes), into `folder/<id in hex>` from all sources at once.

        Many small blobs are requested at a time; files that exist already are checked, not fetched.
        `progress` is called with the bytes present. This node offers the files until `withdraw`.

        Raises:
            NetworkError: not all were delivered in time, or the disk failed; what is there stays.
        """
        ...

    async def ask(self, peer: bytes, request: SyncRequest, *, timeout_s: float) -> SyncReply:
        """Send one peer a sync request and return its reply.

        Raises:
            NetworkError: the peer is not connected, refused, or did not answer in time.
        """
        ...

    def connected(self) -> frozenset[bytes]:
        """Return the keys of the peers that are connected and have completed hello."""
        ...

    def statistics(self) -> NetworkStatistics: ...


class Trainer(Protocol):
    """One replica of the model with its momentum. One call at a time; heavy work runs outside the event loop.

    Calls raise `TrainerError` if the trainer crashes, hangs or runs out of memory; the supervisor restarts it,
    and the caller loads again.
    """

    async def load(self, request: LoadRequest) -> LoadReply:
        """Load weights, and momentum if the source is a resume snapshot."""
        ...

    async def train(self, request: TrainRequest) -> TrainReply:
        """Train one batch and return the compressed payload; after `cancel` the reply says `cancelled`."""
        ...

    async def merge(self, request: MergeRequest) -> TrainReply:
        """Go on with a round of local steps after a reply of `train` that waits for it."""
        ...

    async def prepare(self, payload: bytes) -> None:
        """Have a payload of local steps decoded before it is merged or applied; calls that run are not held up."""
        ...

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        """Apply a decided set bit-exactly and return the weight part of the state digest."""
        ...

    async def open(self, request: OpenRequest) -> OpenReply:
        """Open chunks of its own momenta."""
        ...

    async def audit(self, request: AuditRequest) -> AuditReply:
        """Compute pieces of others at an earlier round's weights, and put the own weights back, bit for bit.

        Training comes first: any other call, and `cancel`, end it at the next micro-batch.
        """
        ...

    async def score(self, request: ScoreRequest) -> ScoreReply:
        """Score choices after contexts; nothing of the trainer changes. Any other call, and `cancel`, end it soon."""
        ...

    async def snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        """Write a resume snapshot or a Hugging Face export."""
        ...

    async def cancel(self) -> None:
        """End the running `train` or `merge` at the next micro-batch and undo its changes (A4)."""
        ...

    async def shorten(self, within_s: float) -> None:
        """Have the running `train` or `merge` of local steps end within this time, with fewer of them (LS9)."""
        ...

    async def stop(self) -> None:
        """Stop the trainer and all processes that it started."""
        ...
