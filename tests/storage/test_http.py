"""Files over HTTP: the right bytes of the right version, or an error, whatever is between."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
import trio
from kits.clocks import SteadyClock
from kits.storage.faults import FAULTS, STALLING, FaultyWay
from kits.storage.servers import CONTENT, OPTIONS
from kits.tier import few

from psyche.errors import StorageError, StorageRefused
from psyche.storage import http, port
from psyche.storage.port import StoredFile, read_ranges
from psyche.storage.urls import UrlStorage, open_urls

A = CONTENT["a.bin"]


@pytest.fixture
async def storage(way: FaultyWay) -> AsyncGenerator[UrlStorage]:
    storage = open_urls([f"{way.address}/{name}" for name in CONTENT], OPTIONS)
    yield storage
    await storage.aclose()


async def find(storage: UrlStorage, name: str = "a.bin") -> StoredFile:
    return next(file for file in await storage.list_files() if file.name == name)


async def test_files_are_listed_by_name_with_size_and_etag(storage: UrlStorage, way: FaultyWay) -> None:
    files = await storage.list_files()
    assert [(file.name, file.size_bytes) for file in files] == [(name, len(raw)) for name, raw in CONTENT.items()]
    assert all(file.version.startswith('"') for file in files)
    assert storage.address == way.address
    assert await storage.list_files() is files
    assert len(way.asked) == len(CONTENT)


@pytest.mark.parametrize(("start", "end"), [(0, 1), (299_999, 300_000), (1_000, 250_000), (0, 300_000), (5, 5)])
async def test_a_range_is_read_exactly(storage: UrlStorage, start: int, end: int) -> None:
    assert await storage.read(await find(storage), start, end) == A[start:end]


async def test_a_large_read_is_cut_into_requests_of_which_so_many_run_at_once(
    served: str, way: FaultyWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "MAX_RANGE_BYTES", 70_000)
    storage = open_urls([f"{way.address}/a.bin"], replace(OPTIONS, max_concurrent_downloads=3))
    assert await storage.read(await find(storage), 100, 280_100) == A[100:280_100]
    assert way.most_at_once == 3
    assert len(way.asked) == 1 + 4
    parts = await storage.read_parts(await find(storage), 100, 280_100)
    assert [len(part) for part in parts] == [70_000] * 4, "to join 64 MiB would hold up everything else"
    await storage.aclose()


async def test_of_small_ranges_more_and_more_run_at_once_until_the_source_is_busy(
    way: FaultyWay, quick_clock: SteadyClock
) -> None:
    """As shuffled rows are: each costs a round trip."""
    options = replace(OPTIONS, max_concurrent_downloads=2)
    storage = open_urls([f"{way.address}/a.bin"], options)
    file = await find(storage)
    ranges = [(file, start, start + 10) for start in range(0, 20_000, 100)]
    found = await read_ranges(storage, ranges)
    assert found == [A[start:end] for _, start, end in ranges]
    assert 2 < way.most_at_once <= options.max_small_requests
    way.spoil("busy", 20)
    await read_ranges(storage, ranges[:20])
    way.most_at_once = 0
    await read_ranges(storage, ranges[:4])
    assert way.most_at_once <= 4, "two, and one more for each answer while others wait"
    await storage.aclose()


async def test_neighbours_go_into_one_request_each_byte_once_and_come_back_in_the_order_asked(
    storage: UrlStorage, way: FaultyWay
) -> None:
    a, b = await find(storage), await find(storage, "deep/b.bin")
    wanted = [(a, 200, 300), (b, 0, 10), (a, 0, 100), (a, 100, 200), (a, 400, 500), (a, 100, 200), (a, 500, 500)]
    way.asked.clear()
    found = await read_ranges(storage, wanted)
    assert found == [CONTENT[file.name][start:end] for file, start, end in wanted]
    assert sorted(one.headers["range"] for one in way.asked) == ["bytes=0-299", "bytes=0-9", "bytes=400-499"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_after_a_fault_the_right_bytes_are_read(
    storage: UrlStorage, way: FaultyWay, quick_clock: SteadyClock, fault: str
) -> None:
    file = await find(storage)
    way.spoil(fault, 2)
    assert await storage.read(file, 100, 90_000) == A[100:90_000]
    assert way.count == 0


@pytest.mark.parametrize("fault", few([*(fault for fault in FAULTS if fault not in STALLING), "stalled_body"], 6))
async def test_parts_are_handed_over_once_and_what_came_before_a_fault_is_not_asked_for_again(
    storage: UrlStorage, way: FaultyWay, quick_clock: SteadyClock, fault: str
) -> None:
    file, found = await find(storage), bytearray()

    async def take(part: bytes) -> None:
        found.extend(part)
        await trio.lowlevel.checkpoint()

    way.asked.clear()
    way.spoil(fault, 1)
    await storage.copy(file, 100, 290_000, take)
    assert found == A[100:290_000]
    first, second = (one.headers["range"] for one in way.asked)
    assert (second != first) == (fault in ("cut", "stalled_body"))


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in STALLING] + ["stalled_body"])
async def test_a_fault_that_stays_is_an_error_that_names_file_and_place(
    storage: UrlStorage, way: FaultyWay, quick_clock: SteadyClock, fault: str
) -> None:
    file = await find(storage)
    way.asked.clear()
    way.spoil(fault)
    with pytest.raises(StorageError, match=rf"^{way.address}/a.bin: \S") as caught:
        await storage.read(file, 100, 90_000)
    assert isinstance(caught.value, StorageRefused) == (fault == "other_version")
    assert len(way.asked) == http.TRIES


async def test_a_file_that_has_changed_is_another_version(
    storage: UrlStorage, way: FaultyWay, quick_clock: SteadyClock
) -> None:
    file = await find(storage)
    old = replace(file, version='"of-before"')
    with pytest.raises(StorageRefused, match="another version"):
        await storage.read(old, 0, 10)  # caddy answers 200 with the whole file
    assert way.asked[-1].headers["if-range"] == '"of-before"'


@pytest.mark.parametrize(
    ("name", "size_bytes", "reason"),
    [("missing", 10, r"not there \(HTTP 404\)"), ("a.bin", 1 << 40, "HTTP 416")],
)
async def test_what_asking_again_would_not_help_is_asked_once(
    way: FaultyWay, quick_clock: SteadyClock, name: str, size_bytes: int, reason: str
) -> None:
    storage = open_urls([f"{way.address}/{name}"], OPTIONS)
    with pytest.raises(StorageRefused, match=reason):
        await storage.read(StoredFile(name, size_bytes, ""), size_bytes - 5, size_bytes)
    assert len(way.asked) == 1
    await storage.aclose()


async def test_a_busy_source_is_left_alone_as_long_as_it_says(
    storage: UrlStorage, way: FaultyWay, quick_clock: SteadyClock
) -> None:
    file = await find(storage)
    way.spoil("busy", 1)
    began = quick_clock.current_time()
    assert await storage.read(file, 0, 10) == A[:10]
    assert quick_clock.current_time() - began >= 2.0


async def test_a_source_that_has_become_slow_gets_more_time(
    storage: UrlStorage, way: FaultyWay, quick_clock: SteadyClock
) -> None:
    file = await find(storage)
    source = storage._http
    source._pace = 1e9
    way.spoil("slow", 1)
    assert await storage.read(file, 0, 100) == A[:100]
    assert source._pace == 5e8


async def test_a_range_outside_of_the_file_is_refused_without_a_request(storage: UrlStorage, way: FaultyWay) -> None:
    file = await find(storage)
    way.asked.clear()
    for start, end in ((-1, 5), (7, 5), (0, 300_001)):
        with pytest.raises(StorageRefused, match="has 300,000 bytes"):
            await storage.read(file, start, end)
    assert not way.asked


async def test_no_query_stands_in_a_message(
    way: FaultyWay, quick_clock: SteadyClock, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = open_urls([f"{way.address}/a.bin?signature=secret", f"{way.address}/b.bin?signature=secret"], OPTIONS)
    assert storage.names == ("a.bin", "b.bin")
    way.spoil("dead")
    with pytest.raises(StorageError) as caught:
        await storage.list_files()
    assert "a.bin" in str(caught.value) or "b.bin" in str(caught.value)
    assert "secret" not in f"{caught.value!r} {caught.value.__cause__!r} {storage.address} {capsys.readouterr()}"
    await storage.aclose()


@pytest.mark.parametrize(
    "urls",
    [[], ["https://a.example/x", "https://a.example/x"], ["https://a.example/x?1", "https://a.example/x?2"]],
    ids=["none", "twice", "another query"],
)
def test_each_file_needs_an_address_of_its_own(urls: list[str]) -> None:
    with pytest.raises(StorageRefused, match="an address of its own"):
        open_urls(urls, OPTIONS)


def test_names_are_below_what_the_addresses_begin_with() -> None:
    storage = open_urls(["https://a.example/data/2.bin", "https://a.example/data/sub/1.bin?x=2"], OPTIONS)
    assert (storage.address, storage.names) == ("https://a.example/data", ("2.bin", "sub/1.bin"))
    storage = open_urls(["https://a.example/x", "https://b.example/x"], OPTIONS)
    assert (storage.address, storage.names) == ("https:/", ("a.example/x", "b.example/x"))
