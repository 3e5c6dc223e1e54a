"""The blob store: quotas, expiry, files that change, several offers of one blob."""

from pathlib import Path

import pytest

from psyche.errors import NetworkError, WireError
from psyche.network.blobs.messages import check_blob_size
from psyche.network.blobs.store import BlobStore, run_inline
from psyche.wire.crypto import blob_id_of

MIB = 1 << 20


def build(folder: Path, *, memory_bytes: int = 8 * MIB, disk_bytes: int = 8 * MIB) -> BlobStore:
    store = BlobStore(folder, memory_bytes=memory_bytes, disk_bytes=disk_bytes, run_io=run_inline)
    store.clear_folder()
    return store


def get_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_a_payload_is_read_back_in_ranges(tmp_path: Path) -> None:
    store = build(tmp_path)
    data = bytes(range(256)) * 10_000
    blob = await store.add_bytes(data, (1, 2))
    assert blob == blob_id_of(data)
    assert await store.read(blob, 1, 1) == data[MIB : 2 * MIB]
    assert await store.read(blob, 0, 3) == data
    assert await store.read(blob, 3, 1) is None
    assert await store.read(b"\0" * 32, 0, 1) is None


async def test_a_payload_expires_after_its_round_and_not_in_it(tmp_path: Path) -> None:
    store = build(tmp_path)
    blob = await store.add_bytes(b"x", (1, 2))
    store.expire(1, 2)
    assert blob in store
    store.expire(1, 3)
    assert blob not in store
    assert store.memory_bytes == 0
    later = await store.add_bytes(b"x", (1, 900))
    store.expire(2, 0)
    assert later not in store, "an epoch counts more than a height"


async def test_a_blob_offered_twice_is_gone_with_its_last_offer(tmp_path: Path) -> None:
    store = build(tmp_path)
    path = tmp_path / "tensor"
    path.write_bytes(b"weights")
    blob = await store.add_file(path, None)
    assert await store.add_file(path, None) == blob
    assert await store.add_bytes(b"weights", (0, 1)) == blob
    store.expire(9, 0)
    store.withdraw(blob)
    assert await store.read(blob, 0, 1) == b"weights"
    store.withdraw(blob)
    assert blob not in store
    store.withdraw(blob)


async def test_a_file_that_changed_is_no_longer_served(tmp_path: Path) -> None:
    store = build(tmp_path)
    path = tmp_path / "tensor"
    path.write_bytes(b"weights")
    blob = await store.add_file(path, None)
    path.write_bytes(b"WEIGHTS!")
    assert await store.read(blob, 0, 1) is None
    assert blob not in store


async def test_a_removed_copy_is_replaced_by_another_one(tmp_path: Path) -> None:
    store = build(tmp_path)
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (new, old):
        path.write_bytes(b"weights")
        blob = await store.add_file(path, None)
    old.unlink()
    assert await store.read(blob, 0, 1) == b"weights"


async def test_own_payloads_move_to_disk_and_fetched_ones_are_dropped(tmp_path: Path) -> None:
    store = build(tmp_path, memory_bytes=3 * MIB)
    own = await store.add_bytes(b"a" * MIB, (0, 1))
    fetched = await store.add_bytes(b"b" * MIB, (0, 9), is_fetched=True)
    third = await store.add_bytes(b"c" * MIB, (0, 5))
    await store.reserve(MIB)
    assert fetched not in store
    assert store.disk_bytes == 0
    await store.reserve(MIB)
    assert store.disk_bytes == MIB, "its own payload that expires first"
    assert await store.get_data(own) == b"a" * MIB
    assert await store.get_data(third) == b"c" * MIB
    store.expire(1, 0)
    assert store.disk_bytes == 0
    assert get_names(tmp_path) == []
    store.release(2 * MIB)
    assert store.memory_bytes == 0


async def test_what_fits_nowhere_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    store = build(tmp_path, memory_bytes=2 * MIB, disk_bytes=MIB)
    with pytest.raises(NetworkError, match="no room"):
        await store.reserve(3 * MIB)
    for fill in (b"a", b"b", b"c"):
        await store.add_bytes(fill * MIB, None)
    with pytest.raises(NetworkError, match="disk quota"):
        await store.add_bytes(b"d" * MIB, None)
    assert store.memory_bytes == 2 * MIB


def test_a_blob_above_4_gib_is_refused() -> None:
    check_blob_size(4 << 30)
    with pytest.raises(WireError, match="at most"):
        check_blob_size((4 << 30) + 1)
    with pytest.raises(WireError, match="at most"):
        check_blob_size(-1)


async def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="missing: No such file"):
        await build(tmp_path).add_file(tmp_path / "missing", None)


async def test_what_an_earlier_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "00.blob").write_bytes(b"old")
    build(tmp_path)
    assert get_names(tmp_path) == []
