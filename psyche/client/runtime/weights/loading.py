"""Sources of weights: own snapshots, the configured source, peers (S8, S9, P4)."""

import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from psyche.client.runtime.weights.remote import Collector, compute_root, list_places, open_place
from psyche.client.runtime.weights.serving import Offer, Serving, read_offer
from psyche.core.encoding.manifest import decode_manifest, describe_file_differences, encode_manifest
from psyche.core.state.limits import NO_UPLOADER
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Coordinator, Mark, Model
from psyche.durable import resolve_path
from psyche.errors import NetworkError, PsycheError, StorageError, TrainerError, UnusableModelError, WireError
from psyche.modeling import snapshot as disk
from psyche.modeling.first_weights import gives_digest
from psyche.modeling.model_files import REMOTE
from psyche.storage.port import StorageOptions
from psyche.telemetry import types
from psyche.telemetry.types import WeightSource
from psyche.wire.crypto import blake3_hash, compute_state_digest
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Network, SyncRequest

MANIFEST_TIMEOUT_S: Final = 10.0
NEXT_PEER_S: Final = 0.5  # how long a silent peer keeps the next one from being asked for a manifest
FILES_HINT: Final = (
    "this client takes the run's files from peers and leaves yours as they are; "
    "copy the run's model folder, or remove yours"
)
PARTS: Final = ".parts-"  # a failed fetch of the same weights is resumed from here
HEAL_FOLDER: Final = ".heal"  # where a comparison assembles the agreed weights (S7)


Log = Callable[[types.Event], None]  # writes an event
Progress = Callable[[int, int], None]  # called with the bytes that are here, and with those of the whole


