"""What surrounds a part of the client's runtime, replaced: peers, data, offers of weights, the shell of trainer tasks.

What needs a whole client has `psyche.testing.swarm`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import trio
from kits.log import Log
from kits.storage.servers import OPTIONS

from psyche.client.engine import actions as act
from psyche.client.runtime.weights.loading import Loader, get_snapshot_folder
from psyche.client.runtime.weights.serving import Offer, Serving
from psyche.core.encoding.manifest import TensorEntry, encode_manifest
from psyche.core.state.state import Checkpoint, CheckpointKind, Coordinator
from psyche.errors import NetworkError
from psyche.modeling.snapshot import get_file_entries, list_snapshots
from psyche.storage.port import StorageOptions
from psyche.telemetry import types
from psyche.testing.builders import build_hash, build_model
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.wire.crypto import blake3_hash, blob_id_of, compute_state_digest
from psyche.wire.ports import SyncReply, SyncRequest
from psyche.wire.trainer import SnapshotRequest

CHAIN: Final = build_hash("chain")
KEYS: Final = [build_hash("peer", number) for number in range(9)]
FILES: Final = get_file_entries({"config.json": b"{}"})
Answer = Callable[[SyncRequest], SyncReply]


@dataclass
class FakeNetwork:
    """Peers that answer and deliver as told; nobody else is connected.

    `answers`: by peer. `reply`: that of all peers, where there are no such answers. `fail`: how everything fails.
    """

    key: bytes = KEYS[0]
    answers: dict[bytes, Answer] = field(default_factory=dict)
    reply: SyncReply | None = None
    fail: Exception | None = None
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    offered: list[bytes] = field(default_factory=list)
    withdrawn: list[bytes] = field(default_factory=list)
    asked: list[tuple[bytes, SyncRequest]] = field(default_factory=list)
    fetched: list[bytes] = field(default_factory=list)
    sources: list[bytes] = field(default_factory=list)

    def connected(self) -> frozenset[bytes]:
        return frozenset(self.answers) if self.reply is None else frozenset(KEYS)

    async def ask(self, peer: bytes, request: SyncRequest, *, timeout_s: float) -> SyncReply:
        assert timeout_s > 0
        self.asked.append((peer, request))
        if self.fail is not None:
            raise self.fail
        if peer in self.answers:
            return self.answers[peer](request)
        if self.reply is None:
            raise NetworkError("not connected")
        return self.reply

    async def fetch(self, blob_id: bytes, _sources: Sequence[bytes], *, size_bytes: int, deadline: float) -> bytes:
        if self.fail is not None:
            raise self.fail
        assert len(self.blobs[blob_id]) == size_bytes
        return self.blobs[blob_id]

    async def fetch_many(
        self, blobs: Sequence[tuple[bytes, int]], sources: Sequence[bytes], folder: Path, **_more: Any
    ) -> dict[bytes, Path]:
        found = {}
        self.sources += sources
        for blob_id, _ in blobs:
            self.fetched.append(blob_id)
            if blob_id not in self.blobs:
                raise NetworkError("nobody delivers")
            found[blob_id] = folder / blob_id.hex()
            found[blob_id].write_bytes(self.blobs[blob_id])
        return found

    async def provide(self, data: bytes | Path, *, expires: object) -> bytes:
        assert expires is None
        blob_id = blob_id_of(data if isinstance(data, bytes) else data.read_bytes())
        self.offered.append(blob_id)
        return blob_id

    async def withdraw(self, blob_id: bytes) -> None:
        self.withdrawn.append(blob_id)


@dataclass
class FakeData:
    """Gives tokens, all of them zero, or fails or hangs as told."""

    fail: Exception | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)
    hangs: bool = False

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:
        self.asked.append((epoch, height))
        if self.hangs:
            await trio.sleep_forever()
        if self.fail is not None:
            raise self.fail
        return bytes(4 * (end - start + 1))


class NoEngine:
    def get_announcements(self, _epoch: int, _height: int, _have: int) -> tuple[bytes, ...]:
        return ()

    @property
    def tables(self) -> "NoEngine":
        return self

    def show(self, root: bytes) -> tuple[bytes, ...] | None:
        return (b"signed",) if root == KEYS[1] else None


def build_offer(weights: bytes = b"w" * 32, **changes: Any) -> tuple[Offer, bytes]:
    """An honest manifest and the digest it gives."""
    entry = TensorEntry("weight.00", (len(weights) // 4,), blob_id_of(weights))
    manifest = encode_manifest([entry], FILES)
    offer = Offer(manifest=manifest, chain=CHAIN, epoch=3, step=30, data_index=300)
    return msgspec.structs.replace(offer, **changes), compute_state_digest(CHAIN, blake3_hash(manifest))


def answer_with(offer: Offer | bytes) -> Answer:
    raw = offer if isinstance(offer, bytes) else msgspec.msgpack.encode(offer)
    return lambda _request: SyncReply(found=True, items=(raw,))


async def write_snapshot(path: Path, name: str, *, chain: bytes = CHAIN, **changes: Any) -> bytes:
    """A snapshot of the weights of this name, as a trainer writes it; their digest."""
    trainer = DummyTrainer(name=name)
    values: dict[str, Any] = {"epoch": 0, "step": 1, "data_index": 0} | changes
    values.setdefault("digest", compute_state_digest(chain, trainer.compute_part()))
    await trainer.snapshot(SnapshotRequest(kind="resume", path=str(path), chain=chain, **values))
    return values["digest"]


@dataclass
class Place:
    """A loader over an empty disk and a network without peers."""

    root: Path
    network: FakeNetwork = field(default_factory=FakeNetwork)
    log: Log = field(default_factory=Log)
    storage: StorageOptions = OPTIONS

    def __post_init__(self) -> None:
        self.snapshots = self.root / "resume"
        self.serving = Serving(NoEngine(), self.network)  # type: ignore[arg-type]
        self.loader = Loader(self.network, self.serving, self.snapshots, self.root, self.log, self.storage)  # type: ignore[arg-type]
        self.state = Coordinator(model=build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "model")))

    async def write_snapshot(
        self, name: str = "weights", *, epoch: int = 0, step: int = 1, chain: bytes = CHAIN, lying: bool = False
    ) -> bytes:
        part = DummyTrainer(name=name).compute_part()
        digest = build_hash("a lie") if lying else compute_state_digest(chain, part)
        path = self.snapshots / get_snapshot_folder(epoch, step, digest)
        return await write_snapshot(
            path, name, chain=chain, epoch=epoch, step=step, data_index=step * 10, digest=digest
        )

    def get_digests(self) -> set[bytes]:
        return {s.digest for s in list_snapshots(self.snapshots)}

    def fetch(self, digest: bytes | None) -> Awaitable[Any]:
        return self.loader.fetch(self.state, digest, 1e9)


@dataclass
class TaskShell:
    """Hears what becomes of requests to the trainer, and has the data and payloads that they need.

    `data` is set once the data is there, `replay_written` once the replay store is.
    """

    state: Coordinator = field(default_factory=lambda: Coordinator(run_id="run", model=build_model()))
    events: list[act.EngineEvent] = field(default_factory=list)
    told: Log = field(default_factory=Log)
    bodies: dict[bytes, bytes] = field(default_factory=dict)
    data: trio.Event = field(default_factory=trio.Event)
    data_error: Exception | None = None
    replay_written: trio.Event = field(default_factory=trio.Event)
    heard: trio.Event = field(default_factory=trio.Event)

    def feed(self, event: act.EngineEvent) -> None:
        self.events.append(event)
        self.heard.set()
        self.heard = trio.Event()

    def log(self, event: types.Event) -> None:
        self.told.emit(event)

    async def take(self, *_place: int) -> bytes:
        await self.data.wait()
        if self.data_error is not None:
            raise self.data_error
        return bytes(4 * 16)

    def find(self, blobs: tuple[bytes, ...]) -> tuple[bytes, ...] | None:
        return tuple(self.bodies[blob] for blob in blobs) if all(b in self.bodies for b in blobs) else None

    async def wait_for_replay(self) -> None:
        await self.replay_written.wait()


def build_train(height: int = 0) -> act.Train:
    return act.Train(0, height, height + 1, 0, 0, 1e-3, 0.0, (), in_flight=True)


def build_apply(height: int = 3, blobs: tuple[bytes, ...] = (), **changes: Any) -> act.Apply:
    """A decided set of a member for each body."""
    values: dict[str, Any] = {
        "epoch": 0, "height": height, "step": height + 1, "lr": 1e-3, "lr_bits": height, "run_update": True,
        "full_digest": True, "random_seed": height, "blobs": blobs,
        "applied": tuple((member, build_hash("commitment", member)) for member in range(len(blobs))),
    }  # fmt: skip
    return act.Apply(**(values | changes))
