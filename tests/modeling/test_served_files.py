"""What a peer serves beside the right weights: other model files, too many, too large (S2, S9, B25).

Real trainers and real nodes on in-memory links; the liar changes what it has on its disk.
"""

import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
import trio
from kits.log import Log
from kits.storage.servers import OPTIONS
from trio.testing import MockClock

from psyche.client.runtime.weights.loading import Loader, get_snapshot_folder
from psyche.client.runtime.weights.serving import Offer, Serving, read_offer
from psyche.core.encoding.manifest import FileEntry, Manifest, decode_manifest, encode_manifest
from psyche.core.state.state import Checkpoint, CheckpointKind, Coordinator, Mark, Model
from psyche.errors import NetworkError
from psyche.modeling import snapshot as disk
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.network.memory.line import LinkConditions
from psyche.network.memory.node import MemoryHub, MemoryNode
from psyche.telemetry import types
from psyche.testing.builders import build_hash
from psyche.wire.crypto import Identity, blake3_hash, blob_id_of, compute_state_digest
from psyche.wire.ports import SyncReply, SyncRequest
from psyche.wire.trainer import LoadRequest, SnapshotRequest

CHAIN = build_hash("chain")
CHANGES = ((b'"rms_norm_eps": 1e-06', b'"rms_norm_eps": 1e+03'), (b'"hidden_act": "silu"', b'"hidden_act": "relu"'))
LARGE_BYTES = 48 << 20


def change_config(path: Path) -> None:
    """The config of the attack: as many bytes, and a model that computes something else."""
    raw = path.read_bytes()
    for old, new in CHANGES:
        assert old in raw
        raw = raw.replace(old, new)
    path.write_bytes(raw)


class NoEngine:
    """Nobody asks for announcements here."""


@dataclass
class Peer:
    """A client's disk, its node, what it serves and how it loads."""

    folder: Path
    node: MemoryNode
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        self.serving = Serving(NoEngine(), self.node)  # type: ignore[arg-type]
        self.node.set_sync_handler(self.serving.answer)
        self.loader = Loader(self.node, self.serving, self.folder / "resume", self.folder, self.log, OPTIONS)

    def get_files(self) -> set[str]:
        return {path.name for path in self.folder.rglob("resume/*/model/*")}


@dataclass
class Place:
    """A run whose weights some peers have, and a newcomer with an empty disk."""

    model: Model
    peers: list[Peer]
    newcomer: Peer
    digest: bytes = b""

    async def share(self, folder: Path, peer: Peer) -> Path:
        """Write the snapshot of a model folder, which the peer then has; `serve` offers it."""
        engine = TrainerEngine()
        reply = engine.load(LoadRequest(path=str(folder), is_snapshot=False, model=self.model, micro_batch_size=1))
        self.digest = compute_state_digest(CHAIN, reply.weight_root)
        path = peer.folder / "resume" / get_snapshot_folder(0, 1, self.digest)
        engine.snapshot(
            SnapshotRequest(
                kind="resume", path=str(path), epoch=0, step=1, data_index=0, chain=CHAIN, digest=self.digest
            )
        )
        return path

    async def fetch(self, limit_s: float = 30) -> Path:
        state = Coordinator(model=self.model, certified=Mark(digest=self.digest, epoch=0, step=1))
        deadline = trio.current_time() + limit_s
        source = await self.newcomer.loader.fetch(state, self.digest, deadline, lambda _done, _total: None)
        return source.path

    def load(self, path: Path) -> tuple[bytes, float]:
        """The digest of the newcomer's model, and what it computes with."""
        engine = TrainerEngine()
        reply = engine.load(LoadRequest(path=str(path), is_snapshot=True, model=self.model, micro_batch_size=1))
        config = engine._get_loaded().replica.model.config
        return compute_state_digest(reply.chain, reply.weight_root), float(config.rms_norm_eps)


