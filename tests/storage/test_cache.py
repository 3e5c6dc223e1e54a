"""The cache on disk: bytes are those of the storage, whatever is in its folder, and it stays below its limit."""

import errno
import os
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from kits.storage.servers import OPTIONS, serve_folder
from structlog.testing import CapturingLogger

from psyche.errors import StorageError
from psyche.storage import cache as cache_module
from psyche.storage.cache import CHUNK_BYTES, DiskCache
from psyche.storage.port import RangeReader, StoredFile
from psyche.storage.urls import open_urls

RAW = Random(3).randbytes(10 * CHUNK_BYTES + 1_000)
FILE = StoredFile("a.bin", len(RAW), "1")
SIZE = CHUNK_BYTES + 32  # of a chunk on disk


class CountingStorage(RangeReader):
    """A storage of one file that counts what it is asked; `gate`, if set, holds its answers."""

    address = "test://place"

    def __init__(self, raw: bytes = RAW) -> None:
        self.raw = raw
        self.asked: list[tuple[int, int]] = []
        self.gate = trio.Event()
        self.gate.set()
        self.error: StorageError | None = None

    async def list_files(self) -> tuple[StoredFile, ...]:
        return (FILE,)

    async def read(self, file: StoredFile, start: int, end: int) -> bytes:
        self.asked.append((start, end))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.raw[start:end]

    async def aclose(self) -> None: ...


@pytest.fixture
def storage() -> CountingStorage:
    return CountingStorage()


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path, 100 * CHUNK_BYTES)


def get_chunks(folder: Path) -> list[Path]:
    return sorted(folder.glob("??/*"))


async def test_what_was_read_is_not_fetched_again(storage: CountingStorage, cache: DiskCache) -> None:
    for start, end in ((5, 9), (CHUNK_BYTES - 1, CHUNK_BYTES + 1), (0, len(RAW)), (len(RAW) - 3, len(RAW)), (7, 7)):
        assert await cache.read(storage, FILE, start, end) == RAW[start:end]
    mib = CHUNK_BYTES
    # Of chunks that follow each other, one request has eight at most.
    assert sorted(storage.asked) == [(0, mib), (mib, 2 * mib), (2 * mib, 10 * mib), (10 * mib, len(RAW))]


async def test_who_wants_the_same_chunk_waits_for_the_first(storage: CountingStorage, cache: DiskCache) -> None:
    storage.gate = trio.Event()
    results: list[bytes] = []

    async def read(start: int) -> None:
        results.append(await cache.read(storage, FILE, start, CHUNK_BYTES + 5))

    async with trio.open_nursery() as nursery:
        for start in (0, 3, CHUNK_BYTES):
            nursery.start_soon(read, start)
        await trio.testing.wait_all_tasks_blocked(0.05)
        storage.gate.set()
    assert sorted(map(len, results)) == [5, CHUNK_BYTES + 2, CHUNK_BYTES + 5]
    assert sum(end - start for start, end in storage.asked) == 2 * CHUNK_BYTES


async def test_a_failed_fetch_is_an_error_and_the_next_one_tries_again(
    storage: CountingStorage, cache: DiskCache
) -> None:
    storage.error = StorageError("test://place/a.bin: dead")
    with pytest.raises(StorageError, match="dead"):
        await cache.read(storage, FILE, 0, 5)
    storage.error = None
    assert await cache.read(storage, FILE, 0, 5) == RAW[:5]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[:500],
        lambda raw: b"",
        lambda raw: raw + b"x",
        lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
        lambda raw: bytes([raw[0] ^ 1]) + raw[1:],
        lambda raw: bytes(len(raw)),
    ],
    ids=["short", "torn", "empty", "long", "another byte", "another hash", "zeros"],
)
async def test_a_chunk_that_is_not_whole_is_fetched_again(
    storage: CountingStorage, cache: DiskCache, tmp_path: Path, spoil: object
) -> None:
    await cache.read(storage, FILE, 0, 5)
    (path,) = get_chunks(tmp_path)
    path.write_bytes(spoil(path.read_bytes()))  # pyright: ignore[reportCallIssue]
    for _ in range(2):
        assert await cache.read(storage, FILE, 0, 5) == RAW[:5]
    assert len(storage.asked) == 2


