"""The journal (K1): records survive what they must, and what is broken is told apart from what is torn."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_kit import MemoryDisk

from psyche.core.limits import STATE_BYTES
from psyche.server import journal as j
from psyche.server.events import EventKind, Pause, SetRates, Tick, Withdraw, decode_event, encode_event, get_kind
from psyche.server.recovery import create_journal
from psyche.wire.crypto import blake3_hash

RAW = bytes(STATE_BYTES)
HASH = blake3_hash(RAW)


def build_journal(disk: MemoryDisk, records: int = 0) -> j.Journal:
    journal = create_journal(disk, 100, RAW)
    for number in range(records):
        journal.append(101 + number, Tick(bytes([number]) * 32), HASH)
    journal.flush()
    return journal


def read(disk: MemoryDisk, first: int = 1) -> j.Scan:
    return j.scan_segment(disk.files[j.get_segment_name(first)], first)


@given(st.integers(0, 2**64 - 1), st.integers(0, 255), st.binary(max_size=3_000), st.binary(min_size=8, max_size=8))
def test_a_record_reads_back_as_it_was_written(now: int, kind: int, body: bytes, state_hash: bytes) -> None:
    record = j.Record(1, now, kind, body, state_hash)
    raw = j.encode_record(record)
    assert j.scan_segment(raw, 1) == j.Scan((record,), len(raw))


def test_a_record_has_the_bytes_of_k1() -> None:
    raw = j.encode_record(j.Record(7, 1_700_000_000, 3, b"body", b"8 bytes!"))
    length, _crc, seq, now, kind = struct.unpack_from("<IIQQB", raw)
    assert (length, seq, now, kind) == (len(raw) - 8, 7, 1_700_000_000, 3)
    assert raw[25:] == b"body8 bytes!"


def test_every_kind_of_event_has_a_number_of_its_own_and_reads_back() -> None:
    for event in (Tick(bytes(32)), Withdraw(bytes(32), 3, 4), Pause(bytes(16)), SetRates(bytes(16), None, 7)):
        assert decode_event(get_kind(event), encode_event(event)) == event
    assert len({get_kind(e) for e in (Tick(b""), Pause(b""))}) == 2
    assert {kind.value for kind in EventKind} == set(range(1, 15)), "numbers on disk never change their meaning"


def test_a_tail_torn_at_any_byte_of_the_last_record_loses_that_record_alone() -> None:
    disk = MemoryDisk()
    build_journal(disk, 3)
    whole = disk.files[j.get_segment_name(1)]
    good = read(disk)
    before_last = len(j.encode_record(good.records[0])) + len(j.encode_record(good.records[1]))
    for size in range(before_last + 1, len(whole)):
        scan = j.scan_segment(whole[:size], 1)
        assert scan == j.Scan(good.records[:2], before_last, is_torn=True), f"cut at byte {size}"
    assert j.scan_segment(whole[:before_last], 1) == j.Scan(good.records[:2], before_last)


def test_any_byte_changed_in_the_last_record_loses_that_record_alone() -> None:
    disk = MemoryDisk()
    build_journal(disk, 3)
    whole = disk.files[j.get_segment_name(1)]
    good = read(disk)
    start = len(whole) - len(j.encode_record(good.records[2]))
    for place in range(start, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        scan = j.scan_segment(bytes(damaged), 1)
        assert scan == j.Scan(good.records[:2], start, is_torn=True), f"byte {place}"


def test_any_byte_changed_before_good_records_is_a_broken_middle_and_no_torn_tail() -> None:
    disk = MemoryDisk()
    build_journal(disk, 4)
    whole = disk.files[j.get_segment_name(1)]
    end_of_second = sum(len(j.encode_record(r)) for r in read(disk).records[:2])
    for place in range(end_of_second):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        scan = j.scan_segment(bytes(damaged), 1)
        assert scan.is_broken, f"byte {place}"
        assert not scan.is_torn


def test_zeros_after_the_last_record_are_a_torn_tail() -> None:
    disk = MemoryDisk()
    build_journal(disk, 2)
    whole = disk.files[j.get_segment_name(1)]
    scan = j.scan_segment(whole + bytes(4_096), 1)
    assert (len(scan.records), scan.good_bytes, scan.is_torn) == (2, len(whole), True)


def test_a_length_of_four_gigabytes_is_refused_before_anything_is_allocated() -> None:
    raw = struct.pack("<II", 0xFFFF_FFFF, 0) + bytes(100)
    assert j.scan_segment(raw, 1) == j.Scan((), 0, is_torn=True)


def test_records_appended_together_cost_one_sync() -> None:
    disk = MemoryDisk()
    journal = build_journal(disk)
    before = disk.syncs
    for number in range(20):
        journal.append(200, Tick(bytes([number]) * 32), HASH)
    assert journal.durable_seq == 0
    assert journal.last_seq == 20
    journal.flush()
    assert disk.syncs == before + 1
    assert journal.durable_seq == 20
    assert len(read(disk).records) == 20


def test_nothing_is_durable_until_its_batch_is_committed() -> None:
    journal = build_journal(MemoryDisk())
    journal.append(200, Tick(bytes(32)), HASH)
    batch = journal.take()
    assert batch is not None
    journal.append(201, Tick(bytes(32)), HASH)  # comes while the disk is busy
    journal.write(batch)
    assert journal.durable_seq == 0
    journal.commit(batch)
    assert journal.durable_seq == 1
    assert journal.has_work


def test_two_snapshots_are_kept_and_the_segments_since_the_older_one() -> None:
    disk = MemoryDisk()
    journal = build_journal(disk)
    for number in range(5):
        journal.append(200 + number, Tick(bytes(32)), HASH)
        journal.snapshot(200 + number, RAW, ())
        journal.append(200 + number, Tick(bytes(32)), HASH)
        journal.flush()
    snapshots, segments = j.get_numbers(disk.names(), "snapshot-"), j.get_numbers(disk.names(), "journal-")
    assert snapshots == [7, 9]
    assert segments == [8, 10]
    assert [record.seq for first in segments for record in read(disk, first).records] == [8, 9, 10]


def test_a_snapshot_is_due_when_the_segment_has_four_mebibytes() -> None:
    journal = build_journal(MemoryDisk())
    size = len(j.encode_record(j.Record(1, 0, 1, encode_event(Tick(bytes(3_000))), HASH[:8])))
    needed = -(-j.SNAPSHOT_EVERY_BYTES // size)
    for _ in range(needed - 1):
        journal.append(200, Tick(bytes(3_000)), HASH)
    assert not journal.wants_snapshot
    journal.append(200, Tick(bytes(3_000)), HASH)
    assert journal.wants_snapshot
    journal.snapshot(200, RAW, ())
    assert not journal.wants_snapshot


def test_a_snapshot_reads_back_and_any_changed_byte_is_noticed() -> None:
    snapshot = j.Snapshot(12, 1_700_000_000, tuple(bytes([n]) * 16 for n in range(3)), RAW)
    raw = j.encode_snapshot(snapshot)
    assert j.decode_snapshot(raw, 12) == snapshot
    assert j.decode_snapshot(raw, 13) is None, "another file's name"
    for place in [*range(100), 5_000, len(raw) - 33, len(raw) - 1]:
        damaged = bytearray(raw)
        damaged[place] ^= 1
        assert j.decode_snapshot(bytes(damaged), 12) is None, f"byte {place}"
    for size in (0, 1, 100, len(raw) - 1):
        assert j.decode_snapshot(raw[:size], 12) is None


def test_a_failing_disk_says_so_and_nothing_becomes_durable() -> None:
    disk = MemoryDisk()
    journal = build_journal(disk)
    journal.append(200, Tick(bytes(32)), HASH)
    disk.broken = True
    with pytest.raises(j.JournalError, match=r"Input/output error.*start the server again"):
        journal.flush()
    assert journal.durable_seq == 0


def test_after_a_lost_batch_no_later_one_is_written_that_would_leave_a_gap() -> None:
    disk = MemoryDisk()
    journal = build_journal(disk, 2)
    journal.append(200, Tick(bytes(32)), HASH)
    disk.broken = True
    with pytest.raises(j.JournalError):
        journal.flush()
    disk.broken = False
    journal.append(201, Tick(bytes(32)), HASH)
    with pytest.raises(j.JournalError, match="failed before"):
        journal.flush()
    assert [record.seq for record in read(disk).records] == [1, 2]
