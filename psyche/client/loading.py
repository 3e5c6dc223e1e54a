"""Where weights come from: own snapshots, the configured source, peers (S8, S9, P4)."""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from psyche.client.serving import MAX_FILES, Manifest, Serving, read_manifest
from psyche.core.limits import NO_UPLOADER
from psyche.core.manifest import TensorEntry, decode_manifest
from psyche.core.state import ZERO32, CheckpointKind, Coordinator, Model
from psyche.errors import NetworkError, PsycheError, TrainerError
from psyche.modeling.snapshot import (
    INFO_NAME,
    MAX_MODEL_FILE_BYTES,
    MODEL_NAME,
    MODEL_SUFFIXES,
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
PARTS: Final = ".parts-"  # a fetch that failed goes on where it stopped, if it is of the same weights
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


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
        """The configured source, or one that a member named (S10), where it gives (or may give) these weights."""
        if digest is not None and source_digest not in (digest, ZERO32):
            return None
        named = next(self._iter_named(state), None)
        if named is not None or state.checkpoint.uploader != NO_UPLOADER:
            return named and Source(named, is_snapshot=True, name="checkpoint on record")
        try:
            path = self.get_configured(state.model)
        except TrainerError:
            if digest is None:
                raise
            return None
        return Source(path, is_snapshot=False, name="configured source") if path.is_dir() else None

    def _iter_named(self, state: Coordinator) -> Iterator[Path]:
        """Snapshots on this machine at Local places that members named.

        Any member may name any place: what counts are snapshots below the local root, and of them what a snapshot
        has. Other folders are not looked into, for their files would be handed on to peers (B21).
        """
        owners = 1 if state.checkpoint.uploader == NO_UPLOADER else 0
        root = self._local_root.resolve()
        for source in (state.model.checkpoint, *state.model.extra_checkpoints)[owners:]:
            path = (root / source.name).resolve()
            if source.kind is CheckpointKind.LOCAL and path.is_relative_to(root) and (path / INFO_NAME).is_file():
                yield path

    async def fetch(
        self, state: Coordinator, digest: bytes, deadline: float, progress: Callable[[int, int], None]
    ) -> Source:
        """Fetch a snapshot from peers: nobody of them is trusted, everything is checked against the digest (S9).

        Raises:
            NetworkError: no peer has it, or the transfer failed.
        """
        offer = await self._find_manifest(state, digest)
        return await self._fetch_offer(state, offer, digest, deadline, progress)

    async def _fetch_offer(
        self, state: Coordinator, offer: Manifest, digest: bytes, deadline: float, progress: Callable[[int, int], None]
    ) -> Source:
        mark = state.certified
        path = self._snapshots / get_snapshot_name(mark.epoch, mark.step, digest)
        return await self.assemble(state, offer, digest, deadline, path, progress=progress)

    async def assemble(
        self,
        state: Coordinator,
        offer: Manifest,
        digest: bytes,
        deadline: float,
        path: Path,
        *,
        own: Mapping[bytes, Path] | None = None,
        sources: Sequence[bytes] = (),
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Source:
        """A snapshot at `path` of the weights that a checked `offer` lists, fetched but for what is in `own`.

        `own` has files by blob id; `sources` are keys of peers (none: everybody who is connected).

        Raises:
            NetworkError: the transfer failed, or the peer's model files may not be taken.
            TrainerError: the files do not make up the snapshot.
        """
        check_offered_files(offer)
        entries = decode_manifest(offer.manifest)
        folder = self._snapshots / f"{PARTS}{blake3_hash(offer.manifest).hex()[:16]}"
        await trio.to_thread.run_sync(_make_parts_folder, folder)
        known = own or {}
        blobs = {entry.blob_id: get_tensor_bytes(entry) for entry in entries if entry.blob_id not in known}
        total = sum(blobs.values())
        found = await self._network.fetch_many(
            list(blobs.items()), sources or self._get_sources(), folder, deadline=deadline,
            progress=lambda n: progress(n, total),
        )  # fmt: skip
        for blob_id in blobs:
            await self._network.withdraw(blob_id)  # the files move into the snapshot, from where they are offered
        paths = await trio.to_thread.run_sync(_spread, entries, {**found, **known}, folder)
        files = await self._get_model_files(state, offer, deadline)
        await trio.to_thread.run_sync(_assemble, path, state, offer, digest, paths, files)
        await trio.to_thread.run_sync(remove_folder, folder)
        return Source(path, is_snapshot=True, name="peers")

    async def find_leading(self, state: Coordinator, digest: bytes, deadline: float) -> Source | None:
        """Full-value mode: the copy of the first member that has one, so that all go on from the same (S2).

        The digest covers the applied sets only, so it is one member's word which weights these are.
        """
        own = await self.find_local(digest)
        own_root = (await trio.to_thread.run_sync(read_snapshot_info, own.path)).weight_root if own else None
        for member in state.clients:
            if member.p2p == self._network.key:
                if own is not None:
                    return own
                continue
            try:
                offer = await self.ask_manifest(state, digest, member.p2p)
            except NetworkError:
                continue
            if own is not None and blake3_hash(offer.manifest) == own_root:
                return own
            return await self._fetch_offer(state, offer, digest, deadline, lambda _done, _total: None)
        return own

    def _get_sources(self) -> list[bytes]:
        return sorted(self._network.connected())

    async def _find_manifest(self, state: Coordinator, digest: bytes) -> Manifest:
        reasons: list[str] = []
        for peer in self._get_sources():
            try:
                return await self.ask_manifest(state, digest, peer)
            except NetworkError as error:
                reasons.append(str(error))
        raise NetworkError(
            f"no peer has the weights {digest.hex()[:16]}: {'; '.join(reasons) or 'no peer is connected'}"
        )

    async def ask_manifest(self, state: Coordinator, digest: bytes, peer: bytes) -> Manifest:
        """A peer's manifest of the weights with this full digest, checked against it.

        Raises:
            NetworkError: it has none, or one that does not give the digest.
        """
        name = f"peer {peer.hex()[:8]}"
        reply = await self._network.ask(peer, SyncRequest("manifest", key=digest), timeout_s=MANIFEST_TIMEOUT_S)
        offer = read_manifest(reply.items[0]) if reply.found and reply.items else None
        if offer is None:
            raise NetworkError(f"{name} does not have it")
        if compute_weights_digest(state.model, offer.chain, blake3_hash(offer.manifest)) != digest:
            raise NetworkError(f"{name} showed a manifest that does not give the digest")
        return offer

    async def _get_model_files(self, state: Coordinator, offer: Manifest, deadline: float) -> dict[str, bytes]:
        """The model's own folder wins; else what the peer offers."""
        try:
            own = await trio.to_thread.run_sync(self._read_own_files, state)
            if "config.json" in own:
                return own
        except (PsycheError, OSError):
            pass
        files: dict[str, bytes] = {}
        for file in offer.files:
            files[file.name] = await self._network.fetch(
                file.blob_id, self._get_sources(), size_bytes=file.size_bytes, deadline=deadline
            )
        return files

    def _read_own_files(self, state: Coordinator) -> dict[str, bytes]:
        named = next(self._iter_named(state), None)
        if named is not None:
            return read_model_files(named / MODEL_NAME)
        if state.checkpoint.uploader != NO_UPLOADER:
            return {}
        return read_model_files(self.get_configured(state.model))

    async def keep(self, certified: bytes, newest: bytes) -> None:
        """Keep the certified snapshot and the newest other one; serve both (P6).

        `newest` is the one that was written last: epoch and step do not tell repetitions of
        the last drain round apart, nor what another run left in this folder.
        """
        snapshots = await trio.to_thread.run_sync(list_snapshots, self._snapshots)
        others = sorted((s for s in snapshots if s.digest != certified), key=lambda s: s.digest != newest)
        kept = [s for s in snapshots if s.digest == certified][:1] + others[:1]
        for snapshot in kept:
            await self._serving.offer(snapshot.path)
        await self._serving.keep_only(frozenset(s.digest for s in kept))
        for snapshot in snapshots:
            if snapshot not in kept:
                await trio.to_thread.run_sync(remove_folder, snapshot.path)

    async def read(self, digest: bytes) -> SnapshotInfo | None:
        """What is known of an own snapshot."""
        source = await self.find_local(digest)
        return await trio.to_thread.run_sync(read_snapshot_info, source.path) if source else None


def check_offered_files(offer: Manifest) -> None:
    """Whether a peer's model files may be fetched and written: plain names, bounded sizes, never code (B21).

    Raises:
        NetworkError: naming the file.
    """
    if len(offer.files) > MAX_FILES:
        raise NetworkError(f"a peer offers {len(offer.files)} model files, at most {MAX_FILES} are taken")
    for file in offer.files:
        is_plain = _FILE_NAME.fullmatch(file.name) is not None and file.name.endswith(MODEL_SUFFIXES)
        if not is_plain or not 0 <= file.size_bytes <= MAX_MODEL_FILE_BYTES:
            raise NetworkError(f"model file {file.name!a} offered by a peer: its name or size is not allowed")


def compute_weights_digest(model: Model, chain: bytes, weight_root: bytes) -> bytes:
    """The full digest of loaded weights; in full-value mode the weight part is zero (S2)."""
    return compute_state_digest(chain, weight_root if model.optimizer.quantize_1bit else ZERO32)


def _assemble(
    path: Path, state: Coordinator, offer: Manifest, digest: bytes, paths: list[Path], files: dict[str, bytes]
) -> SnapshotInfo:
    mark = state.certified  # of which time the weights are, the record says, not the peer
    return assemble_snapshot(
        path,
        manifest=offer.manifest,
        tensors=paths,
        model_files=files,
        epoch=mark.epoch,
        step=mark.step,
        data_index=mark.data_index,
        chain=offer.chain,
        digest=digest,
    )


def _spread(entries: Sequence[TensorEntry], found: Mapping[bytes, Path], folder: Path) -> list[Path]:
    """One file per tensor: equal tensors are one blob, but each has its own place in the snapshot."""
    paths: list[Path] = []
    for index, entry in enumerate(entries):
        path = folder / f"tensor-{index:05d}"
        shutil.copyfile(found[entry.blob_id], path)
        paths.append(path)
    return paths


def get_snapshot_name(epoch: int, step: int, digest: bytes) -> str:
    """The folder name of a snapshot."""
    return f"epoch-{epoch:05d}-step-{step:08d}-{digest.hex()[:12]}"


def _make_parts_folder(folder: Path) -> None:
    """The parts of other weights go: nobody will ask for them again, and they are as large as the model."""
    for other in folder.parent.glob(f"{PARTS}*"):
        if other != folder:
            remove_folder(other)
    folder.mkdir(parents=True, exist_ok=True)


def remove_folder(path: Path) -> None:
    """Delete a folder; what cannot be deleted is left."""
    shutil.rmtree(path, ignore_errors=True)