def _ignore(_done: int, _total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Source:
    """A folder to load from: a resume snapshot, or the configured model; `is_checked`: it is what was asked for."""

    path: Path
    is_snapshot: bool
    name: WeightSource
    is_checked: bool = False

    async def gives(self, digest: bytes, *, is_exact: bool) -> bool:
        """Whether these are the weights on record; of the run's own folder, all files are read."""
        if self.is_checked or self.is_snapshot or not is_exact:  # the digest of full values says nothing of values
            return self.is_checked
        return await trio.to_thread.run_sync(gives_digest, self.path, digest)


class Reasons(list[str]):
    """Why no source gave the weights; `for_good`: the run's model itself cannot be trained, whoever brings it."""

    for_good = False

    async def note(self, source: Source, error: TrainerError, certified: bytes | None, *, is_exact: bool) -> None:
        self.append(f"{source.name}: {error}")
        if isinstance(error, UnusableModelError) and not self.for_good:
            self.for_good = certified is None or await source.gives(certified, is_exact=is_exact)


class Loader:
    def __init__(
        self, network: Network, serving: Serving, snapshots: Path, local_root: Path, log: Log, storage: StorageOptions
    ) -> None:
        self._network = network
        self._storage = storage
        self._log = log
        self._refused: dict[bytes, str] = {}  # peers that offered wrong files for `_wanted`, and why
        self._wanted = ZERO32
        self._told = ""  # the differing files last reported to the user
        self._serving = serving
        self._snapshots = snapshots
        self._local_root = local_root

    def get_configured(self, model: Model) -> Path:
        if model.checkpoint.kind is not CheckpointKind.LOCAL:
            raise TrainerError(f"model checkpoint {model.checkpoint.kind.name}: this client loads Local sources only")
        return self._local_root / model.checkpoint.name

    async def find_local(self, digest: bytes) -> Source | None:
        snapshots = await trio.to_thread.run_sync(disk.list_snapshots, self._snapshots)
        found = next((s for s in snapshots if s.digest == digest), None)
        if found is None:
            return None
        return Source(found.path, is_snapshot=True, name=WeightSource.OWN_SNAPSHOT, is_checked=True)

    def find_configured(self, state: Coordinator, digest: bytes | None, source_digest: bytes) -> Source | None:
        """The configured source, or one that a member named (S10), if it has (or may have) these weights."""
        if digest is not None and source_digest not in (digest, ZERO32):
            return None
        named = next(self._iter_named(state), None)
        if named is not None or state.checkpoint.uploader != NO_UPLOADER:
            return named and Source(named, is_snapshot=True, name=WeightSource.ON_RECORD)
        if state.model.checkpoint.kind in REMOTE:
            return None  # `fetch` reads it
        try:
            path = self.get_configured(state.model)
        except TrainerError:
            if digest is None:
                raise
            return None
        return Source(path, is_snapshot=False, name=WeightSource.CONFIGURED) if path.is_dir() else None

    def _iter_named(self, state: Coordinator) -> Iterator[Path]:
        """Snapshots on this machine at Local places that members named.

        Any member may name any place. Only snapshots below the local root count: files of other folders would be
        passed on to peers (B21).
        """
        owners = 1 if state.checkpoint.uploader == NO_UPLOADER else 0
        root = resolve_path(self._local_root, "")
        for source in (state.model.checkpoint, *state.model.extra_checkpoints)[owners:]:
            path = resolve_path(root, source.name)
            if source.kind is CheckpointKind.LOCAL and path.is_relative_to(root) and (path / disk.INFO_NAME).is_file():
                yield path

    async def fetch(
        self, state: Coordinator, digest: bytes | None, deadline: float, progress: Progress = _ignore
    ) -> Source:
        """Fetch a snapshot from peers and the places on record; nobody is trusted, the digest decides (S9, S10).

        Without a digest the weights are the first ones, of which no peer knows yet (S11).

        Raises:
            NetworkError: nobody gives them.
        """
        offer, reasons = None, list[str]()
        places = list_places(state, digest)
        try:
            if digest is not None:
                offer = await self._find_offer(state, digest, deadline)
        except NetworkError as error:
            reasons.append(str(error))
        for place in places:
            try:
                with trio.fail_at(deadline):
                    return await self._fetch_from(place, state, digest, offer, deadline, progress)
            except trio.TooSlowError:
                reasons.append(f"{place.name}: was not read in time; what is here is gone on with")
            except (StorageError, TrainerError, NetworkError) as error:
                reasons.append(str(error))
            self._log(types.PlaceFailed(place=place.name, reason=reasons[-1]))
        if offer is None or digest is None:
            raise NetworkError("; ".join(reasons))
        return await self._fetch_offer(state, offer, digest, deadline, progress)

    async def _fetch_from(
        self, source: Checkpoint, state: Coordinator, digest: bytes | None, offer: Offer | None, deadline: float,
        progress: Progress,
    ) -> Source:  # fmt: skip
        """Fetch the parts of a model from a repository or bucket, and from peers where one shows the manifest."""

        async def ask_peers(blobs: Sequence[tuple[bytes, int]], folder: Path) -> Mapping[bytes, Path]:
            return await self._network.fetch_many(blobs, sorted(self._network.connected()), folder, deadline=deadline)

        peers = None if offer is None else OfferingPeers(offer, ask_peers, self._network.withdraw)
        path = await fetch_from_place(
            source, state, self._snapshots, self._storage, digest=digest, peers=peers, progress=progress
        )
        name = WeightSource.CONFIGURED if state.checkpoint.uploader == NO_UPLOADER else WeightSource.ON_RECORD
        return Source(path, is_snapshot=True, name=name, is_checked=True)

    async def _fetch_offer(
        self, state: Coordinator, offer: Offer, digest: bytes, deadline: float, progress: Progress = _ignore
    ) -> Source:
        await self._tell_of_own_files(state, offer)
        mark = _get_mark(state)
        path = self._snapshots / get_snapshot_folder(mark.epoch, mark.step, digest)
        return await self.assemble(state, offer, digest, deadline, path, progress=progress)

    async def assemble(
        self,
        state: Coordinator,
        offer: Offer,
        digest: bytes,
        deadline: float,
        path: Path,
        *,
        own: Mapping[bytes, Path] | None = None,
        sources: Sequence[bytes] = (),
        progress: Progress = _ignore,
    ) -> Source:
        """Assemble a snapshot at `path` from a checked `offer`; fetch what is not in `own`.

        Every part is written to disk as it arrives and then moved into place: none is held in memory or kept twice.
        `own` maps blob ids to files; `sources` are keys of peers (none: all connected peers).
        """
        folder = self._snapshots / f"{PARTS}{blake3_hash(offer.manifest).hex()[:16]}"
        await trio.to_thread.run_sync(_make_parts_folder, folder)
        known = own or {}
        blobs = {blob_id: size for blob_id, size in _list_parts(offer) if blob_id not in known}
        total = sum(blobs.values())
        asked = [peer for peer in sources or sorted(self._network.connected()) if not self._is_refused(digest, peer)]
        found = await self._network.fetch_many(
            list(blobs.items()), asked, folder, deadline=deadline, progress=lambda n: progress(n, total)
        )
        for blob_id in blobs:
            await self._network.withdraw(blob_id)  # the files move into the snapshot, which offers them again
        await trio.to_thread.run_sync(_assemble, path, state, offer, digest, {**found, **known})
        await trio.to_thread.run_sync(remove_folder, folder)
        return Source(path, is_snapshot=True, name=WeightSource.PEERS, is_checked=True)

    async def find_leading(self, state: Coordinator, digest: bytes, deadline: float) -> Source | None:
        """Full-value mode: the copy of the first member that has one, so that all start from the same copy (S2).

        The digest covers only the applied sets, so this member is trusted for the values.
        """
        own = await self.find_local(digest)
        own_root = (await trio.to_thread.run_sync(disk.read_snapshot_info, own.path)).weight_root if own else None
        for member in state.clients:
            if member.p2p == self._network.key:
                if own is not None:
                    return own
                continue
            try:
                offer = await self.ask_offer(state, digest, member.p2p)
            except NetworkError:
                continue
            if own is not None and blake3_hash(offer.manifest) == own_root:
                return own
            return await self._fetch_offer(state, offer, digest, deadline)
        return own

    async def _find_offer(self, state: Coordinator, digest: bytes, deadline: float) -> Offer:
        """Ask one peer after another, and the next one too while a peer is silent; the first right manifest counts."""
        reasons: list[str] = []
        found: list[Offer] = []

        async def ask(peer: bytes, answered: trio.Event) -> None:
            try:
                found.append(await self.ask_offer(state, digest, peer))
            except NetworkError as error:
                reasons.append(str(error))
            else:
                nursery.cancel_scope.cancel()
            answered.set()

        async with open_plain_nursery() as nursery:
            nursery.cancel_scope.deadline = deadline
            for peer in sorted(self._network.connected()):
                answered = trio.Event()
                nursery.start_soon(ask, peer, answered)
                with trio.move_on_after(NEXT_PEER_S):
                    await answered.wait()
        if found:
            return found[0]
        raise NetworkError(
            f"no peer has the weights {digest.hex()[:16]}: {'; '.join(reasons) or 'no peer is connected'}"
        )

    async def ask_offer(self, state: Coordinator, digest: bytes, peer: bytes) -> Offer:
        """Ask a peer for its manifest of these weights; after a wrong one, do not ask it for these again (B25)."""
        name = f"peer {peer.hex()[:8]}"
        if self._is_refused(digest, peer):
            raise NetworkError(f"{name} is not asked again: it {self._refused[peer]}")
        reply = await self._network.ask(peer, SyncRequest("manifest", key=digest), timeout_s=MANIFEST_TIMEOUT_S)
        offer = read_offer(reply.items[0]) if reply.found and reply.items else None
        if offer is None:
            raise NetworkError(f"{name} does not have it")
        try:
            if compute_offer_digest(state.model, offer) != digest:
                raise self._refuse(digest, peer, "showed a manifest that does not give the digest")
            decode_manifest(offer.manifest)  # checks names, number and sizes of its entries
        except WireError as error:
            raise self._refuse(digest, peer, f"showed what is not a manifest: {error}") from error
        return offer

    def _is_refused(self, digest: bytes, peer: bytes) -> bool:
        return digest == self._wanted and peer in self._refused

    def _refuse(self, digest: bytes, peer: bytes, reason: str) -> NetworkError:
        """B25: log a peer that lists other weights or files, and do not use it for these weights again."""
        if digest != self._wanted:
            self._wanted, self._refused = digest, {}
        self._refused[peer] = reason
        self._log(types.SourceRefused(peer=peer, digest=digest, reason=reason))
        return NetworkError(f"peer {peer.hex()[:8]} {reason}")

    async def _tell_of_own_files(self, state: Coordinator, offer: Offer) -> None:
        """Log which files of the configured folder differ from the run's; the folder itself is not changed."""
        if state.checkpoint.uploader != NO_UPLOADER:
            return  # a member named that place, not this client's user
        try:
            path = self.get_configured(state.model)
            own = await trio.to_thread.run_sync(disk.read_file_entries, path)
        except (PsycheError, OSError):
            return
        differing = describe_file_differences(own, decode_manifest(offer.manifest).files)
        if differing and differing != self._told:  # report once, although every fetch compares
            self._told = differing
            self._log(types.ModelFilesDiffer(path=str(path), files=differing, hint=FILES_HINT))

    async def keep(self, certified: bytes, newest: bytes) -> None:
        """Keep the certified snapshot and the newest other one; serve both (P6).

        `newest` is the digest of the snapshot written last: epoch and step cannot tell apart repetitions of
        the last drain round, nor snapshots that another run left in this folder.
        """
        snapshots = await trio.to_thread.run_sync(disk.list_snapshots, self._snapshots)
        others = sorted((s for s in snapshots if s.digest != certified), key=lambda s: s.digest != newest)
        kept = [s for s in snapshots if s.digest == certified][:1] + others[:1]
        for snapshot in kept:
            await self._serving.offer(snapshot.path)
        await self._serving.keep_only(frozenset(s.digest for s in kept))
        for snapshot in snapshots:
            if snapshot not in kept:
                await trio.to_thread.run_sync(remove_folder, snapshot.path)

    async def remove_leftovers(self) -> None:
        """Remove what failed or killed fetches left behind; to be called once the weights are loaded."""
        await trio.to_thread.run_sync(_remove_leftovers, self._snapshots)


@dataclass(frozen=True, slots=True)
class OfferingPeers:
    """Peers that have shown the manifest of what is wanted; `withdraw` ends the offer of a part that moves away."""

    offer: Offer
    ask: Callable[[Sequence[tuple[bytes, int]], Path], Awaitable[Mapping[bytes, Path]]]
    withdraw: Callable[[bytes], Awaitable[None]]


async def fetch_from_place(
    source: Checkpoint, state: Coordinator, snapshots: Path, storage: StorageOptions, *, digest: bytes | None,
    peers: OfferingPeers | None = None, progress: Progress = _ignore,
) -> Path:  # fmt: skip
    """Fetch a model from a repository or bucket, and from peers if there are any; return the folder of its snapshot.

    Raises:
        StorageError, TrainerError: the place does not give these weights.
        NetworkError: nor do the peers.
    """
    folder = snapshots / f"{PARTS}{blake3_hash(digest or repr(source).encode()).hex()[:16]}"
    await trio.to_thread.run_sync(_make_parts_folder, folder)
    async with open_place(source, storage) as place:
        known = decode_manifest(peers.offer.manifest) if peers else None
        collector = Collector(place, known, folder, progress)
        manifest = await collector.collect((lambda blobs: peers.ask(blobs, folder)) if peers else None)
        # First weights begin a chain of their own, also those that another run has given back (S2, S11).
        chains = [peers.offer.chain] if peers else [ZERO32] if digest is None else [place.layout.chain, ZERO32]
    root = compute_root(manifest, is_exact=state.model.optimizer.is_exact)
    digests = {compute_state_digest(chain, root): chain for chain in chains}
    found = digest if digest in digests else next(iter(digests))
    chain = digests[found]
    if digest is not None and digest != found:
        await trio.to_thread.run_sync(remove_folder, folder)
        raise StorageError(f"{place.files.address}: gives {found.hex()[:16]}, the record asks for {digest.hex()[:16]}")
    if peers is not None:
        for blob_id in collector.parts:
            await peers.withdraw(blob_id)
    mark, raw = _get_mark(state), encode_manifest(manifest.tensors, manifest.files)
    whole = Offer(manifest=raw, chain=chain, epoch=mark.epoch, step=mark.step, data_index=mark.data_index)
    path = snapshots / get_snapshot_folder(mark.epoch, mark.step, found)
    await trio.to_thread.run_sync(_assemble, path, state, whole, found, collector.parts)
    await trio.to_thread.run_sync(remove_folder, folder)
    return path


def compute_offer_digest(model: Model, offer: Offer) -> bytes:
    """The full digest of an offer; in full-value mode it does not cover the tensors' values (S2)."""
    is_exact = model.optimizer.is_exact
    root = blake3_hash(offer.manifest) if is_exact else compute_root(decode_manifest(offer.manifest), is_exact=False)
    return compute_state_digest(offer.chain, root)


def _list_parts(offer: Offer) -> Iterator[tuple[bytes, int]]:
    manifest = decode_manifest(offer.manifest)
    yield from ((entry.blob_id, disk.get_tensor_bytes(entry)) for entry in manifest.tensors)
    yield from ((file.blob_id, file.size_bytes) for file in manifest.files)


def _assemble(path: Path, state: Coordinator, offer: Offer, digest: bytes, parts: Mapping[bytes, Path]) -> None:
    mark = _get_mark(state)
    disk.assemble_snapshot(
        path,
        manifest=offer.manifest,
        parts=parts,
        epoch=mark.epoch,
        step=mark.step,
        data_index=mark.data_index,
        chain=offer.chain,
        digest=digest,
    )


def _get_mark(state: Coordinator) -> Mark:
    """Epoch, step and next sample of fetched weights: from the record, not from the peer."""
    if state.certified.digest != ZERO32:
        return state.certified
    progress = state.progress  # S11: the first weights of a run that has certified none
    return Mark(epoch=progress.epoch, step=progress.step, data_index=progress.epoch_start_data_index)


def get_snapshot_folder(epoch: int, step: int, digest: bytes) -> str:
    return f"epoch-{epoch:05d}-step-{step:08d}-{digest.hex()[:12]}"


def _make_parts_folder(folder: Path) -> None:
    """Make the folder and remove the parts of other weights: nobody needs them, and they are as large as the model."""
    for other in folder.parent.glob(f"{PARTS}*"):
        if other != folder:
            remove_folder(other)
    folder.mkdir(parents=True, exist_ok=True)


def _remove_leftovers(root: Path) -> None:
    for folder in (*root.glob(f"{PARTS}*"), root / HEAL_FOLDER):
        remove_folder(folder)


def remove_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
