"""The journal (K1): records survive what they must, and what is broken is told apart from what is torn."""

import errno
import struct
from dataclasses import replace

import pytest
from kits.runs import build_run
from kits.server import MemoryDisk

from psyche.core.state.limits import MAX_CLAIMS, STATE_BYTES
from psyche.core.state.messages import Collect, NameCheckpoint, Pause, SetRates, Tick, Withdraw
from psyche.core.state.state import Checkpoint, CheckpointKind
from psyche.server.journal import journal as j
from psyche.server.journal.changes import Change, decode_change, encode_change
from psyche.server.journal.recovery import create_journal, recover
from psyche.wire.access import MAX_DELEGATES, Allow, Disallow
from psyche.wire.crypto import blake3_hash

RAW = bytes(STATE_BYTES)
HASH = blake3_hash(RAW)
LARGE = Allow(b"k" * 32, (b"d" * 32,) * MAX_DELEGATES)


def build_journal(disk: MemoryDisk, records: int = 0) -> j.Journal:
    journal = create_journal(disk, 100, RAW)
    for number in range(records):
        journal.append(101 + number, Change(Tick(bytes([number % 256]) * 32)), HASH)
    journal.flush()
    return journal


def read(disk: MemoryDisk, first: int = 1) -> j.Scan:
    return j.scan_segment(disk.files[j.get_segment_name(first)], first)


def test_a_record_has_the_bytes_of_k1() -> None:
    raw = j.encode_record(j.Record(7, 1_700_000_000, 3, b"body", b"8 bytes!"))
    length, _crc, seq, now, kind = struct.unpack_from("<IIQQB", raw)
    assert (length, seq, now, kind) == (len(raw) - 8, 7, 1_700_000_000, 3)
    assert raw[25:] == b"body8 bytes!"


