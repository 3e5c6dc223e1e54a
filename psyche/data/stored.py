"""Training data in a storage: rows of token files on the Hub, in a bucket or behind URLs, read as they are needed."""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import trio
from numpy.typing import NDArray

from psyche.core.encoding.data_manifest import WHOLE_BYTES, DataFile, DataManifest, FindManifest
from psyche.core.state.enums import HttpLocationKind, TokenSize
from psyche.core.state.settings import DataLocation, HttpLocation
from psyche.core.state.state import ZERO32
from psyche.data.files import DTYPES, SUFFIXES, encode_files, measure_tokens
from psyche.data.order import RemoteSize, RowOrder, count_rows
from psyche.data.prepared.rows import choose_files
from psyche.data.scan import ForeignToken
from psyche.errors import DataError, StorageError, UnusableDataError
from psyche.storage.cache import CachedStorage, DiskCache, open_cache
from psyche.storage.judged import JudgedStorage
from psyche.storage.port import (
    MAX_FILES,
    MAX_RANGE_BYTES,
    Storage,
    StorageOptions,
    StoredFile,
    gather,
    read_ranges,
    sort_files,
)  # fmt: skip
from psyche.storage.urls import open_urls
from psyche.telemetry.text import format_bytes
from psyche.wire.crypto import blob_id_of

MAX_NPY_HEADER_BYTES: Final = 1 << 10  # of one dimension it has 128
DOWNLOADS: Final = 4  # pieces in memory at once, while all files are read


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """A token file in a storage: `tokens` ids, from byte `offset` on."""

    file: StoredFile
    offset: int
    tokens: int


def open_http_rows(
    location: DataLocation,
    options: StorageOptions,
    *,
    sequence_length: int,
    vocab_size: int | None,
    root: bytes = ZERO32,
    find_manifest: FindManifest | None = None,
) -> "StoredRows":
    """Open what a run's location over HTTP names; `root` and `find_manifest`: see `StoredRows`.

    Raises:
        DataError: an address is not one of https, or the template has no single place for the number.
    """
    try:
        storage, names = open_location(location.http, options)
    except StorageError as error:
        raise DataError(f"data location: {error}") from error
    return StoredRows(
        storage,
        names=names,
        token_size_bytes=get_token_size(location),
        sequence_length=sequence_length,
        shuffle_seed=location.shuffle_seed,
        vocab_size=vocab_size,
        cache=open_cache(options),
        root=root,
        find_manifest=find_manifest,
    )


def get_token_size(location: DataLocation) -> int:
    return 2 if location.token_size is TokenSize.TWO_BYTES else 4


def open_location(http: HttpLocation, options: StorageOptions) -> tuple[Storage, Sequence[str] | None]:
    if http.kind is HttpLocationKind.GCP:
        from psyche.storage.bucket import open_bucket

        return open_bucket(http.url, http.filter_directory, options), None
    urls = open_urls([http.url] if http.kind is HttpLocationKind.SINGLE_URL else _list_numbered(http), options)
    return urls, urls.names


def _list_numbered(http: HttpLocation) -> list[str]:
    before, between, after = http.url.partition("{}")
    if not between or "{}" in after:
        raise DataError(f"data location: url_template {http.url!r} must have exactly one {{}}, for the number")
    if http.num_files > MAX_FILES:
        raise DataError(f"data location: num_files is {http.num_files}, at most {MAX_FILES} files can be read")
    numbers = range(http.start_index, http.start_index + http.num_files)
    return [f"{before}{str(number).zfill(http.n_left_pad_zeros)}{after}" for number in numbers]


