"""The ports of a client: what it needs of a coordinator's home, of a network and of a trainer.

Implementations: `backends.tcp.backend` (TCP), `network.node` (libp2p), `network.memory` (in memory),
`modeling.trainer.process` (child process). Every wait of a port is bounded by its caller or by the
deadline it is given.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import trio

from psyche.core.state.gossip import Evidence
from psyche.core.state.messages import Message
from psyche.core.state.state import Coordinator
from psyche.wire.address_record import AddressRecord
from psyche.wire.peer_address import PeerAddress
from psyche.wire.trainer import (
    ApplyReply,
    ApplyRequest,
    LoadReply,
    LoadRequest,
    SnapshotReply,
    SnapshotRequest,
    TrainReply,
    TrainRequest,
)

Proof: TypeAlias = AddressRecord | Evidence | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapPeer:
    """How it stands with one address that a person or the record has named."""

    key: bytes
    address: str
    is_allowed: bool  # nobody is dialed who has no place in the run
    is_connected: bool
    failure: str  # why the last dial brought nothing; empty: none has failed
    next_dial_at: float  # on trio's clock


class Backend(Protocol):
    """The coordinator's home as a client sees it.

    Every message returns when it is on record, or raises the coordinator's own error. A repeat that
    has taken effect already counts as success (K3). An implementation reconnects and resends by
    itself; it raises `BackendError` only when it gives up for good.
    """

    def states(self) -> AsyncIterator[Coordinator]:
        """States as they come, newest only, nonce rising."""
        ...

    async def submit(self, message: Message, proof: Proof = None) -> None:
        """Send a message; `proof` is what the home checks before it believes it.

        With a `Join` comes the address record of who joins (M2), with a `ReportEquivocation` the two signed
        results (R7); with others nothing.
        """
        ...

    async def tick(self) -> None:
        """Ask the home to look at the clock; does nothing where the home ticks itself."""
        ...

    def address_book(self) -> Sequence[AddressRecord]:
        """Where the run's nodes are, as far as the home knows."""
        ...


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """What a node asks of another: gossip it lacks, or something by its hash.

    kind "announcements": signed messages of (epoch, height) from members not in `have`.
    kind "table": the signed table of a witness with results root `key` (W7).
    kind "manifest": the weight manifest whose full digest is `key` (S7, S9); with an empty `key`: keep a copy
    of your weights of (epoch, height), so that their manifest can be asked for (S7).
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
    """The answer; `found` is false where the peer has nothing to give. Items are opaque, at most 4 MiB in all."""

    found: bool
    items: tuple[bytes, ...] = ()


SyncHandler = Callable[[bytes, SyncRequest], Awaitable[SyncReply]]


@dataclass(slots=True)
class NetworkStatistics:
    """Counters of a node; bytes are those of payloads, parameters and gossip together."""

    bytes_sent: int = 0
    bytes_received: int = 0
    gossip_sent: int = 0
    gossip_received: int = 0
    gossip_refused: int = 0
    blobs_fetched: int = 0
    peers: int = 0
    unread_bytes: int = 0  # received on all connections, and not read yet
    cuts: int = 0  # connections that were closed because they held too much
    unread_messages: int = 0  # announcements that nobody has read yet
    unsent_messages: int = 0  # announcements that wait for one peer, the most of any
    streams_per_peer: int = 0  # open, of the peer that has most
    asked_bytes: int = 0  # asked of sources, and not here yet
    blobs_offered: int = 0
    blob_memory_bytes: int = 0
    blob_disk_bytes: int = 0


class Network(Protocol):
    """A node among peers. Peers are named by their 32-byte p2p (Ed25519) key."""

    @property
    def key(self) -> bytes:
        """This node's p2p public key."""
        ...

    def address_record(self) -> AddressRecord:
        """A fresh signed record of where this node listens."""
        ...

    def set_allowed(self, keys: frozenset[bytes], members: frozenset[bytes] = frozenset()) -> None:
        """Who may talk to this node; others are closed and their messages refused.

        `members` of the epoch are the last to be cut where connections hold too much.
        """
        ...

    def set_plan(self, run_uid: bytes, plan_hash: bytes) -> None:
        """What hello compares: peers with another run or plan are refused with a reason."""
        ...

    def set_addresses(self, records: Sequence[AddressRecord]) -> None:
        """Whom to keep connected to, as the home's book says; redials by itself."""
        ...

    def set_bootstrap(self, addresses: Sequence[PeerAddress]) -> None:
        """Where some nodes are found without a book (N3); replaces what was set before."""
        ...

    def bootstrap(self) -> tuple[BootstrapPeer, ...]:
        """How it stands with each of these addresses."""
        ...

    def set_sync_handler(self, handler: SyncHandler) -> None:
        """Who answers what peers ask."""
        ...

    async def publish(self, message: bytes) -> None:
        """Gossip one message of at most 4 KiB to all allowed peers.

        Raises:
            NetworkError: too large.
        """
        ...

    def messages(self) -> trio.MemoryReceiveChannel[tuple[bytes, bytes]]:
        """Gossip as it comes: (key of the node that first sent it, message). Bounded; the oldest are dropped."""
        ...

    async def provide(self, data: bytes | Path, *, expires: tuple[int, int] | None) -> bytes:
        """Offer a blob and return its id.

        `expire` drops it after (epoch, height), `withdraw` where `expires` is None.
        """
        ...

    async def withdraw(self, blob_id: bytes) -> None:
        """Stop offering a blob."""
        ...

    def expire(self, epoch: int, height: int) -> None:
        """Drop blobs whose round has passed."""
        ...

    async def fetch(self, blob_id: bytes, sources: Sequence[bytes], *, size_bytes: int, deadline: float) -> bytes:
        """Fetch a payload of exactly `size_bytes` from one source, another on failure; checked against its id.

        `deadline` is on trio's clock. Afterwards this node offers the blob too.

        Raises:
            NetworkError: no source delivered it in time.
        """
        ...

    async def fetch_file(
        self, blob_id: bytes, sources: Sequence[bytes], path: Path, *, size_bytes: int, deadline: float,
        progress: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        """Fetch a large blob to `path` from several sources at once, resuming a part file; checked chunk by chunk."""
        ...

    async def fetch_many(
        self, blobs: Sequence[tuple[bytes, int]], sources: Sequence[bytes], folder: Path, *, deadline: float,
        progress: Callable[[int], None] | None = None,
    ) -> dict[bytes, Path]:  # fmt: skip
        """Fetch blobs, given as (id, size in bytes), to `folder/<id in hex>` from all sources at once.

        Small ones are asked for many at a time; files that are there already are checked, not fetched.
        `progress` is told the bytes present. This node offers the files until `withdraw`.

        Raises:
            NetworkError: not all were delivered in time, or the disk failed; what is there stays.
        """
        ...

    async def ask(self, peer: bytes, request: SyncRequest, *, timeout_s: float) -> SyncReply:
        """Ask one peer.

        Raises:
            NetworkError: not connected, refused, or no answer in time.
        """
        ...

    def connected(self) -> frozenset[bytes]:
        """Keys of the peers that are connected and past hello."""
        ...

    def statistics(self) -> NetworkStatistics:
        """Counters since the start."""
        ...


class Trainer(Protocol):
    """One replica of the model with its momentum. One call at a time; heavy work runs elsewhere.

    A trainer that crashes, hangs or runs out of memory raises `TrainerError`; the supervisor
    restarts it, and the caller loads again.
    """

    async def load(self, request: LoadRequest) -> LoadReply:
        """Load weights (and momentum, where the source is a resume snapshot)."""
        ...

    async def train(self, request: TrainRequest) -> TrainReply:
        """Train one batch and return the compressed payload; `cancel` ends it early with `cancelled`."""
        ...

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        """Apply a decided set exactly and return the weight part of the state digest."""
        ...

    async def snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        """Write a resume snapshot or a Hugging Face export."""
        ...

    async def cancel(self) -> None:
        """End the running `train` at the next micro-batch, undoing whatever it changed (A4)."""
        ...

    async def stop(self) -> None:
        """End the trainer and everything it started."""
        ...