CHANGES = (
    Change(Tick(bytes(32))),
    Change(Withdraw(3, 4), b"k" * 32),
    Change(Pause(), b"o" * 32, bytes(16)),
    Change(SetRates(None, 7), b"o" * 32, bytes(16)),
    Change(Collect(((bytes(32), 7), (b"\1" * 32, 8))), b"o" * 32, bytes(16)),
    Change(Disallow(b"k" * 32, b"f" * 32), b"o" * 32, bytes(16)),
    Change(NameCheckpoint(1, b"d" * 32, Checkpoint(CheckpointKind.LOCAL, "drive/one")), b"k" * 32),
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_reads_back_as_it_was_written(change: Change) -> None:
    assert decode_change(change.number, encode_change(change)) == change


def test_what_a_witness_says_that_is_never_stored_is_not_in_the_journal() -> None:
    message = build_run(1).warm_up().build_witness(0)
    said = Change(replace(message, metadata=b"fast today"), b"k" * 32)
    assert decode_change(said.number, encode_change(said)) == Change(message, b"k" * 32)


def test_the_largest_command_fits_a_record() -> None:
    claims = tuple((bytes([i]) * 32, (1 << 64) - 1) for i in range(MAX_CLAIMS))
    delegates = tuple(bytes([i]) * 32 for i in range(MAX_DELEGATES))
    for message in (Collect(claims), Allow(b"k" * 32, delegates)):
        change = Change(message, b"o" * 32, bytes(16))
        record = j.Record(1, 0, change.number, encode_change(change), HASH[:8])
        assert len(j.encode_record(record)) <= j.MAX_RECORD_BYTES


def test_a_journal_of_another_version_is_refused_with_a_way_out_and_nothing_is_removed() -> None:
    disk = MemoryDisk()
    create_journal(disk, 100, RAW)
    name = j.get_snapshot_name(0)
    content = bytearray(disk.files[name][:-32])
    content[8:12] = (2).to_bytes(4, "little")
    disk.files[name] = bytes(content) + blake3_hash(bytes(content))
    files = dict(disk.files)
    with pytest.raises(j.JournalError, match=r"version 2.*run the version of Psyche that wrote it, or start a new run"):
        recover(disk)
    assert disk.files == files


def test_any_byte_changed_is_a_torn_tail_in_the_last_record_and_a_broken_middle_before_it() -> None:
    disk = MemoryDisk()
    build_journal(disk, 4)
    whole = disk.files[j.get_segment_name(1)]
    good = read(disk).records
    start = len(whole) - len(j.encode_record(good[3]))
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        scan = j.scan_segment(bytes(damaged), 1)
        if place < start:
            assert (bool(scan.behind), scan.is_torn) == (True, False), f"byte {place}"
        else:
            assert scan == j.Scan(good[:3], start, is_torn=True), f"byte {place}"


def build_stray(seq: int) -> bytes:
    return j.encode_record(j.Record(seq, 100, 1, encode_change(Change(Tick(bytes(32)))), HASH[:8]))


@pytest.mark.parametrize(
    "rest",
    [bytes(4_096), bytes(50) + build_stray(9_999) + build_stray(1), struct.pack("<II", 0xFFFF_FFFF, 0) + bytes(100)],
    ids=["zeros", "records of other parts of the run", "a length of four gigabytes"],
)
def test_what_is_no_record_of_here_is_a_torn_tail(rest: bytes) -> None:
    disk = MemoryDisk()
    build_journal(disk, 2)
    whole = disk.files[j.get_segment_name(1)]
    scan = j.scan_segment(whole + rest, 1)
    assert (len(scan.records), scan.good_bytes, scan.is_torn) == (2, len(whole), True)


@pytest.mark.parametrize("hole_bytes", [100, 4_096, 32_768])
def test_a_hole_with_whole_records_behind_it_is_no_torn_tail_whatever_its_size(hole_bytes: int) -> None:
    disk = MemoryDisk()
    build_journal(disk, 1_000)
    whole = disk.files[j.get_segment_name(1)]
    size = len(whole) // 1_000
    start, end = 7 * size, 7 * size + hole_bytes
    scan = j.scan_segment(whole[:start] + bytes(hole_bytes) + whole[end:], 1)
    assert (bool(scan.behind), scan.is_torn, len(scan.records), scan.good_bytes) == (True, False, 7, start)
    first_whole = -(-end // size) + 1
    assert [record.seq for record in scan.behind] == list(range(first_whole, 1_001))


def test_records_between_two_holes_are_found_too() -> None:
    disk = MemoryDisk()
    build_journal(disk, 300)
    damaged = bytearray(disk.files[j.get_segment_name(1)])
    size = len(damaged) // 300
    for hole in (10, 200):
        damaged[hole * size : (hole + 90) * size] = bytes(90 * size)
    assert [r.seq for r in j.scan_segment(bytes(damaged), 1).behind] == [*range(101, 201), *range(291, 301)]


def test_records_appended_together_cost_one_sync() -> None:
    disk = MemoryDisk()
    journal = build_journal(disk)
    before = disk.syncs
    for number in range(20):
        journal.append(200, Change(Tick(bytes([number]) * 32)), HASH)
    assert journal.durable_seq == 0
    assert journal.last_seq == 20
    journal.flush()
    assert disk.syncs == before + 1
    assert journal.durable_seq == 20
    assert len(read(disk).records) == 20


def test_nothing_is_durable_until_its_batch_is_committed() -> None:
    journal = build_journal(MemoryDisk())
    journal.append(200, Change(Tick(bytes(32))), HASH)
    batch = journal.take()
    assert batch is not None
    journal.append(201, Change(Tick(bytes(32))), HASH)  # comes while the disk is busy
    journal.write(batch)
    assert journal.durable_seq == 0
    journal.commit(batch)
    assert journal.durable_seq == 1
    assert journal.has_work


def test_two_snapshots_are_kept_and_the_segments_since_the_older_one() -> None:
    disk = MemoryDisk()
    journal = build_journal(disk)
    for number in range(5):
        journal.append(200 + number, Change(Tick(bytes(32))), HASH)
        journal.snapshot(200 + number, RAW, ())
        journal.append(200 + number, Change(Tick(bytes(32))), HASH)
        journal.flush()
    snapshots, segments = j.get_numbers(disk.names(), "snapshot-"), j.get_numbers(disk.names(), "journal-")
    assert snapshots == [7, 9]
    assert segments == [8, 10]
    assert [record.seq for first in segments for record in read(disk, first).records] == [8, 9, 10]


def test_a_snapshot_is_due_when_the_segment_has_four_mebibytes() -> None:
    journal = build_journal(MemoryDisk())
    size = len(j.encode_record(j.Record(1, 0, 1, encode_change(Change(LARGE)), HASH[:8])))
    needed = -(-j.SNAPSHOT_EVERY_BYTES // size)
    for _ in range(needed - 1):
        journal.append(200, Change(LARGE), HASH)
    assert not journal.wants_snapshot
    journal.append(200, Change(LARGE), HASH)
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


@pytest.mark.parametrize("version", [5, 7])
def test_a_snapshot_of_another_version_is_told_as_such_however_long_its_state_is(version: int) -> None:
    content = b"PSYJSNAP" + version.to_bytes(4, "little") + bytes(100)
    with pytest.raises(j.JournalError, match=f"has version {version}, this server reads 6"):
        j.decode_snapshot(content + blake3_hash(content), 12)
    assert j.decode_snapshot(content + bytes(32), 12) is None, "not whole"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EIO, r"the disk failed \(.*Input/output error.*start the server again"),
        (errno.EMFILE, r"next file cannot be opened \(Too many open files\).*ulimit -n.*start the server again"),
    ],
    ids=["disk", "descriptors"],
)
def test_a_write_that_fails_names_its_cause_and_nothing_becomes_durable(number: int, words: str) -> None:
    disk = MemoryDisk()
    disk.errno = number
    journal = build_journal(disk)
    journal.append(200, Change(Tick(bytes(32))), HASH)
    disk.broken = True
    with pytest.raises(j.JournalError, match=words):
        journal.flush()
    assert journal.durable_seq == 0


def test_after_a_lost_batch_no_later_one_is_written_that_would_leave_a_gap() -> None:
    disk = MemoryDisk()
    journal = build_journal(disk, 2)
    journal.append(200, Change(Tick(bytes(32))), HASH)
    disk.broken = True
    with pytest.raises(j.JournalError):
        journal.flush()
    disk.broken = False
    journal.append(201, Change(Tick(bytes(32))), HASH)
    with pytest.raises(j.JournalError, match="failed before"):
        journal.flush()
    assert [record.seq for record in read(disk).records] == [1, 2]
