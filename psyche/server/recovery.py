"""Recovery (K2): the newest good snapshot, the journal replayed on it, the hashes compared.

A torn tail is what a crash leaves of a write that nobody was told of: it is cut. Anything else that
does not fit is an error that says where, never a state that might be wrong.
"""

from dataclasses import dataclass, field
from typing import Final

from psyche.core.errors import CoordinatorError
from psyche.core.layout import decode_state, encode_state
from psyche.core.state import Coordinator
from psyche.errors import WireError
from psyche.server.events import decode_event, get_op_id
from psyche.server.journal import (
    HASH_BYTES,
    KEPT_OP_IDS,
    Journal,
    JournalDisk,
    JournalError,
    Record,
    Snapshot,
    decode_snapshot,
    get_numbers,
    get_segment_name,
    get_snapshot_name,
    scan_segment,
)
from psyche.wire.crypto import blake3_hash

# Encoding a state for its hash costs more than the change itself. Replay is deterministic, so a
# wrong state stays wrong: looking at some, and always at the last, finds every difference.
CHECK_EVERY_RECORDS: Final = 16


@dataclass(slots=True)
class Recovered:
    """A run as its journal has it; `now` is the time of the last record, `notes` what a person should know."""

    state: Coordinator
    journal: Journal
    now: int
    op_ids: tuple[bytes, ...]
    records: int
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Segment:
    """The newest segment, to which the journal goes on adding."""

    name: str
    size_bytes: int


def create_journal(disk: JournalDisk, now: int, raw: bytes) -> Journal:
    """Begin a journal for a run that is new: its first snapshot is on disk when this returns.

    Raises:
        JournalError: the disk failed.
    """
    journal = Journal(disk, 0, get_segment_name(1), 0)
    journal.snapshot(now, raw, ())
    journal.flush()
    return journal


def recover(disk: JournalDisk) -> Recovered | None:
    """The run that the disk holds, or None where it holds none.

    The caller then reports the gap (`Recovered` event), which moves the run's clocks.

    Raises:
        JournalError: something other than the tail is broken, missing or does not replay.
    """
    notes: list[str] = []
    snapshot = _load_snapshot(disk, notes)
    if snapshot is None:
        return None
    records, segment = _load_records(disk, snapshot.seq, notes)
    state = decode_state(snapshot.raw)
    op_ids = [*snapshot.op_ids]
    for index, record in enumerate(records):
        is_checked = index % CHECK_EVERY_RECORDS == 0 or index == len(records) - 1
        op_ids += _replay(state, record, is_checked=is_checked)
    last = records[-1] if records else None
    journal = Journal(disk, last.seq if last else snapshot.seq, segment.name, segment.size_bytes)
    now = last.now if last else snapshot.now
    return Recovered(state, journal, now, tuple(op_ids[-KEPT_OP_IDS:]), len(records), notes)


def _load_snapshot(disk: JournalDisk, notes: list[str]) -> Snapshot | None:
    names = disk.names()
    numbers = get_numbers(names, "snapshot-")
    for seq in reversed(numbers):
        snapshot = decode_snapshot(disk.read(get_snapshot_name(seq)), seq)
        if snapshot is not None:
            return snapshot
        notes.append(f"{get_snapshot_name(seq)} is broken and was removed; the one before it is used")
        disk.remove(get_snapshot_name(seq))
    if numbers or get_numbers(names, "journal-"):
        raise JournalError(
            "journal: no good snapshot is left in the state folder, so the run cannot be rebuilt; "
            "restore the folder from a backup, or start a new run in an empty one"
        )
    return None


def _load_records(disk: JournalDisk, after_seq: int, notes: list[str]) -> tuple[list[Record], _Segment]:
    starts = [seq for seq in get_numbers(disk.names(), "journal-") if seq > after_seq]
    records: list[Record] = []
    segment = _Segment(get_segment_name(after_seq + 1), 0)
    for first in starts:
        expected = after_seq + len(records) + 1
        if first != expected:
            raise JournalError(
                f"journal: records {expected} to {first - 1} are missing; restore the state folder from a backup"
            )
        segment = _read_segment(disk, first, records, notes, is_newest=first == starts[-1])
    return records, segment


def _read_segment(
    disk: JournalDisk, first: int, records: list[Record], notes: list[str], *, is_newest: bool
) -> _Segment:
    name = get_segment_name(first)
    data = disk.read(name)
    scan = scan_segment(data, first)
    records += scan.records
    broken = first + len(scan.records)
    if scan.is_broken or (scan.is_torn and not is_newest):
        raise JournalError(
            f"journal: {name}, byte {scan.good_bytes}: record {broken} is broken, and good ones follow it, so this is "
            "no torn tail; restore the state folder from a backup"
        )
    if scan.is_torn:
        notes.append(f"{name}: a torn tail of {len(data) - scan.good_bytes} bytes was cut at record {broken}")
        disk.truncate(name, scan.good_bytes)
    return _Segment(name, scan.good_bytes)


def _replay(state: Coordinator, record: Record, *, is_checked: bool) -> list[bytes]:
    """Make a record's change again; returns the op id of an owner's command."""
    where = f"journal: record {record.seq}"
    try:
        event = decode_event(record.kind, record.body)
        event.process(state, record.now)
    except (CoordinatorError, WireError) as error:
        raise JournalError(
            f"{where} cannot be made again: {error}; run the version of Psyche that wrote it, or restore a backup"
        ) from error
    if is_checked and blake3_hash(encode_state(state))[:HASH_BYTES] != record.state_hash:
        raise JournalError(
            f"{where} or one of the {CHECK_EVERY_RECORDS - 1} before it gives another state than when it was written; "
            "run the version of Psyche that wrote it, or restore a backup"
        )
    op_id = get_op_id(event)
    return [] if op_id is None else [op_id]
