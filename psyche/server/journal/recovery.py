"""Recovery (K2): loads the newest good snapshot, replays the journal on it, and compares hashes.

A torn tail is the rest of an unacknowledged write that a crash interrupted: it is cut. Any other mismatch is an
error that says where it is, so that a wrong state is never used. Records behind a hole are given up only if the
owner says so (`loss`).
"""

from dataclasses import dataclass, field
from typing import Final

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.state import Coordinator
from psyche.errors import WireError
from psyche.server.access import AccessChanges, decode_changes
from psyche.server.journal.changes import Change, decode_change
from psyche.server.journal.journal import (
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
from psyche.server.journal.loss import Loss, find_later_records, set_aside
from psyche.wire.access import Allow, Disallow
from psyche.wire.crypto import blake3_hash

# Encoding a state for its hash costs more than the change itself. Replay is deterministic, so a wrong state
# stays wrong: checking some states, and always the last, finds every difference.
CHECK_EVERY_RECORDS: Final = 16
Newest = tuple[str, int]  # name and good bytes of the segment to which the journal keeps appending


@dataclass(slots=True)
class OpenRun:
    """A run with its journal; `now` is the time of the last record, `notes` are messages for the user.

    `is_new`: it was created, and nothing recovered.
    """

    state: Coordinator
    journal: Journal
    now: int
    op_ids: tuple[bytes, ...] = ()
    records: int = 0
    access: AccessChanges = field(default_factory=AccessChanges)
    notes: tuple[str, ...] = ()
    is_new: bool = False


def create_journal(disk: JournalDisk, now: int, raw: bytes) -> Journal:
    """Create the journal of a new run: its first snapshot is on disk when this returns."""
    journal = Journal(disk, 0, get_segment_name(1), 0)
    journal.snapshot(now, raw, ())
    journal.flush()
    return journal


def recover(disk: JournalDisk, *, accept_loss: bool = False) -> OpenRun | None:
    """Recover the run on the disk; None if there is none.

    The caller then submits a `Recover` message, which moves the run's deadlines by the downtime. `accept_loss` gives
    up acknowledged records behind a broken place, sets the files aside, and reports that in the first note.

    Raises:
        JournalError: records other than the tail are broken or missing, or cannot be replayed.
    """
    notes: list[str] = []
    snapshot = _load_snapshot(disk, notes)
    if snapshot is None:
        return None
    records, newest, loss = _load_records(disk, snapshot.seq, notes)
    if loss is not None and not accept_loss:
        raise JournalError(loss.refuse())
    state, access = decode_state(snapshot.raw), decode_changes(snapshot.access)
    op_ids = [*snapshot.op_ids]
    for index, record in enumerate(records):
        is_checked = index % CHECK_EVERY_RECORDS == 0 or index == len(records) - 1
        change = _replay(state, record, is_checked=is_checked)
        if isinstance(change.message, Allow | Disallow):
            access.change(change.message)
        op_ids += [change.op_id] if change.op_id else []
    if loss is not None:
        notes.insert(0, f"{loss.describe(state)}. Kept aside: {', '.join(set_aside(disk, loss))}")
    last = records[-1] if records else None
    journal = Journal(disk, last.seq if last else snapshot.seq, *newest)
    now = last.now if last else snapshot.now
    return OpenRun(state, journal, now, tuple(op_ids[-KEPT_OP_IDS:]), len(records), access, tuple(notes))


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


def _load_records(disk: JournalDisk, after_seq: int, notes: list[str]) -> tuple[list[Record], Newest, Loss | None]:
    """Load the records after `after_seq` up to the first lost one, the newest segment, and the loss if there is one."""
    starts = [seq for seq in get_numbers(disk.names(), "journal-") if seq > after_seq]
    records: list[Record] = []
    newest = (get_segment_name(after_seq + 1), 0)
    for first in starts:
        expected = after_seq + len(records) + 1
        if first != expected:
            return records, newest, Loss(first, 0, expected, find_later_records(disk, first - 1))
        name = get_segment_name(first)
        data = disk.read(name)
        scan = scan_segment(data, first)
        records += scan.records
        newest = (name, scan.good_bytes)
        broken = first + len(scan.records)
        if scan.behind or (scan.is_torn and first != starts[-1]):
            behind = scan.behind + find_later_records(disk, first)
            return records, newest, Loss(first, scan.good_bytes, broken, behind)
        if scan.is_torn:
            notes.append(f"{name}: a torn tail of {len(data) - scan.good_bytes} bytes was cut at record {broken}")
            disk.truncate(name, scan.good_bytes)
    return records, newest, None


def _replay(state: Coordinator, record: Record, *, is_checked: bool) -> Change:
    where = f"journal: record {record.seq}"
    try:
        change = decode_change(record.kind, record.body)
        change.process(state, record.now)
    except (CoordinatorError, WireError) as error:
        raise JournalError(
            f"{where} cannot be applied again: {error}; run the version of Psyche that wrote it, or restore a backup"
        ) from error
    if is_checked and blake3_hash(encode_state(state))[:HASH_BYTES] != record.state_hash:
        raise JournalError(
            f"{where} or one of the {CHECK_EVERY_RECORDS - 1} before it gives a different state than "
            "when it was written; run the version of Psyche that wrote it, or restore a backup"
        )
    return change