@asynccontextmanager
async def open_place(root: Path, model: Model, peers: int) -> AsyncIterator[Place]:
    hub = MemoryHub(random.Random(1), LinkConditions(latency_s=0.01))
    async with AsyncExitStack() as stack:
        found: list[Peer] = []
        for number in range(peers + 1):
            identity = Identity(bytes([number + 1]) * 32)
            node = await stack.enter_async_context(hub.open_node(identity, root / f"{number}" / "network"))
            found.append(Peer(root / f"{number}", node))
        for peer in found:
            peer.node.set_plan(build_hash("run"), build_hash("plan"))
            peer.node.set_allowed(frozenset(other.node.key for other in found))
            peer.node.set_addresses([other.node.address_record() for other in found if other is not peer])
        for peer in found:
            await peer.node.wait_for_peers(frozenset(other.node.key for other in found if other is not peer))
        found.sort(key=lambda peer: peer.node.key)  # in which order the newcomer asks
        newcomer = found.pop()
        yield Place(replace(model, checkpoint=Checkpoint(CheckpointKind.LOCAL, "model")), found, newcomer)


async def test_a_changed_config_beside_the_right_weights_is_never_used(
    tiny_model: Path, run_model: Model, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """B25: nobody else has them, so nothing is loaded; the digest on record covers the config."""
    async with open_place(tmp_path, run_model, peers=1) as place:
        path = await place.share(tiny_model, place.peers[0])
        change_config(path / "model" / "config.json")
        await place.peers[0].serving.offer(path)
        try:
            taken = await place.fetch()
        except NetworkError:
            assert disk.list_snapshots(place.newcomer.folder / "resume") == []
        else:
            pytest.fail(f"loaded {place.load(taken)}")


def rewrite(path: Path, **files: bytes) -> None:
    """Make a snapshot's manifest fit its changed files: all that the liar can do but break a hash."""
    info = disk.read_snapshot_info(path)
    for name, data in files.items():
        (path / "model" / name.replace("_json", ".json")).write_bytes(data)
    manifest = encode_manifest(info.entries, disk.read_file_entries(path / "model"))
    (path / "manifest.bin").write_bytes(manifest)
    other = replace(info, weight_root=blake3_hash(manifest))
    disk.write_info(path, other, None)


async def test_who_lists_other_files_is_refused_named_and_not_asked_again(
    tiny_model: Path, run_model: Model, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """B25: the newcomer takes the certified files from another member, and trains and exports with them."""
    async with open_place(tmp_path, run_model, peers=2) as place:
        liar, honest = place.peers
        path = await place.share(tiny_model, liar)
        await honest.serving.offer(await place.share(tiny_model, honest))
        config = path / "model" / "config.json"
        change_config(config)
        rewrite(path, config_json=config.read_bytes())
        await liar.serving.offer(path)
        asked: list[bytes] = []
        answer = liar.serving.answer

        async def count(peer: bytes, request: SyncRequest) -> SyncReply:
            asked.append(request.key)
            return await answer(peer, request)

        liar.node.set_sync_handler(count)
        for _ in range(2):
            found = await place.fetch()
            assert place.load(found) == (place.digest, 1e-6)
        assert asked == [place.digest], "the second time it is not asked"
        reason = "showed a manifest that does not give the digest"
        refused = types.SourceRefused(peer=liar.node.key, digest=place.digest, reason=reason)
        assert place.newcomer.log.get(types.SourceRefused) == [refused]
        assert not liar.node._server._per_peer, "nor for any piece"


async def test_files_that_belong_to_no_model_are_not_fetched(
    tiny_model: Path, run_model: Model, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """B25: whatever lies in a member's folder, a newcomer's disk gets what the digest covers."""
    async with open_place(tmp_path, run_model, peers=1) as place:
        path = await place.share(tiny_model, place.peers[0])
        for number in range(60):
            (path / "model" / f"large-{number}.json").write_bytes(bytes(1 << 20))
        await place.peers[0].serving.offer(path)
        await place.fetch()
        assert place.newcomer.get_files() == {"config.json", "generation_config.json", "tokenizer_config.json"}
        assert place.newcomer.node.statistics().bytes_received < 1 << 20


def encode_anyway(manifest: Manifest, files: list[FileEntry]) -> bytes:
    """A manifest with files that the encoder refuses."""
    head = encode_manifest(manifest.tensors, ())[:-4]
    body = b"".join(
        len(file.name).to_bytes(2, "little") + file.name.encode() + file.size_bytes.to_bytes(8, "little") + file.blob_id
        for file in files
    )
    return head + len(files).to_bytes(4, "little") + body


LARGE = [FileEntry(f"large-{number:02d}.json", 60 << 20, blob_id_of(bytes([number]))) for number in range(60)]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (LARGE, "60 model files, at most 16"),
        (LARGE[:1], "'large-00.json' is not allowed in a run's model"),
        ([FileEntry("tokenizer.json", (64 << 20) + 1, bytes(32))], "bytes in all, at most 67108864"),
        ([FileEntry("vocab.json", 1 << 63, bytes(32))], "bytes in all"),
        ([FileEntry("model.py", 1, bytes(32))], "'model.py' is not allowed"),
        ([FileEntry("../config.json", 1, bytes(32))], "'../config.json' is not allowed"),
        ([FileEntry("config.json", 1, bytes(32))] * 2, "names of files do not rise"),
    ],
)
@pytest.mark.parametrize("is_certified", [False, True], ids=["beside the weights", "under the digest"])
async def test_too_many_or_too_large_files_are_refused_before_a_byte_of_them_is_fetched(
    tiny_model: Path,
    run_model: Model,
    tmp_path: Path,
    files: list[FileEntry],
    reason: str,
    is_certified: bool,
    autojump_clock: MockClock,
) -> None:
    """B25: also if a quorum had certified such a list."""
    async with open_place(tmp_path, run_model, peers=1) as place:
        (liar,) = place.peers
        await liar.serving.offer(await place.share(tiny_model, liar))
        reply = await liar.serving.answer(b"", SyncRequest("manifest", key=place.digest))
        offer = read_offer(reply.items[0])
        assert offer is not None
        raw = encode_anyway(decode_manifest(offer.manifest), files)
        lie = SyncReply(found=True, items=(msgspec.msgpack.encode(msgspec.structs.replace(offer, manifest=raw)),))
        if is_certified:
            place.digest = compute_state_digest(CHAIN, blake3_hash(raw))

        async def answer(_peer: bytes, _request: SyncRequest) -> SyncReply:
            await trio.lowlevel.checkpoint()
            return lie

        liar.node.set_sync_handler(answer)
        with pytest.raises(NetworkError, match=reason if is_certified else "does not give the digest"):
            await place.fetch()
        assert not liar.node._server._per_peer
        assert list(place.newcomer.folder.rglob("resume/*")) == []


async def test_what_is_fetched_goes_to_the_disk_and_not_into_memory(
    tiny_model: Path, run_model: Model, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """B25: a model with a large tokenizer, fetched with less memory than the tokenizer has."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "tokenizer.json").write_bytes(random.Random(5).randbytes(LARGE_BYTES))
    async with open_place(tmp_path, run_model, peers=1) as place:
        await place.peers[0].serving.offer(await place.share(folder, place.peers[0]))
        tracemalloc.start()
        try:
            path = await place.fetch(limit_s=3_000)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (path / "model" / "tokenizer.json").stat().st_size == LARGE_BYTES
    assert peak_bytes < LARGE_BYTES // 2, "both ends' windows together"
    assert [p.name for p in (place.newcomer.folder / "resume").iterdir()] == [path.name], "nothing is there twice"


async def test_an_own_folder_with_other_files_is_named_file_by_file_and_left_alone(
    tiny_model: Path, run_model: Model, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """S9: the user hears which files differ, and the run's own are used."""
    async with open_place(tmp_path, run_model, peers=1) as place:
        await place.peers[0].serving.offer(await place.share(tiny_model, place.peers[0]))
        own = place.newcomer.folder / "model"
        own.mkdir()
        (own / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
        change_config(own / "config.json")
        (own / "merges.txt").write_text("a b")
        before = {path.name: path.read_bytes() for path in own.glob("*.*")}
        found = await place.fetch()
        assert place.load(found) == (place.digest, 1e-6)
        assert {path.name: path.read_bytes() for path in own.glob("*.*")} == before
        (told,) = place.newcomer.log.get(types.ModelFilesDiffer)
        assert told.path == str(own)
        assert told.files == (
            "config.json (different content), generation_config.json (missing), tokenizer_config.json (missing), "
            "merges.txt (not part of the run's model)"
        )
        assert "copy the run's model folder, or remove yours" in told.hint


def test_an_offer_says_nothing_that_the_digest_does_not_cover_but_of_which_time_it_is() -> None:
    """S9: epoch, step and data index are taken from the record."""
    assert set(Offer.__struct_fields__) == {"manifest", "chain", "epoch", "step", "data_index"}
