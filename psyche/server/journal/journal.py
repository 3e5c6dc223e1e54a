"""The journal (K1): every change of the run is on disk before anybody sees it.

A record is {len u32, crc32 u32, seq u64, now u64, kind u8, body, first 8 bytes of BLAKE3(state
after)}, little-endian; `len` and the crc cover the bytes after the crc. A folder
holds snapshots and segments: `snapshot-S` is the state after record S, the segment `journal-(S+1)`
continues from there. Two snapshots are kept, and the segments since the older one.

The disk is a port, so that a simulator can tear writes and lose data that was not synced.
"""

import errno
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from psyche.core.state.limits import STATE_BYTES
from psyche.errors import BackendError
from psyche.server.journal.changes import Change, encode_change
from psyche.wire.backend import OP_ID_BYTES
from psyche.wire.crypto import blake3_hash

SNAPSHOT_EVERY_BYTES: Final = 4 << 20
KEPT_SNAPSHOTS: Final = 2
KEPT_OP_IDS: Final = 256
MAX_RECORD_BYTES: Final = 4_096
HASH_BYTES: Final = 8
_FRAME: Final = struct.Struct("<II")  # len, crc32
_HEAD: Final = struct.Struct("<QQB")  # seq, now, kind
_MIN_BYTES: Final = _HEAD.size + HASH_BYTES
_SNAPSHOT_MAGIC: Final = b"PSYJSNAP"
_SNAPSHOT_MARK: Final = struct.Struct("<8sI")  # magic, version: the head of snapshots of every version
_SNAPSHOT: Final = struct.Struct("<8sIQQH")  # magic, version, seq, now, op ids
_SNAPSHOT_HASH_BYTES: Final = 32
_SNAPSHOT_VERSION: Final = 6  # of snapshots and of the records after them
_ACCESS_SIZE: Final = struct.Struct("<I")  # bytes of the allow list, after the op ids
_LENGTH_PATTERN: Final = (
    rb"(?:[\x19-\xff]\x00|[\x00-\xff][\x01-\x0f]|\x00\x10)\x00\x00"  # _MIN_BYTES to MAX_RECORD_BYTES
)
_LOW_BYTES: Final = 3  # of a record's number that vary; the others are nearly constant within a segment


class JournalError(BackendError):
    """The journal cannot be read or written; the message says where and what to do."""


class JournalDisk(Protocol):
    """The files of one folder. Every call blocks until the data is on disk, or raises OSError."""

    def names(self) -> list[str]:
        """The files' names, in order."""
        ...

    def read(self, name: str) -> bytes: ...

    def append(self, name: str, data: bytes) -> None:
        """Append to a file, which is created if it is missing."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Replace a whole file atomically: after a crash it has either the old or the new content."""
        ...

    def truncate(self, name: str, size_bytes: int) -> None: ...

    def remove(self, name: str) -> None:
        """Delete a file; a missing one is no error."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Record:
    seq: int
    now: int
    kind: int
    body: bytes
    state_hash: bytes  # 8 bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after record `seq`, the op ids of the owner's commands carried out, and the allow list (`access`)."""

    seq: int
    now: int
    op_ids: tuple[bytes, ...]
    raw: bytes
    access: bytes = b""


@dataclass(frozen=True, slots=True)
class Scan:
    """The content of a segment: its good records, where they end, and the complete records after a broken place.

    A torn tail has no complete records after it: only then may it be cut (K1).
    """

    records: tuple[Record, ...]
    good_bytes: int
    is_torn: bool = False
    behind: tuple[Record, ...] = ()


@dataclass(slots=True)
class Batch:
    """Writes to be done in order; afterwards every record up to `seq` is durable."""

    seq: int
    writes: list[tuple[str, bytearray, bool]] = field(default_factory=list)  # name, data, whether it replaces the file
    removals: list[str] = field(default_factory=list)


def get_segment_name(first_seq: int) -> str:
    return f"journal-{first_seq:016d}.bin"


def get_snapshot_name(seq: int) -> str:
    return f"snapshot-{seq:016d}.bin"