class StoredRows:
    """A `DataProvider` of the rows of files of a storage, in the order of `RowOrder`.

    `names` are the files in their order; None: all token files, by name. They are listed when the first rows are read;
    until that has worked, each `get` tries it again.

    `root` is the id of the manifest on record; zero: none is. What `find_manifest` finds takes the place of the
    listing; with hashes, bytes are judged by them before they count. Else the listing must give the id (D1).

    The `cache` fetches whole chunks, of which shuffled rows use a small part each. So they are read through it only if
    it has room for all files; then each chunk is used in the end.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        names: Sequence[str] | None = None,
        token_size_bytes: int,
        sequence_length: int,
        shuffle_seed: bytes | None = None,
        vocab_size: int | None = None,
        cache: DiskCache | None = None,
        root: bytes = ZERO32,
        find_manifest: FindManifest | None = None,
    ) -> None:
        self.sequence_length = sequence_length
        self._storage = storage
        self._names = names
        self._token_size_bytes = token_size_bytes
        self._shuffle_seed = shuffle_seed
        self._vocab_size = vocab_size
        self._cache = cache
        self._root = root
        self._find_manifest = find_manifest
        self._files: list[StoredTokens] = []
        self._order: RowOrder | None = None
        self._lock = trio.Lock()

    async def open(self) -> RowOrder:
        """List the files, once; return the order of their rows.

        Raises:
            DataError: they cannot be listed, or hold no row.
        """
        async with self._lock:
            if self._order is None:
                try:
                    files = await self._open_files()
                except StorageError as error:
                    raise DataError(str(error)) from error
                order = RowOrder([file.tokens // self.sequence_length for file in files], self._shuffle_seed)
                if not order.num_sequences:
                    least = f"{self.sequence_length} tokens, the length of one sequence"
                    raise DataError(f"{self._storage.address}: no file holds {least}")
                self._files, self._order = files, order
            return self._order

    async def measure(self) -> RemoteSize:
        samples = (await self.open()).num_sequences
        name = f"/{self._files[0].file.name}" if len(self._files) == 1 else ""
        return RemoteSize(f"{self._storage.address}{name}", samples, self.size_bytes)

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:  # noqa: ARG002 (port)
        count_rows(start, end, self.sequence_length)
        return await self.read(np.arange(start, end + 1, dtype=np.int64))

    async def read(self, indexes: NDArray[np.int64]) -> bytes:
        """Read the rows of these indexes, as `get` does."""
        order = await self.open()
        numbers, rows = order.find(indexes)
        size_bytes = self.sequence_length * self._token_size_bytes
        ranges: list[tuple[StoredFile, int, int]] = []
        for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
            first = self._files[number].offset + row * size_bytes
            ranges.append((self._files[number].file, first, first + size_bytes))
        try:
            bodies = await read_ranges(self._storage, ranges)
        except StorageError as error:
            raise DataError(str(error)) from error
        return await trio.to_thread.run_sync(self._join, bodies, numbers.tolist(), rows.tolist())

    async def download(self, progress: Callable[[int, int], None], *, beside_bytes: int = 0) -> int:
        """Read all files into the cache, so that reads of their rows ask for no bytes any more; return their size.

        What is there is not asked for again. The cache must have room for `beside_bytes` of others too.

        Raises:
            DataError: they cannot be read, or the cache does not keep them.
        """
        await self.open()
        address, files = self._storage.address, [one.file for one in self._files]
        needed_bytes = self.size_bytes + beside_bytes
        if self._cache is None or needed_bytes > self._cache.limit_bytes:
            kept = format_bytes(self._cache.limit_bytes) if self._cache else "nothing"
            size = f"{format_bytes(self.size_bytes)}{f' of {format_bytes(needed_bytes)} in all' * bool(beside_bytes)}"
            least = math.ceil(needed_bytes / 1e9)
            raise DataError(
                f"{address}: has {size}, of which the cache keeps {kept}: set --cache-gb to {least} or more"
            )
        if unnamed := next((file.name for file in files if not file.version), None):
            raise DataError(f"{address}/{unnamed}: cannot be kept, since the server names no version of it (ETag)")
        pieces = (
            (file, start, min(start + MAX_RANGE_BYTES, file.size_bytes))
            for file in files
            for start in range(0, file.size_bytes, MAX_RANGE_BYTES)
        )
        done_bytes = 0

        async def read_some() -> None:
            nonlocal done_bytes
            for file, start, end in pieces:
                await self._storage.read(file, start, end)
                done_bytes += end - start
                progress(done_bytes, self.size_bytes)

        try:
            await gather([read_some] * DOWNLOADS)
        except StorageError as error:
            raise DataError(str(error)) from error
        return self.size_bytes

    async def _open_files(self) -> list[StoredTokens]:
        files, manifest = await find_tokens(
            self._storage, self._names, self._token_size_bytes, self._root, self._find_manifest
        )
        self.size_bytes = sum(one.file.size_bytes for one in files)
        source = self._storage
        if self._cache is not None and (self._shuffle_seed is None or self.size_bytes <= self._cache.limit_bytes):
            self._storage = CachedStorage(self._storage, self._cache)
        self._storage = judge(self._storage, source, manifest)
        return files

    async def aclose(self) -> None:
        await self._storage.aclose()

    def _join(self, bodies: Sequence[bytes], numbers: Sequence[int], rows: Sequence[int]) -> bytes:
        ids = np.frombuffer(b"".join(bodies), DTYPES[self._token_size_bytes]).astype("<u4")
        if self._vocab_size is not None and int(ids.max()) >= self._vocab_size:
            place = int(np.argmax(ids >= self._vocab_size))
            row, column = divmod(place, self.sequence_length)
            name = f"{self._storage.address}: {self._files[numbers[row]].file.name}"
            position = rows[row] * self.sequence_length + column
            raise UnusableDataError(ForeignToken(name, position, int(ids[place])).describe(self._vocab_size))
        return ids.tobytes()


async def find_tokens(
    storage: Storage, names: Sequence[str] | None, token_size_bytes: int, root: bytes,
    find_manifest: FindManifest | None,
) -> tuple[list[StoredTokens], DataManifest | None]:  # fmt: skip
    """Find the files that a manifest on record names; without it, those that are listed if they have its id (D1).

    Raises:
        DataError, StorageError: as `list_tokens`, or they are not those of the record.
    """
    manifest = await find_manifest(root) if find_manifest is not None and root != ZERO32 else None
    if manifest is not None:
        return _take_files(storage.address, names, token_size_bytes, manifest), manifest
    files = await list_tokens(storage, names, token_size_bytes)
    if root != ZERO32 and blob_id_of(encode_tokens(files, token_size_bytes)) != root:
        raise DataError(
            f"{storage.address}: its files are not those that the record's data_root stands for, or their hashes are "
            "part of it, and nobody here has its manifest: ask the owner for it, and name it with --data-manifest"
        )
    return files, None


def _take_files(
    address: str, wanted: Sequence[str] | None, token_size_bytes: int, manifest: DataManifest
) -> list[StoredTokens]:
    known = {file.name: file for file in manifest.files}
    names = list(known) if wanted is None else wanted
    if manifest.token_size_bytes != token_size_bytes or known.keys() != set(names):
        raise DataError(
            f"{address}: the manifest on record (data_root) is of other files: {len(known):,} with ids of "
            f"{manifest.token_size_bytes} bytes"
        )
    files = {name: StoredFile(name, file.size_bytes, file.version) for name, file in known.items()}
    sort_files(address, files.values())  # whether these names can be
    return [StoredTokens(files[name], known[name].offset, known[name].tokens) for name in names]


def judge(storage: Storage, source: Storage, manifest: DataManifest | None) -> Storage:
    """Let no bytes of a storage pass but those of the manifest's hashes, if it has some; see `JudgedStorage`."""
    if manifest is None or not manifest.is_hashed:
        return storage
    return JudgedStorage(storage, {file.name: file.hashes for file in manifest.files}, source)


