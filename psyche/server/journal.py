"""The journal (K1): what happened to the run, on disk before anybody is told.

A record is {len u32, crc32 u32, seq u64, now u64, kind u8, body, first 8 bytes of BLAKE3(state
after)}, little-endian; `len` counts what follows the crc, which covers the same bytes. A folder
holds snapshots and segments: `snapshot-S` is the state after record S, the segment `journal-(S+1)`
continues from there. Two snapshots are kept, and the segments since the older one.

The disk stands behind a port, so that a simulator can tear writes and lose what was not synced.
"""

import struct
import zlib
from dataclasses import dataclass, field
from typing import Final, Protocol

from psyche.core.limits import STATE_BYTES
from psyche.errors import BackendError
from psyche.server.events import Event, encode_event, get_kind
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
_SNAPSHOT: Final = struct.Struct("<8sIQQH")  # magic, version, seq, now, op ids
_SNAPSHOT_VERSION: Final = 1
_SEARCH_AHEAD: Final = 64  # records after a broken one that are looked for, to tell a torn tail from a broken middle


class JournalError(BackendError):
    """The journal cannot be read or written; the message says where, and what to do."""


class JournalDisk(Protocol):
    """The files of one folder. Every call blocks until the disk has the data, or raises OSError."""

    def names(self) -> list[str]:
        """The files there are."""
        ...

    def read(self, name: str) -> bytes:
        """A file's whole content."""
        ...

    def append(self, name: str, data: bytes) -> None:
        """Add to a file's end, making the file where there is none; synced when it returns."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Write a whole file: afterwards, and after a crash, it is the old or the new one."""
        ...

    def truncate(self, name: str, size_bytes: int) -> None:
        """Cut a file; synced when it returns."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file."""
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the journal."""

    seq: int
    now: int
    kind: int
    body: bytes
    state_hash: bytes  # 8 bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after record `seq`, and the owner's commands that had been carried out."""

    seq: int
    now: int
    op_ids: tuple[bytes, ...]
    raw: bytes


@dataclass(frozen=True, slots=True)
class Scan:
    """What a segment's bytes hold: good records, where they end, and whether what follows is a broken middle."""

    records: tuple[Record, ...]
    good_bytes: int
    is_torn: bool = False
    is_broken: bool = False


@dataclass(slots=True)
class Write:
    """Bytes for one file: added to its end, or in its place."""

    name: str
    data: bytearray
    replaces: bool


@dataclass(slots=True)
class Batch:
    """Work for the disk, in order; after it every record up to `seq` is durable."""

    seq: int
    writes: list[Write] = field(default_factory=list)
    removals: list[str] = field(default_factory=list)


def get_segment_name(first_seq: int) -> str:
    """The file whose first record is `first_seq`."""
    return f"journal-{first_seq:016d}.bin"


def get_snapshot_name(seq: int) -> str:
    """The file of the state after record `seq`."""
    return f"snapshot-{seq:016d}.bin"


def get_numbers(names: list[str], prefix: str) -> list[int]:
    """The numbers of the files of one sort, ascending; other files are ignored."""
    stems = [name.removeprefix(prefix).removesuffix(".bin") for name in names if name.startswith(prefix)]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def encode_record(record: Record) -> bytes:
    """A record's bytes."""
    payload = _HEAD.pack(record.seq, record.now, record.kind) + record.body + record.state_hash
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _read_record(data: bytes, offset: int, seq: int) -> tuple[Record, int] | None:
    """The record `seq` at `offset` and where it ends, or None where there is no whole good one."""
    if offset + _FRAME.size > len(data):
        return None
    length, crc = _FRAME.unpack_from(data, offset)
    start, end = offset + _FRAME.size, offset + _FRAME.size + length
    if not _MIN_BYTES <= length <= MAX_RECORD_BYTES or end > len(data):
        return None
    payload = data[start:end]
    found, now, kind = _HEAD.unpack_from(payload)
    if zlib.crc32(payload) != crc or found != seq:
        return None
    return Record(found, now, kind, payload[_HEAD.size : -HASH_BYTES], payload[-HASH_BYTES:]), end


def _has_later_record(data: bytes, offset: int, seq: int) -> bool:
    """Whether a good record after `seq` lies beyond `offset`: then what is broken there is no torn tail."""
    for later in range(seq + 1, seq + 1 + _SEARCH_AHEAD):
        pattern = struct.pack("<Q", later)
        at = data.find(pattern, offset + _FRAME.size)
        while at >= 0:
            if _read_record(data, at - _FRAME.size, later) is not None:
                return True
            at = data.find(pattern, at + 1)
    return False


def scan_segment(data: bytes, first_seq: int) -> Scan:
    """Read a segment from its start, as far as its records are whole and good."""
    records: list[Record] = []
    offset, seq = 0, first_seq
    while offset < len(data):
        found = _read_record(data, offset, seq)
        if found is None:
            broken = _has_later_record(data, offset, seq)
            return Scan(tuple(records), offset, is_torn=not broken, is_broken=broken)
        record, offset = found
        records.append(record)
        seq += 1
    return Scan(tuple(records), offset)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """A snapshot's bytes: head, op ids, state, and the BLAKE3 of all that."""
    head = _SNAPSHOT.pack(_SNAPSHOT_MAGIC, _SNAPSHOT_VERSION, snapshot.seq, snapshot.now, len(snapshot.op_ids))
    content = head + b"".join(snapshot.op_ids) + snapshot.raw
    return content + blake3_hash(content)