def get_numbers(names: list[str], prefix: str) -> list[int]:
    """Return the numbers of the files of one kind, ascending; other files are ignored."""
    stems = [name.removeprefix(prefix).removesuffix(".bin") for name in names if name.startswith(prefix)]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def encode_record(record: Record) -> bytes:
    payload = _HEAD.pack(record.seq, record.now, record.kind) + record.body + record.state_hash
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _read_record(data: bytes, offset: int, numbers: range) -> tuple[Record, int] | None:
    if offset < 0 or offset + _FRAME.size > len(data):
        return None
    length, crc = _FRAME.unpack_from(data, offset)
    start, end = offset + _FRAME.size, offset + _FRAME.size + length
    if not _MIN_BYTES <= length <= MAX_RECORD_BYTES or end > len(data):
        return None
    found, now, kind = _HEAD.unpack_from(data, start)
    if found not in numbers or zlib.crc32(memoryview(data)[start:end]) != crc:
        return None
    return Record(found, now, kind, data[start + _HEAD.size : end - HASH_BYTES], data[end - HASH_BYTES : end]), end


def _find_behind(data: bytes, offset: int, seq: int) -> Iterator[Record]:
    """Find the complete records after `offset`, where the record `seq` is broken (K1).

    One search skips bytes that cannot begin a record, judging by length and number, so that a hole of any size costs
    no more than reading it.
    """
    last = seq + (len(data) - offset) // (_FRAME.size + _MIN_BYTES)
    highs = range(seq >> 8 * _LOW_BYTES, (last >> 8 * _LOW_BYTES) + 1)
    high = b"|".join(re.escape(number.to_bytes(8 - _LOW_BYTES, "little")) for number in highs)
    head = re.compile(_LENGTH_PATTERN + b".{%d}(?:%s)" % (4 + _LOW_BYTES, high), re.DOTALL)
    at = offset + 1
    while match := head.search(data, at):
        found = _read_record(data, match.start(), range(seq, last + 1))
        if found is None:
            at = match.start() + 1
        else:
            record, at = found
            seq = record.seq + 1
            yield record


