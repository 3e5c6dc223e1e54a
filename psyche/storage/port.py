"""What every storage can do, the settings to open one, and reads of many ranges at once."""

import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol, TypeVar

from psyche.durable import expand_user, read_file
from psyche.errors import ConfigError, StorageRefused

HUB: Final = "https://huggingface.co"
GOOGLE: Final = "https://storage.googleapis.com"
MAX_FILES: Final = 100_000
MAX_NAME_BYTES: Final = 1_024  # of an object in a bucket
MAX_RANGE_BYTES: Final = 8 << 20  # of one request
MAX_CONCURRENT_DOWNLOADS: Final = 8
SMALL_PER_DOWNLOAD: Final = 8  # small ranges at once, where the source bears it, for each download that is allowed
CACHE_GB: Final = 10.0  # unless a user says otherwise
_MAX_TOKEN_BYTES: Final = 4_096
T = TypeVar("T")
Take = Callable[[bytes], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class StoredFile:
    name: str  # path below the place, its parts separated by "/"
    size_bytes: int
    version: str  # ETag, generation or object id, which a read demands; "" if the storage names none


class Storage(Protocol):
    """A place with files that do not change while they are read: a read of another version fails.

    Where only the length and the version are known, a source that lies about both is found out by whoever has a hash.
    """

    @property
    def address(self) -> str:
        """The place as messages name it; never with a token or a signature."""
        ...

    async def list_files(self) -> tuple[StoredFile, ...]:
        """List the files, sorted by name; asked once, then remembered.

        Raises:
            StorageError: the place cannot be read; StorageRefused: and it would not help to ask again.
        """
        ...

    async def read(self, file: StoredFile, start: int, end: int) -> bytes:
        """Read the bytes `start` to `end` (excluded) of that version, exactly.

        Raises:
            StorageError: as `list_files`.
        """
        ...

    async def read_parts(self, file: StoredFile, start: int, end: int) -> list[bytes]:
        """Read like `read`; what is long comes in parts of `MAX_RANGE_BYTES`, for to join them takes long."""
        ...

    async def copy(self, file: StoredFile, start: int, end: int, take: Take) -> None:
        """Read like `read`, part by part as they arrive."""
        ...

    async def aclose(self) -> None: ...


class RangeReader(ABC):
    """What a storage with `read` alone does about long ranges."""

    @abstractmethod
    async def read(self, file: StoredFile, start: int, end: int) -> bytes: ...

    async def read_parts(self, file: StoredFile, start: int, end: int) -> list[bytes]:
        return await gather([partial(self.read, file, *one) for one in cut_range(start, end)])

    async def copy(self, file: StoredFile, start: int, end: int, take: Take) -> None:
        for one in cut_range(start, end):
            await take(await self.read(file, *one))


class StorageWrapper(RangeReader):
    """What a storage that reads through another one passes on as it is."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def address(self) -> str:
        return self._storage.address

    async def list_files(self) -> tuple[StoredFile, ...]:
        return await self._storage.list_files()

    async def aclose(self) -> None:
        await self._storage.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    hub_token: str | None = field(default=None, repr=False)
    hub_endpoint: str = HUB
    google_endpoint: str = GOOGLE
    google_credentials: Path | None = None  # the key of a service account
    allow_private_hosts: bool = False  # also http
    max_concurrent_downloads: int = MAX_CONCURRENT_DOWNLOADS  # requests at once, per storage
    cache_dir: Path | None = None  # where data is kept; None: nowhere
    cache_gb: float = 0.0

    def __post_init__(self) -> None:
        token = self.hub_token
        if token is not None and not (token.isascii() and token.isprintable() and token and " " not in token):
            raise ConfigError("the token for the Hub (HF_TOKEN): must be printable ASCII without spaces")
        if self.max_concurrent_downloads < 1:
            raise ConfigError(f"concurrent downloads: must be at least 1, is {self.max_concurrent_downloads}")

    @property
    def max_small_requests(self) -> int:
        return SMALL_PER_DOWNLOAD * self.max_concurrent_downloads

    def get_variables(self) -> dict[str, str]:
        """The environment in which another process of psyche reads files by these settings; no argv shows a token."""
        return {
            "HUB_MAX_CONCURRENT_DOWNLOADS": str(self.max_concurrent_downloads),
            "ALLOW_PRIVATE_HOSTS": str(int(self.allow_private_hosts)),
            "PSYCHE_CACHE_GB": f"{self.cache_gb:g}",
            **({"HF_TOKEN": self.hub_token} if self.hub_token else {}),
            **({"PSYCHE_CACHE_DIR": os.fspath(self.cache_dir.absolute())} if self.cache_dir else {}),
        }


def read_environment() -> StorageOptions:
    """The settings that other programs for the Hub and Google's buckets take too; reads the Hub's token file."""
    names = "HF_TOKEN", "HF_ENDPOINT", "STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"
    token, hub, google, credentials = (os.environ.get(name, "").strip() for name in names)
    if google and "://" not in google:
        google = f"http://{google}"
    return StorageOptions(
        hub_token=token or _read_token_file(),
        hub_endpoint=(hub or HUB).rstrip("/"),
        google_endpoint=(google or GOOGLE).rstrip("/"),
        google_credentials=expand_user(credentials) if credentials else None,
    )


def find_cache_folder() -> Path:
    return expand_user(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "psyche"


def _read_token_file() -> str | None:
    """The token that `hf auth login` has left."""
    home = os.environ.get("HF_HOME") or find_cache_folder().with_name("huggingface")
    try:
        raw = read_file(expand_user(os.environ.get("HF_TOKEN_PATH") or f"{home}/token"), _MAX_TOKEN_BYTES)
    except OSError:
        return None
    return raw.decode("ascii", "replace").strip() or None


def sort_files(place: str, files: Iterable[StoredFile]) -> tuple[StoredFile, ...]:
    """Sort a listing by name.

    Raises:
        StorageRefused: too many files, a name that is there twice or is no path below the place, a size below 0.
    """
    found: list[StoredFile] = []
    for file in files:
        if len(found) == MAX_FILES:
            raise StorageRefused(f"{place}: has more than {MAX_FILES:,} files")
        check_name(place, file.name)
        if file.size_bytes < 0:
            raise StorageRefused(f"{place}/{file.name}: a size of {file.size_bytes} bytes")
        found.append(file)
    found.sort(key=lambda file: file.name)
    for one, following in pairwise(found):
        if one.name == following.name:
            raise StorageRefused(f"{place}: {one.name} is there twice")
    return tuple(found)


def check_name(place: str, name: str) -> None:
    if not name.isprintable() or any(part in ("", ".", "..") for part in name.split("/")):
        raise StorageRefused(f"{place}: {name[:100]!a}: must be a path below the place, of printable characters")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise StorageRefused(f"{place}: {name[:100]}…: a name has at most {MAX_NAME_BYTES:,} bytes")


def cut_range(start: int, end: int) -> list[tuple[int, int]]:
    return [(one, min(one + MAX_RANGE_BYTES, end)) for one in range(start, end, MAX_RANGE_BYTES)]


def check_range(place: str, file: StoredFile, start: int, end: int) -> None:
    if not 0 <= start <= end <= file.size_bytes:
        raise StorageRefused(f"{place}/{file.name}: has {file.size_bytes:,} bytes, not those from {start:,} to {end:,}")


async def read_ranges(storage: Storage, ranges: Sequence[tuple[StoredFile, int, int]]) -> list[bytes]:
    """Read many ranges (file, start, end) at once, each of them once; neighbours in a file go into one request.

    Raises:
        StorageError: one of them cannot be read.
    """
    groups: list[list[tuple[StoredFile, int, int]]] = []
    for one in sorted(set(ranges), key=lambda one: (one[0].name, *one[1:])):
        if groups:
            first, last = groups[-1][0], groups[-1][-1]
            if (last[0], last[2]) == one[:2] and one[2] - first[1] <= MAX_RANGE_BYTES:
                groups[-1].append(one)
                continue
        groups.append([one])
    whole = [(group[0][0], group[0][1], group[-1][2]) for group in groups]
    parts = await gather([partial(storage.read, *one) for one in whole])
    found: dict[tuple[StoredFile, int, int], bytes] = {}
    for group, (_, first, _), raw in zip(groups, whole, parts, strict=True):
        found |= {one: raw[one[1] - first : one[2] - first] for one in group}
    return [found[one] for one in ranges]


async def gather(tasks: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run all at once; the first failure ends the others."""
    from psyche.wire.nursery import open_plain_nursery  # with trio, which the help of commands does without

    results: dict[int, T] = {}

    async def run(number: int) -> None:
        results[number] = await tasks[number]()

    async with open_plain_nursery() as nursery:
        for number in range(len(tasks)):
            nursery.start_soon(run, number)
    return [results[number] for number in range(len(tasks))]