def decode_snapshot(data: bytes, seq: int) -> Snapshot | None:
    """The snapshot of record `seq`, or None where the bytes are not a whole good one."""
    if len(data) < _SNAPSHOT.size + STATE_BYTES + 32 or blake3_hash(data[:-32]) != data[-32:]:
        return None
    magic, version, found, now, op_count = _SNAPSHOT.unpack_from(data)
    size = _SNAPSHOT.size + op_count * OP_ID_BYTES + STATE_BYTES + 32
    if magic != _SNAPSHOT_MAGIC or version != _SNAPSHOT_VERSION or found != seq or len(data) != size:
        return None
    ops = data[_SNAPSHOT.size : _SNAPSHOT.size + op_count * OP_ID_BYTES]
    op_ids = tuple(ops[i : i + OP_ID_BYTES] for i in range(0, len(ops), OP_ID_BYTES))
    return Snapshot(found, now, op_ids, data[-32 - STATE_BYTES : -32])


class Journal:
    """Appends records; nothing is on disk until `flush`, or `take`, `write` and `commit`, have run.

    `append` and `snapshot` only collect. `take` hands the collected work over, `write` does it (it
    blocks, so call it in a thread, one batch at a time and in order), `commit` says that it is done.
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
        """Whether something waits to be written."""
        return self._batch is not None

    @property
    def wants_snapshot(self) -> bool:
        """Whether the segment has grown so long that a snapshot is due."""
        return self._segment_bytes >= SNAPSHOT_EVERY_BYTES

    def append(self, now: int, event: Event, state_hash: bytes) -> int:
        """Add the record of an event that made the state of `state_hash` (BLAKE3); returns its number."""
        self.last_seq += 1
        record = Record(self.last_seq, now, get_kind(event), encode_event(event), state_hash[:HASH_BYTES])
        data = encode_record(record)
        assert len(data) <= MAX_RECORD_BYTES, f"journal: a record of {len(data)} bytes could not be read again"
        self._add(self._segment, data)
        self._segment_bytes += len(data)
        return self.last_seq

    def snapshot(self, now: int, raw: bytes, op_ids: tuple[bytes, ...]) -> None:
        """Keep the state after the last record; older ones than the last two go, with their segments."""
        snapshot = Snapshot(self.last_seq, now, op_ids[-KEPT_OP_IDS:], raw)
        self._add(get_snapshot_name(self.last_seq), encode_snapshot(snapshot), replaces=True)
        self._segment = get_segment_name(self.last_seq + 1)
        self._segment_bytes = 0
        self._drop_old()

    def take(self) -> Batch | None:
        """The work collected so far, to be written; None if there is none."""
        batch, self._batch = self._batch, None
        return batch

    def write(self, batch: Batch) -> None:
        """Do a batch's work; blocks until the disk has it.

        Raises:
            JournalError: the disk failed; nothing after the last committed record may be told to anybody.
        """
        if self._has_failed:  # a later batch after a lost one would leave a gap
            raise JournalError("journal: the disk failed before; nothing more is written")
        try:
            for write in batch.writes:
                put = self._disk.replace if write.replaces else self._disk.append
                put(write.name, bytes(write.data))
            for name in batch.removals:
                self._disk.remove(name)
        except OSError as error:
            self._has_failed = True
            raise JournalError(
                f"journal: the disk failed ({error}); the server stops rather than promise what is not on disk. "
                "Check the disk (space, health), then start the server again: it continues from its journal"
            ) from error

    def commit(self, batch: Batch) -> None:
        """Note that a batch is on disk."""
        self.durable_seq = batch.seq

    def flush(self) -> None:
        """Write and commit whatever waits (for drivers without threads)."""
        batch = self.take()
        if batch is not None:
            self.write(batch)
            self.commit(batch)

    def _add(self, name: str, data: bytes, *, replaces: bool = False) -> None:
        if name not in self._names:
            self._names.append(name)
        batch = self._batch = self._batch or Batch(self.last_seq)
        batch.seq = self.last_seq
        if batch.writes and not replaces and batch.writes[-1].name == name:
            batch.writes[-1].data += data  # one write and one sync for the group
        else:
            batch.writes.append(Write(name, bytearray(data), replaces))

    def _drop_old(self) -> None:
        snapshots = get_numbers(self._names, "snapshot-")
        if len(snapshots) <= KEPT_SNAPSHOTS or self._batch is None:
            return
        oldest_kept = snapshots[-KEPT_SNAPSHOTS]
        old = [get_snapshot_name(seq) for seq in snapshots[:-KEPT_SNAPSHOTS]]
        old += [get_segment_name(seq) for seq in get_numbers(self._names, "journal-") if seq <= oldest_kept]
        self._batch.removals += old
        self._names = [name for name in self._names if name not in old]