def scan_segment(data: bytes, first_seq: int) -> Scan:
    """Decode a segment from its start up to the first invalid record."""
    records: list[Record] = []
    offset, seq = 0, first_seq
    while offset < len(data):
        found = _read_record(data, offset, range(seq, seq + 1))
        if found is None:
            behind = tuple(_find_behind(data, offset, seq))
            return Scan(tuple(records), offset, is_torn=not behind, behind=behind)
        record, offset = found
        records.append(record)
        seq += 1
    return Scan(tuple(records), offset)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode a snapshot: head, op ids, allow list, state, and the BLAKE3 hash of all of these."""
    head = _SNAPSHOT.pack(_SNAPSHOT_MAGIC, _SNAPSHOT_VERSION, snapshot.seq, snapshot.now, len(snapshot.op_ids))
    access = _ACCESS_SIZE.pack(len(snapshot.access)) + snapshot.access
    content = head + b"".join(snapshot.op_ids) + access + snapshot.raw
    return content + blake3_hash(content)


def decode_snapshot(data: bytes, seq: int) -> Snapshot | None:
    """Decode the snapshot after record `seq`; None if the bytes are incomplete or damaged.

    Raises:
        JournalError: the snapshot is intact, but of another version of the journal.
    """
    end = len(data) - _SNAPSHOT_HASH_BYTES
    if end < _SNAPSHOT_MARK.size or blake3_hash(data[:end]) != data[end:]:
        return None
    magic, version = _SNAPSHOT_MARK.unpack_from(data)
    if magic != _SNAPSHOT_MAGIC:
        return None
    if version != _SNAPSHOT_VERSION:  # before the length is checked: another version's state may be shorter
        raise JournalError(
            f"{get_snapshot_name(seq)}: the journal has version {version}, this server reads {_SNAPSHOT_VERSION}; "
            "run the version of Psyche that wrote it, or start a new run in an empty state folder"
        )
    raw_at = end - STATE_BYTES
    if raw_at < _SNAPSHOT.size:
        return None
    _, _, found, now, op_count = _SNAPSHOT.unpack_from(data)
    ops_end = _SNAPSHOT.size + op_count * OP_ID_BYTES
    access_at = ops_end + _ACCESS_SIZE.size
    access = data[access_at:raw_at]
    if found != seq or access_at > raw_at or _ACCESS_SIZE.unpack_from(data, ops_end)[0] != len(access):
        return None
    op_ids = tuple(data[i : i + OP_ID_BYTES] for i in range(_SNAPSHOT.size, ops_end, OP_ID_BYTES))
    return Snapshot(found, now, op_ids, data[raw_at:end], access)


class Journal:
    """Appends records; they are on disk only after `flush`, or after `take`, `write` and `commit`.

    `append` and `snapshot` only collect work. `take` returns the collected work, `write` does it (it blocks, so call
    it in a thread, one batch at a time and in order), `commit` notes that it is done.
    """

    def __init__(self, disk: JournalDisk, last_seq: int, segment: str, segment_bytes: int) -> None:
        self.last_seq = last_seq
        self.durable_seq = last_seq
        self._disk = disk
        self._segment = segment
        self._segment_bytes = segment_bytes
        self._names = disk.names()
        self._batch: Batch | None = None
        self._has_failed = False

    @property
    def has_work(self) -> bool:
        return self._batch is not None

    @property
    def wants_snapshot(self) -> bool:
        return self._segment_bytes >= SNAPSHOT_EVERY_BYTES

    def append(self, now: int, change: Change, state_hash: bytes) -> int:
        """Append the record of a change that led to the state with `state_hash` (BLAKE3); return its number."""
        self.last_seq += 1
        record = Record(self.last_seq, now, change.number, encode_change(change), state_hash[:HASH_BYTES])
        data = encode_record(record)
        assert len(data) <= MAX_RECORD_BYTES, f"journal: a record of {len(data)} bytes could not be read again"
        self._add(self._segment, data)
        self._segment_bytes += len(data)
        return self.last_seq

    def snapshot(self, now: int, raw: bytes, op_ids: tuple[bytes, ...], access: bytes = b"") -> None:
        """Snapshot the state after the last record; keep two snapshots and drop older ones with their segments."""
        snapshot = Snapshot(self.last_seq, now, op_ids[-KEPT_OP_IDS:], raw, access)
        self._add(get_snapshot_name(self.last_seq), encode_snapshot(snapshot), replaces=True)
        self._segment = get_segment_name(self.last_seq + 1)
        self._segment_bytes = 0
        self._drop_old()

    def take(self) -> Batch | None:
        batch, self._batch = self._batch, None
        return batch

    def write(self, batch: Batch) -> None:
        """Write a batch; blocks until it is on disk.

        Raises:
            JournalError: the disk failed; nothing after the last committed record may be shown to anybody.
        """
        if self._has_failed:  # a batch written after a lost one would leave a gap
            raise JournalError("journal: the disk failed before; nothing more is written. Restart the server")
        try:
            for name, data, replaces in batch.writes:
                put = self._disk.replace if replaces else self._disk.append
                put(name, bytes(data))
            for name in batch.removals:
                self._disk.remove(name)
        except OSError as error:
            self._has_failed = True
            what, remedy = f"the disk failed ({error})", "Check the disk (space, health)"
            if error.errno in (errno.EMFILE, errno.ENFILE):
                what, remedy = f"its next file cannot be opened ({error.strerror})", "Allow more open files (ulimit -n)"
            raise JournalError(
                f"journal: {what}; the server stops rather than promise what is not on disk. "
                f"{remedy}, then start the server again: it continues from its journal"
            ) from error

    def commit(self, batch: Batch) -> None:
        self.durable_seq = batch.seq

    def flush(self) -> None:
        """Write and commit all collected work (for drivers without threads)."""
        batch = self.take()
        if batch is not None:
            self.write(batch)
            self.commit(batch)

    def _add(self, name: str, data: bytes, *, replaces: bool = False) -> None:
        if name not in self._names:
            self._names.append(name)
        batch = self._batch = self._batch or Batch(self.last_seq)
        batch.seq = self.last_seq
        if batch.writes and not replaces and batch.writes[-1][0] == name:
            batch.writes[-1][1].extend(data)  # one write and one sync for the group
        else:
            batch.writes.append((name, bytearray(data), replaces))

    def _drop_old(self) -> None:
        snapshots = get_numbers(self._names, "snapshot-")
        if len(snapshots) <= KEPT_SNAPSHOTS or self._batch is None:
            return
        oldest_kept = snapshots[-KEPT_SNAPSHOTS]
        old = [get_snapshot_name(seq) for seq in snapshots[:-KEPT_SNAPSHOTS]]
        old += [get_segment_name(seq) for seq in get_numbers(self._names, "journal-") if seq <= oldest_kept]
        self._batch.removals += old
        self._names = [name for name in self._names if name not in old]