@pytest.mark.parametrize(
    "other", [StoredFile("b.bin", len(RAW), "1"), StoredFile("a.bin", len(RAW), "2"), StoredFile("a.bin", 9, "1")]
)
async def test_a_chunk_of_another_file_or_version_is_not_taken(cache: DiskCache, other: StoredFile) -> None:
    await cache.read(CountingStorage(), FILE, 0, 5)
    storage = CountingStorage(b"other bytes" * 200_000)
    assert await cache.read(storage, other, 0, 5) == b"other"
    assert len(storage.asked) == 1


async def test_a_file_without_version_is_not_kept(storage: CountingStorage, cache: DiskCache, tmp_path: Path) -> None:
    for _ in range(2):
        assert await cache.read(storage, StoredFile("a.bin", len(RAW), ""), 5, 9) == RAW[5:9]
    assert storage.asked == [(5, 9)] * 2
    assert not get_chunks(tmp_path)


async def test_beyond_the_limit_the_chunks_used_longest_ago_go(storage: CountingStorage, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 5 * SIZE)
    mib = CHUNK_BYTES
    for number in range(5):
        await cache.read(storage, FILE, number * mib, number * mib + 1)
        for path in get_chunks(tmp_path):  # a second has passed
            earlier = path.stat().st_mtime - 1
            os.utime(path, (earlier, earlier))
    await cache.read(storage, FILE, 0, 1)  # used again
    (tmp_path / "00").mkdir(exist_ok=True)
    (tmp_path / "00" / "left.1.part").write_bytes(bytes(SIZE))  # by a process that was killed
    os.utime(tmp_path / "00" / "left.1.part", (0, 0))
    await cache.read(storage, FILE, 5 * mib, 5 * mib + 1)
    assert sum(path.stat().st_size for path in get_chunks(tmp_path)) <= 5 * SIZE
    assert not (tmp_path / "00" / "left.1.part").exists()
    storage.asked.clear()
    for number in (0, 5, 4, 1):
        await cache.read(storage, FILE, number * mib, number * mib + 1)
    assert storage.asked == [(mib, 2 * mib)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
async def test_a_disk_that_cannot_be_written_means_no_cache_and_one_warning(
    storage: CountingStorage, cache: DiskCache, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    told = CapturingLogger()
    monkeypatch.setattr(cache_module, "replace_file", fail)
    monkeypatch.setattr(cache_module, "_log", told)
    for _ in range(2):
        assert await cache.read(storage, FILE, 5, 9) == RAW[5:9]
    assert len(storage.asked) == 2
    assert str(told.calls).count(os.strerror(number)) == len(told.calls) == 1


READER = """
import sys, trio
from pathlib import Path
from random import Random
from psyche.storage.cache import DiskCache
from psyche.storage.port import StorageOptions
from psyche.storage.urls import open_urls

async def main():
    place, random = Path(sys.argv[1]), Random(int(sys.argv[2]))
    cache = DiskCache(place / "cache", 6 << 20)
    storage = open_urls([sys.argv[3]], StorageOptions(allow_private_hosts=True))
    (file,) = await storage.list_files()
    raw = (place / "files" / "a.bin").read_bytes()
    for _ in range(20):
        start = random.randrange(len(raw))
        end = min(start + random.randrange(3 << 20), len(raw))
        assert await cache.read(storage, file, start, end) == raw[start:end]

trio.run(main)
"""


@pytest.mark.whole
async def test_two_processes_share_a_cache(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.bin").write_bytes(RAW)
    with serve_folder(tmp_path / "files") as address:
        call = [sys.executable, "-c", READER, str(tmp_path)]
        processes = [subprocess.Popen([*call, f"{seed}", f"{address}/a.bin"]) for seed in range(2)]
        assert [process.wait() for process in processes] == [0, 0]
        used_bytes = sum(path.stat().st_size for path in get_chunks(tmp_path / "cache"))
        assert 0 < used_bytes <= 8 << 20  # the limit, and what each writes between two looks
        async with aclosing(open_urls([f"{address}/a.bin"], OPTIONS)) as storage:
            (file,) = await storage.list_files()
            assert await DiskCache(tmp_path / "cache", 6 << 20).read(storage, file, 0, len(RAW)) == RAW
