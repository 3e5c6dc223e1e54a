"""The ports of a client: what it needs of a coordinator's home, of a network and of a trainer.

Implementations: `server.backend` (TCP), `network.node` (libp2p), `network.memory` (in memory),
`modeling.trainer` (in process) and `modeling.trainer_process` (child process). Every wait of a
port is bounded by its caller or by the deadline it is given.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio

from psyche.core.messages import WitnessMessage
from psyche.core.state import Checkpoint, Coordinator
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


@dataclass(frozen=True, slots=True)
class AddressRecord:
    """Where a node can be reached, signed by its p2p key.

    `signature` is over `wire.crypto.address_record_bytes`. At most 8 addresses of at most 128 bytes.
    """

    p2p: bytes
    addresses: tuple[str, ...]  # multiaddrs without /p2p
    expires_unix: int
    signature: bytes


class Backend(Protocol):
    """The coordinator's home as a client sees it.

    Every message returns when it is on record, or raises the coordinator's own error. A repeat that
    has taken effect already counts as success (K3). An implementation reconnects and resends by
    itself; it raises `BackendError` only when it gives up for good.
    """

    def states(self) -> AsyncIterator[Coordinator]:
        """States as they come, newest only, nonce rising."""
        ...

    async def join(self, record: AddressRecord) -> None:
        """Ask for a place in the next epoch (M1, M2)."""
        ...

    async def withdraw(self, epoch: int, member: int) -> None:
        """Leave the running epoch, or take a join back (M4)."""
        ...

    async def witness(self, message: WitnessMessage) -> None:
        """Put a witness record on record (W4)."""
        ...

    async def warmup_witness(self, epoch: int, member: int, digest: bytes) -> None:
        """Say that the weights are loaded (S8)."""
        ...

    async def health_check(self, epoch: int, height: int, member: int) -> None:
        """Accuse a silent witness (H4)."""
        ...

    async def report_equivocation(self, first: bytes, second: bytes) -> None:
        """Show two signed results of one member for one round, in their wire form (R7)."""
        ...

    async def checkpoint(self, epoch: int, digest: bytes, source: Checkpoint) -> None:
        """Name a place from which `certified` can be loaded (S10)."""
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
    blobs_served: int = 0
    blobs_fetched: int = 0
    peers: int = 0
    per_peer_rate_bytes_s: dict[bytes, float] = field(default_factory=dict)


class Network(Protocol):
    """A node among peers. Peers are named by their 32-byte p2p (Ed25519) key."""

    @property
    def key(self) -> bytes:
        """This node's p2p public key."""
        ...

    def address_record(self) -> AddressRecord:
        """A fresh signed record of where this node listens."""
        ...

    def set_allowed(self, keys: frozenset[bytes]) -> None:
        """Who may talk to this node; others are closed and their messages refused."""
        ...

    def set_plan(self, run_uid: bytes, plan_hash: bytes) -> None:
        """What hello compares: peers with another run or plan are refused with a reason."""
        ...

    def set_addresses(self, records: Sequence[AddressRecord]) -> None:
        """Whom to keep connected to; redials by itself."""
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
