"""Several data sets behind one address: rows of each in the shares that a JSON file, the mix, gives them."""

import hashlib
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import trio
from numpy.typing import NDArray

from psyche.core.state.enums import HttpLocationKind, TokenSize
from psyche.core.state.settings import DataLocation, DataLocationKind, HttpLocation
from psyche.data.order import RemoteSize, RowOrder, count_rows
from psyche.data.stored import StoredRows, open_http_rows
from psyche.errors import DataError, StorageError
from psyche.storage.port import StorageOptions, gather
from psyche.storage.urls import open_urls

MAX_MIX_BYTES: Final = 1 << 18
MAX_SOURCES: Final = 64
WEIGHT_DIGITS: Final = 12  # after the point; what remains of a weight is a whole number
_PIN: Final = re.compile(r"sha256=[0-9a-f]{64}")
_TOKEN_SIZES: Final = {"TwoBytes": TokenSize.TWO_BYTES, "FourBytes": TokenSize.FOUR_BYTES}
_Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
_U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]


class _NumberedFiles(msgspec.Struct, forbid_unknown_fields=True):
    url_template: str
    start_index: _U32
    n_left_pad_zeros: _Byte
    num_files: _U32


class _Bucket(msgspec.Struct, forbid_unknown_fields=True):
    bucket_name: str
    filter_directory: str = ""


class _Location(msgspec.Struct, forbid_unknown_fields=True):
    SingleUrl: str | None = None
    NumberedFiles: _NumberedFiles | None = None
    Gcp: _Bucket | None = None

    def convert(self) -> HttpLocation:
        match self:
            case _Location(SingleUrl=str(url), NumberedFiles=None, Gcp=None):
                return HttpLocation(HttpLocationKind.SINGLE_URL, url)
            case _Location(SingleUrl=None, NumberedFiles=_NumberedFiles() as files, Gcp=None):
                zeros, count = files.n_left_pad_zeros, files.num_files
                kind = HttpLocationKind.NUMBERED_FILES
                return HttpLocation(kind, files.url_template, "", files.start_index, zeros, count)
            case _Location(SingleUrl=None, NumberedFiles=None, Gcp=_Bucket() as bucket):
                return HttpLocation(HttpLocationKind.GCP, bucket.bucket_name, bucket.filter_directory)
            case _:
                raise ValueError("a location must be exactly one of SingleUrl, NumberedFiles, Gcp")


class _Seeded(msgspec.Struct, forbid_unknown_fields=True):
    Seeded: Annotated[list[_Byte], msgspec.Meta(min_length=32, max_length=32)]


_Shuffle = Literal["DontShuffle"] | _Seeded


def _get_seed(shuffle: _Shuffle) -> bytes | None:
    return bytes(shuffle.Seeded) if isinstance(shuffle, _Seeded) else None


class _Source(msgspec.Struct, forbid_unknown_fields=True):
    location: _Location
    token_size_in_bytes: Literal["TwoBytes", "FourBytes"]
    shuffle: _Shuffle

    def convert(self) -> DataLocation:
        size = _TOKEN_SIZES[self.token_size_in_bytes]
        http = self.location.convert()
        return DataLocation(DataLocationKind.HTTP, "", http, size, _get_seed(self.shuffle))


class _Mix(msgspec.Struct, forbid_unknown_fields=True):
    shuffle: _Shuffle
    providers: Annotated[
        list[_Source | tuple[_Source, Decimal]], msgspec.Meta(min_length=1, max_length=MAX_SOURCES)
    ]  # fmt: skip


