"""Where weights come from: own snapshots, the configured source, peers (S8, S9, P4)."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from psyche.client.serving import Manifest, Serving, read_manifest
from psyche.core.manifest import decode_manifest
from psyche.core.state import ZERO32, CheckpointKind, Coordinator, Model
from psyche.errors import NetworkError, PsycheError, TrainerError
from psyche.modeling.snapshot import (
    SnapshotInfo,
    assemble_snapshot,
    get_tensor_bytes,
    list_snapshots,
    read_model_files,
    read_snapshot_info,
)
from psyche.wire.crypto import blake3_hash, compute_state_digest
from psyche.wire.ports import Network, SyncRequest

MANIFEST_TIMEOUT_S: Final = 10.0
MAX_MODEL_FILE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """A folder to load from: a resume snapshot, or the configured model."""

    path: Path
    is_snapshot: bool
    name: str


class Loader:
    """Finds the weights that the record asks for."""

    def __init__(self, network: Network, serving: Serving, snapshots: Path, local_root: Path) -> None:
        self._network = network
        self._serving = serving
        self._snapshots = snapshots
        self._local_root = local_root

    def get_configured(self, model: Model) -> Path:
        """The folder of the configured source.

        Raises:
            TrainerError: the source is of a kind that this client cannot load.
        """
        if model.checkpoint.kind is not CheckpointKind.LOCAL:
            raise TrainerError(f"model checkpoint {model.checkpoint.kind.name}: this client loads Local sources only")
        return self._local_root / model.checkpoint.name

    async def find_local(self, digest: bytes) -> Source | None:
        """An own snapshot of these weights."""
        snapshots = await trio.to_thread.run_sync(list_snapshots, self._snapshots)
        found = next((s for s in snapshots if s.digest == digest), None)
        return Source(found.path, is_snapshot=True, name="own snapshot") if found else None

    def find_configured(self, state: Coordinator, digest: bytes | None, source_digest: bytes) -> Source | None:
        """The configured source, where it gives (or may give) these weights."""
        if digest is not None and source_digest not in (digest, ZERO32):
            return None
        try:
            path = self.get_configured(state.model)
        except TrainerError:
            if digest is None:
                raise
            return None
        return Source(path, is_snapshot=False, name="configured source") if path.is_dir() else None

    async def fetch(
        self, state: Coordinator, digest: bytes, deadline: float, progress: Callable[[int, int], None]
    ) -> Source:
        """Fetch a snapshot from peers: nobody of them is trusted, everything is checked against the digest (S9).

        Raises:
            NetworkError: no peer has it, or the transfer failed.
        """
        offer = await self._find_manifest(digest)
        entries = decode_manifest(offer.manifest)
        folder = self._snapshots / f".parts-{digest.hex()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        sizes = [get_tensor_bytes(entry) for entry in entries]
        done = 0
        paths: list[Path] = []
        for index, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
            path = folder / f"{index:05d}.bin"
            if not path.is_file() or path.stat().st_size != size:
                await self._network.fetch_file(
                    entry.blob_id, self._get_sources(), path, size_bytes=size, deadline=deadline
                )
            done += size
            progress(done, sum(sizes))
            paths.append(path)
        files = await self._get_model_files(state, offer, deadline)
        info = await trio.to_thread.run_sync(lambda: self._assemble(offer, digest, paths, files))
        await trio.to_thread.run_sync(_remove_folder, folder)
        return Source(info.path, is_snapshot=True, name="peers")

    def _assemble(self, offer: Manifest, digest: bytes, paths: list[Path], files: dict[str, bytes]) -> SnapshotInfo:
        return assemble_snapshot(
            self._snapshots / get_snapshot_name(offer.epoch, offer.step, digest),
            manifest=offer.manifest,
            tensors=paths,
            model_files=files,
            epoch=offer.epoch,
            step=offer.step,
            data_index=offer.data_index,
            chain=offer.chain,
            digest=digest,
        )

    def _get_sources(self) -> list[bytes]:
        return sorted(self._network.connected())

    async def _find_manifest(self, digest: bytes) -> Manifest:
        reasons: list[str] = []
        for peer in self._get_sources():
            try:
                reply = await self._network.ask(peer, SyncRequest("manifest", key=digest), timeout_s=MANIFEST_TIMEOUT_S)
            except NetworkError as error:
                reasons.append(str(error))
                continue
            offer = read_manifest(reply.items[0]) if reply.found and reply.items else None
            if offer is None:
                reasons.append(f"peer {peer.hex()[:8]} does not have it")
            elif compute_state_digest(offer.chain, blake3_hash(offer.manifest)) != digest:
                reasons.append(f"peer {peer.hex()[:8]} showed a manifest that does not give the digest")
            else:
                return offer
        raise NetworkError(
            f"no peer has the weights {digest.hex()[:16]}: {'; '.join(reasons) or 'no peer is connected'}"
        )

    async def _get_model_files(self, state: Coordinator, offer: Manifest, deadline: float) -> dict[str, bytes]:
        """The model's own folder wins; else what the peer offers."""
        try:
            own = await trio.to_thread.run_sync(read_model_files, self.get_configured(state.model))
            if "config.json" in own:
                return own
        except (PsycheError, OSError):
            pass
        files: dict[str, bytes] = {}
        for file in offer.files:
            if file.size_bytes > MAX_MODEL_FILE_BYTES or "/" in file.name or file.name.startswith("."):
                raise NetworkError(f"model file {file.name!r} offered by a peer: name or size is not allowed")
            files[file.name] = await self._network.fetch(
                file.blob_id, self._get_sources(), size_bytes=file.size_bytes, deadline=deadline
            )
        return files

    async def keep(self, certified: bytes) -> None:
        """Keep the certified snapshot and the newest other one; serve both (P6)."""
        snapshots = await trio.to_thread.run_sync(list_snapshots, self._snapshots)
        newest = next((s for s in snapshots if s.digest != certified), None)
        kept = [s for s in snapshots if s.digest == certified][:1] + ([newest] if newest else [])
        for snapshot in snapshots:
            if snapshot not in kept:
                await trio.to_thread.run_sync(_remove_folder, snapshot.path)
        for snapshot in kept:
            await self._serving.offer(snapshot.path)
        await self._serving.keep_only(frozenset(s.digest for s in kept))

    async def read(self, digest: bytes) -> SnapshotInfo | None:
        """What is known of an own snapshot."""
        source = await self.find_local(digest)
        return await trio.to_thread.run_sync(read_snapshot_info, source.path) if source else None


def get_snapshot_name(epoch: int, step: int, digest: bytes) -> str:
    """The folder name of a snapshot."""
    return f"epoch-{epoch:05d}-step-{step:08d}-{digest.hex()[:12]}"


def _remove_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
