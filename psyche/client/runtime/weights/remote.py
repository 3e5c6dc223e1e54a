"""Weights in repositories and buckets: a further source of parts beside the peers (S9, S10, S11)."""

import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from psyche.core.encoding.manifest import Manifest, TensorEntry, blank_values, encode_manifest
from psyche.core.state.state import ZERO32, Checkpoint, Coordinator
from psyche.durable import write_file
from psyche.errors import NetworkError, StorageError, TrainerError
from psyche.modeling.first_weights import ModelLayout, read_layout, read_values
from psyche.modeling.model_files import REMOTE, StorageFiles, open_storage, read_in_thread
from psyche.modeling.snapshot import compute_file_blob_id, get_file_entries
from psyche.storage.port import StorageOptions
from psyche.wire.crypto import BLOB_CHUNK_BYTES, blake3_hash, compute_blob_id

WORKERS: Final = 8  # tensors read at once; a killed client loses what was on its way to the disk
PEERS_BATCH: Final = 16  # parts that are taken from peers at a time, while a place is read from the other end

PeerParts = Callable[[Sequence[tuple[bytes, int]]], Awaitable[Mapping[bytes, Path]]]


def list_places(state: Coordinator, digest: bytes | None) -> list[Checkpoint]:
    """List the repositories and buckets on record that may have these weights; None: those that a run begins with."""
    if digest is not None and state.checkpoint.digest not in (digest, ZERO32):
        return []
    return [source for source in (state.model.checkpoint, *state.model.extra_checkpoints) if source.kind in REMOTE]


@dataclass(frozen=True, slots=True)
class Place:
    """A repository or bucket whose headers and small files have been read and fit each other."""

    files: StorageFiles
    layout: ModelLayout

    def write(self, name: str, folder: Path) -> tuple[bytes, Path]:
        """Write a tensor's fp32 values to a file of `folder`, or find them there; return its blob id.

        What a killed client has left is gone on with. Blocks, in a thread of trio.
        """
        tensor = self.layout.tensors[name]
        path = folder / f"{blake3_hash(name.encode()).hex()[:16]}.tensor"
        size_bytes = 4 * math.prod(tensor.dims)
        if path.exists():
            found_bytes, blob_id = compute_file_blob_id(path)
            if found_bytes == size_bytes:
                return blob_id, path
        stored = path.with_suffix(".stored")
        with stored.open("ab") as file:
            here_bytes = file.truncate(min(file.tell(), tensor.stored_bytes))
            start, end = tensor.offset + here_bytes, tensor.offset + tensor.stored_bytes
            self.files.copy(tensor.file, start, end, file)
        part, hashes = path.with_suffix(".part"), list[bytes]()
        try:
            with stored.open("rb") as source, part.open("wb") as target:
                parts = iter(partial(source.read, BLOB_CHUNK_BYTES), b"")
                for values in read_values(self.files, name, tensor, parts):
                    target.write(values)
                    hashes.append(blake3_hash(values))
        except TrainerError:
            stored.unlink()
            raise
        part.replace(path)
        stored.unlink()
        return compute_blob_id(size_bytes, b"".join(hashes)), path


@asynccontextmanager
async def open_place(source: Checkpoint, options: StorageOptions) -> AsyncGenerator[Place]:
    """Open a repository or bucket, and read its headers.

    Raises:
        StorageError: it cannot be read.
        TrainerError: it holds no model that a run can train.
    """
    storage = open_storage(source, options)
    assert storage is not None, "`list_places` lists storages alone"
    async with aclosing(storage):
        files = StorageFiles(storage)
        yield Place(files, await read_in_thread(read_layout, files))


class Collector:
    """Collects the parts of a model from a place and from peers at once; either can go on without the other.

    `manifest` is what the record asks for, shown by a peer; None: no peer has it, so what the place has is collected.
    """

    def __init__(
        self, place: Place, manifest: Manifest | None, folder: Path, progress: Callable[[int, int], None]
    ) -> None:
        self._place = place
        self._manifest = manifest
        self._folder = folder
        self._progress = progress
        tensors = place.layout.tensors
        self._sizes = {name: 4 * math.prod(tensor.dims) for name, tensor in tensors.items()}
        self._expected = {entry.name: entry.blob_id for entry in manifest.tensors} if manifest else {}
        if manifest and [(e.name, e.dims) for e in manifest.tensors] != sorted((n, t.dims) for n, t in tensors.items()):
            raise StorageError(f"{place.files.address}: has other tensors than the run's model")
        self._todo = deque(sorted(tensors))
        self._ids: dict[str, bytes] = {}
        self.parts: dict[bytes, Path] = {}
        self._failure: StorageError | TrainerError | None = None

    async def collect(self, ask_peers: PeerParts | None) -> Manifest:
        """Collect all parts into `parts`; return the manifest of what was collected.

        Raises:
            StorageError, TrainerError: the place cannot give what is missing, and no peer can.
            NetworkError: peers cannot, and the place has failed before.
        """
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._read_place)
            if ask_peers is not None and self._manifest is not None:
                nursery.start_soon(self._ask_peers, ask_peers)
        if self._todo and self._failure is None:
            await self._read_place()  # peers gave up on some, when the place was through with the others
        if self._todo and self._failure is not None:
            if ask_peers is None or self._manifest is None:
                raise self._failure
            await self._take_from_peers(ask_peers, list(self._todo))
        small = self._place.layout.small
        files = self._manifest.files if self._manifest else get_file_entries(small)
        for entry in get_file_entries(small):
            write_file(path := self._folder / f"{entry.name}.file", small[entry.name])
            self.parts[entry.blob_id] = path
        if ask_peers is not None and (missing := [f for f in files if f.blob_id not in self.parts]):
            self.parts |= await ask_peers([(file.blob_id, file.size_bytes) for file in missing])
        entries = [TensorEntry(n, t.dims, self._ids[n]) for n, t in sorted(self._place.layout.tensors.items())]
        return Manifest(tuple(entries), files)

    async def _read_place(self) -> None:
        while self._todo and self._failure is None:
            name = self._todo.popleft()
            try:
                blob_id, path = await read_in_thread(self._place.write, name, self._folder)
                if blob_id != self._expected.get(name, blob_id):
                    path.unlink()
                    raise StorageError(f"{self._place.files.address}: {name} is not that of the run's weights")
            except (StorageError, TrainerError) as error:
                self._todo.appendleft(name)
                self._failure = error
                return
            self._keep(name, blob_id, path)

    async def _ask_peers(self, ask_peers: PeerParts) -> None:
        while self._todo and self._failure is None:
            names = [self._todo.pop() for _ in range(min(PEERS_BATCH, len(self._todo)))]
            try:
                await self._take_from_peers(ask_peers, names)
            except NetworkError:  # the place has them too
                self._todo.extend(reversed(names))
                return

    async def _take_from_peers(self, ask_peers: PeerParts, names: Sequence[str]) -> None:
        found = await ask_peers([(self._expected[name], self._sizes[name]) for name in names])
        for name in names:
            self._keep(name, self._expected[name], found[self._expected[name]])

    def _keep(self, name: str, blob_id: bytes, path: Path) -> None:
        self._ids[name] = blob_id
        self.parts[blob_id] = path
        self._progress(sum(self._sizes[done] for done in self._ids), sum(self._sizes.values()))


def compute_root(manifest: Manifest, *, is_exact: bool) -> bytes:
    """The weight root of a manifest; in full-value mode it leaves out the tensors' values (S2)."""
    shown = manifest if is_exact else blank_values(manifest)
    return blake3_hash(encode_manifest(shown.tensors, shown.files))
