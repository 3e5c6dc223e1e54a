"""The record, followed independently of its backend: each change is replayed as it reaches the journal or the chain.

A shadow shares only the core with the backend, so it sees what any reader of the journal or the chain would find (I8),
at every event.
"""

from collections.abc import Callable

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.rules.apply import apply
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import Coordinator
from psyche.localchain.blocks import ChainBlock
from psyche.server.journal.changes import Change, decode_change
from psyche.server.journal.journal import HASH_BYTES, Record, decode_snapshot, scan_segment
from psyche.wire.access import Allow, Disallow
from psyche.wire.crypto import blake3_hash

SNAPSHOT = "snapshot-"  # how the names of its files begin
CHECK_EVERY_BLOCKS = 16
CHECK_EVERY_RECORDS = 64  # a wrong state stays wrong, so not every record needs the check
OnRecord = Callable[[Change], None]


class Shadow:
    """Follows the record of a run.

    `on_record` is called after each record, when `state` is that of the record; `complaints` lists where the
    backend contradicts itself.
    """

    def __init__(self, on_record: OnRecord) -> None:
        self.state = Coordinator()
        self.seq = -1  # of the last record; -1: no run yet
        self.now = 0
        self.complaints: list[str] = []
        self._on_record = on_record
        self._hashes: set[bytes] = set()  # of every state that clients may be shown
        self._reports: set[tuple[int, int, int]] = set()

    @property
    def exists(self) -> bool:
        return self.seq >= 0

    def has_state(self, raw: bytes) -> bool:
        """Whether this state is, or was, the newest on record: clients may be shown only such states (K1)."""
        return blake3_hash(raw)[:HASH_BYTES] in self._hashes

    def has_report(self, epoch: int, height: int, member: int) -> bool:
        return (epoch, height, member) in self._reports

    def _begin(self, raw: bytes, seq: int, now: int) -> None:
        self.state, self.seq, self.now = decode_state(raw), seq, now
        self._hashes.add(blake3_hash(raw)[:HASH_BYTES])

    def _take(self, change: Change, now: int, slot: int) -> None:
        message = change.message
        assert not isinstance(message, Allow | Disallow), "no world has an allow list"
        apply(self.state, now, slot, change.sender, message)
        self.seq, self.now = self.seq + 1, now
        if isinstance(message, WitnessMessage):
            self._reports.add((message.epoch, message.height, message.member))

    def _tell(self, change: Change) -> None:
        self._on_record(change)


class JournalShadow(Shadow):
    """Follows the journal in a server's files."""

    def take_append(self, name: str, data: bytes, is_torn: bool) -> None:
        """Replay the records that reached the disk; of a torn write, those before the tear."""
        scan = scan_segment(data, self.seq + 1)
        if scan.behind or (scan.is_torn and not is_torn):
            self.complaints.append(f"{name}: what was appended after record {self.seq} are no whole records")
        for record in scan.records:
            self._take_record(record)

    def _take_record(self, record: Record) -> None:
        change = decode_change(record.kind, record.body)
        self._take(change, record.now, record.now)  # on TCP the slot number is the clock (E1)
        self._hashes.add(record.state_hash)
        if record.seq % CHECK_EVERY_RECORDS == 0:
            self.check_hash(record)
        self._tell(change)

    def check_hash(self, record: Record) -> None:
        """I8: the replayed record gives the state that the server had."""
        if blake3_hash(encode_state(self.state))[:HASH_BYTES] != record.state_hash:
            self.complaints.append(f"record {record.seq} gives another state than the server had")

    def take_replace(self, name: str, data: bytes) -> None:
        """A snapshot has reached the disk; I10: it is the state of its record. Other files are none of its business."""
        if not name.startswith(SNAPSHOT):
            return
        seq = int(name.removeprefix(SNAPSHOT).removesuffix(".bin"))
        snapshot = decode_snapshot(data, seq)
        if snapshot is None:
            self.complaints.append(f"{name}: cannot be read")
        elif not self.exists:
            self._begin(snapshot.raw, snapshot.seq, snapshot.now)
        elif snapshot.seq == self.seq and encode_state(self.state) != snapshot.raw:
            self.complaints.append(f"{name}: is not the state after its record")
        elif snapshot.seq != self.seq:
            self.complaints.append(f"{name}: is of record {snapshot.seq}, the disk has {self.seq}")


class ChainShadow(Shadow):
    """Follows a chain, block by block, from the account of the run as it was created."""

    def __init__(self, on_record: OnRecord, raw: bytes, now: int) -> None:
        super().__init__(on_record)
        self._begin(raw, 0, now)
        self._slots: dict[bytes, int] = {}  # of the last transactions that took effect, by signature

    def take_block(self, block: ChainBlock) -> None:
        """Replay what took effect in a block."""
        for effect in block.effects:
            slot = self._slots.setdefault(effect.signature, effect.slot)
            if slot != effect.slot:
                self.complaints.append(f"slot {effect.slot}: a transaction takes effect again, after slot {slot}")
            change = Change(effect.message, effect.sender)
            self._take(change, effect.now, effect.slot)
            self._tell(change)
        if block.has_changed:
            self._hashes.add(blake3_hash(block.raw)[:HASH_BYTES])
            if block.height % CHECK_EVERY_BLOCKS == 0:
                self.check_block(block)

    def check_block(self, block: ChainBlock) -> None:
        """I8: the replayed messages give the account that the chain has."""
        if encode_state(self.state) != block.raw:
            self.complaints.append(f"slot {block.slot}: the messages give another account than the chain has")