class MixOrder:
    """Which source the sample of an index comes from, and how many samples that source has given before.

    The sources lie in a binary tree. Of the first n samples of a node, its left half gives ceil(n * left / both), the
    right half the others, so that no share is off by more than the tree is deep, at any index; all in whole numbers.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self._ends = [0]
        for weight in weights:
            self._ends.append(self._ends[-1] + weight)

    def find(self, indexes: NDArray[Any]) -> list[tuple[NDArray[np.intp], NDArray[np.int64]]]:
        """For each source the places within `indexes` that are its own, and its count of samples before each."""
        found: list[tuple[NDArray[np.intp], NDArray[np.int64]]] = []
        self._split(0, len(self._ends) - 1, np.arange(len(indexes)), indexes.astype(object), found)
        return found

    def _split(
        self, first: int, end: int, places: NDArray[np.intp], counts: NDArray[Any],
        found: list[tuple[NDArray[np.intp], NDArray[np.int64]]],
    ) -> None:  # fmt: skip
        if end - first == 1:
            found.append((places, counts.astype(np.int64)))
            return
        middle = (first + end) // 2
        left, both = self._ends[middle] - self._ends[first], self._ends[end] - self._ends[first]
        before, after = (-(-(counts + more) * left // both) for more in (0, 1))  # Python's integers: of any size
        is_left = np.asarray(after > before, dtype=bool)
        self._split(first, middle, places[is_left], before[is_left], found)
        self._split(middle, end, places[~is_left], (counts - before)[~is_left], found)


class WeightedRows:
    """A `DataProvider` of rows of several sources over HTTP; the mix is read when the first rows are.

    Until that has worked, each `get` tries it again. A `#sha256=` with its hash at the address's end pins a mix.
    """

    def __init__(
        self, address: str, options: StorageOptions, *, sequence_length: int, vocab_size: int | None
    ) -> None:  # fmt: skip
        url, _, pin = address.partition("#")
        if pin and not _PIN.fullmatch(pin):
            raise DataError(f"data location: after the # stands {pin[:80]!a}, must be sha256= and 64 hex digits")
        try:
            self._storage = open_urls([url], options)
        except StorageError as error:
            raise DataError(f"data location: {error}") from error
        self._url, self._pin = url, pin.removeprefix("sha256=")  # that of the mix, once it has been read
        self._options = options
        self.sequence_length = sequence_length
        self._vocab_size = vocab_size
        self._mix: tuple[_Mix, list[int], list[StoredRows]] | None = None
        self._sources: list[StoredRows] = []
        self._order: tuple[MixOrder, RowOrder | None] | None = None
        self._lock = trio.Lock()

    async def measure(self) -> RemoteSize:
        await self._open()
        sizes = [await source.measure() for source in self._sources]
        samples, size_bytes = sum(one.samples for one in sizes), sum(one.size_bytes for one in sizes)
        return RemoteSize(self._name, samples, size_bytes, f"{self._url}#sha256={self._pin}")

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:  # noqa: ARG002 (port)
        rows = count_rows(start, end, self.sequence_length)
        mix, shuffled = await self._open()
        indexes = np.arange(start, end + 1, dtype=np.int64)
        if shuffled is not None:  # one order of the whole mix for each pass over as many samples as there are rows
            indexes += shuffled.find(indexes)[1] - indexes % shuffled.num_sequences
        shares = [share for share in zip(self._sources, mix.find(indexes), strict=True) if len(share[1][0])]
        parts = await gather([partial(source.read, counts) for source, (_, counts) in shares])
        out = np.empty((rows, self.sequence_length), dtype="<u4")
        for (_, (places, _)), part in zip(shares, parts, strict=True):
            out[places] = np.frombuffer(part, "<u4").reshape(len(places), -1)
        return out.tobytes()

    async def download(self, progress: Callable[[int, int], None]) -> int:
        """Read all files of all sources into the cache, as `StoredRows.download` does; return their size.

        Raises:
            DataError: they cannot be read, or the cache does not keep them all.
        """
        total_bytes = (await self.measure()).size_bytes
        done_bytes = 0
        for source in self._sources:

            def add(read_bytes: int, _: int, before_bytes: int = done_bytes) -> None:
                progress(before_bytes + read_bytes, total_bytes)

            done_bytes += await source.download(add, beside_bytes=total_bytes - source.size_bytes)
        return total_bytes

    async def aclose(self) -> None:
        await self._storage.aclose()
        for source in self._sources:
            await source.aclose()

    async def _open(self) -> tuple[MixOrder, RowOrder | None]:
        async with self._lock:
            if self._order is None:
                if self._mix is None:
                    self._mix = self._decode(await self._read_mix())
                mix, weights, self._sources = self._mix
                counts = [order.num_sequences for order in await gather([one.open for one in self._sources])]
                seed = _get_seed(mix.shuffle)
                shuffled = None if seed is None else RowOrder([sum(counts)], seed)
                self._order = MixOrder(weights or counts), shuffled
            return self._order

    async def _read_mix(self) -> bytes:
        try:
            file = (await self._storage.list_files())[0]
            if file.size_bytes > MAX_MIX_BYTES:
                raise DataError(f"{self._name}: has {file.size_bytes} bytes, a mix at most {MAX_MIX_BYTES}")
            raw = await self._storage.read(file, 0, file.size_bytes)
        except StorageError as error:
            raise DataError(str(error)) from error
        actual = hashlib.sha256(raw).hexdigest()
        if self._pin not in ("", actual):
            raise DataError(f"{self._name}: is another mix than that on record: its SHA-256 is {actual}")
        self._pin = actual
        return raw

    @property
    def _name(self) -> str:
        return f"{self._storage.address}/{self._storage.names[0]}"

    def _decode(self, raw: bytes) -> tuple[_Mix, list[int], list[StoredRows]]:
        """Decode a mix, with its weights (none if it has none) and its sources, which are not asked yet."""
        try:
            mix = msgspec.json.decode(raw, type=_Mix)
            weights = [one[1] for one in mix.providers if isinstance(one, tuple)]
            if weights and len(weights) < len(mix.providers):
                raise ValueError("either each provider has a weight, or none has")
            for number, weight in enumerate(weights):
                if not Decimal(10) ** -WEIGHT_DIGITS <= weight <= Decimal(10) ** WEIGHT_DIGITS:
                    raise ValueError(f"providers[{number}]: the weight must be from 1e-12 to 1e12")
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self._name}: is no mix of data sets: {error}") from error
        sources = [self._open_source(number, one) for number, one in enumerate(mix.providers)]
        return mix, [int(weight.scaleb(WEIGHT_DIGITS)) for weight in weights], sources

    def _open_source(self, number: int, source: "_Source | tuple[_Source, Decimal]") -> StoredRows:
        try:
            location = (source[0] if isinstance(source, tuple) else source).convert()
            length, size = self.sequence_length, self._vocab_size
            return open_http_rows(location, self._options, sequence_length=length, vocab_size=size)
        except (DataError, ValueError) as error:
            raise DataError(f"{self._name}: providers[{number}]: {error}") from error