async def _open_file(storage: Storage, file: StoredFile, token_size_bytes: int) -> StoredTokens:
    head = b""
    if file.name.endswith(".npy"):
        head = await storage.read(file, 0, min(file.size_bytes, MAX_NPY_HEADER_BYTES))
    name = f"{storage.address}: {file.name}"
    return StoredTokens(file, *measure_tokens(name, file.size_bytes, token_size_bytes, io.BytesIO(head)))


async def list_tokens(storage: Storage, names: Sequence[str] | None, token_size_bytes: int) -> list[StoredTokens]:
    """List the token files of a storage, in their order, and measure each; `names` as for `StoredRows`.

    Of Parquet files, whose bytes are counted (`WHOLE_BYTES`), None means those of the split.

    Raises:
        DataError: there is none, or one is no token file of this size.
        StorageError: they cannot be read.
    """
    listed = {file.name: file for file in await storage.list_files()}
    has_rows = token_size_bytes == WHOLE_BYTES
    if names is None:
        names = choose_files(listed) if has_rows else [name for name in listed if name.endswith(SUFFIXES)]
    if not names:
        kind = "Parquet file" if has_rows else f"token file ({', '.join(SUFFIXES)})"
        raise DataError(f"{storage.address}: contains no {kind}")
    return await gather([partial(_open_file, storage, listed[name], token_size_bytes) for name in names])


def encode_tokens(
    files: Iterable[StoredTokens], token_size_bytes: int, hashes: Mapping[str, bytes] | None = None
) -> bytes:
    """Encode the manifest of token files; `hashes` are those of each file's MiBs, by its name (D1)."""
    known = hashes or {}
    entries = (
        DataFile(f.name, f.version, f.size_bytes, one.offset, one.tokens, known.get(f.name, b""))
        for one in files
        for f in (one.file,)
    )
    return encode_files(entries, token_size_bytes, is_hashed=hashes is not None)
