"""The address table: addresses from the backend's book and from peers, and bootstrap addresses."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from psyche.errors import WireError
from psyche.wire.address_record import AddressRecord, check_address_record
from psyche.wire.msgpack import UNREADABLE
from psyche.wire.peer_address import PeerAddress

_log: Final = logging.getLogger("psyche.network")
RECORD_VALID_S: Final = 24 * 3_600
ITEM_BYTES: Final = 1_280  # a record as an item of a reply: 8 addresses of 128 bytes, key, signature, lengths
MAX_RECORDS: Final = 32  # of one answer (N1)
CLOCK_SLACK_S: Final = 3_600  # how far a peer's clock may be ahead


@dataclass(slots=True)
class AddressTable:
    own_key: bytes
    get_unix: Callable[[], int]
    has_book: bool = False  # the backend has given one
    bootstrap: dict[bytes, tuple[str, ...]] = field(default_factory=dict[bytes, tuple[str, ...]])
    _book: dict[bytes, AddressRecord] = field(default_factory=dict[bytes, AddressRecord])
    _learned: dict[bytes, AddressRecord] = field(default_factory=dict[bytes, AddressRecord])  # of hello and of others

    def set_book(self, records: Sequence[AddressRecord], connected: Collection[bytes]) -> frozenset[bytes]:
        """Take over signed, newer records; forget keys not in the book unless connected. Return the changed keys."""
        self.has_book |= bool(records)
        new: set[bytes] = set()
        for record in records:
            old = self._book.get(record.p2p)
            if old is record or record.p2p == self.own_key or not _is_newer(record, old):
                continue
            try:
                check_address_record(record)
            except WireError as error:
                _log.info("address record of %s is ignored: %s", record.p2p.hex()[:16], error)
                continue
            self._book[record.p2p] = record
            new.add(record.p2p)
        for key in set(self._book) - {r.p2p for r in records} - set(connected):
            del self._book[key]
        return frozenset(new)

    def set_bootstrap(self, addresses: Sequence[PeerAddress]) -> frozenset[bytes]:
        """Replace the bootstrap addresses, which need no record; return the keys that have new ones."""
        found: dict[bytes, tuple[str, ...]] = {}
        for peer in addresses:
            if peer.key != self.own_key:
                found[peer.key] = (*found.get(peer.key, ()), peer.address)
        new = frozenset(k for k, a in found.items() if self.bootstrap.get(k) != a)
        self.bootstrap = found
        return new

    def learn(self, record: AddressRecord) -> bool:
        """Keep a record, whoever sent it, if it is unexpired and the newest of its key (N2); return whether it was."""
        now = self.get_unix()
        if record.p2p == self.own_key or not record.addresses:
            return False
        if not now < record.expires_unix <= now + RECORD_VALID_S + CLOCK_SLACK_S:
            return False
        known = self.get_record(record.p2p)
        if known is not None and known.expires_unix >= record.expires_unix:
            return False
        check_address_record(record)
        self._learned[record.p2p] = record
        return True

    def forget(self, keep: Collection[bytes]) -> None:
        self._learned = {k: r for k, r in self._learned.items() if k in keep}

    def get_record(self, key: bytes) -> AddressRecord | None:
        book, learned = self._book.get(key), self._learned.get(key)
        if book is None or learned is None:
            return book or learned
        return learned if learned.expires_unix > book.expires_unix else book

    def is_in_book(self, key: bytes) -> bool:
        return key in self._book

    def is_old(self, key: bytes) -> bool:
        """Whether a key has no record, or one past half of its lifetime."""
        record = self.get_record(key)
        return record is None or record.expires_unix < self.get_unix() + RECORD_VALID_S // 2

    def get_keys(self) -> frozenset[bytes]:
        return frozenset(self._book.keys() | self._learned.keys() | self.bootstrap.keys())

    def get_addresses(self, key: bytes) -> tuple[str, ...]:
        """Return the addresses to dial: bootstrap addresses first, then those of the newest unexpired record (N3)."""
        record = self.get_record(key)
        recorded = record.addresses if record is not None and record.expires_unix >= self.get_unix() else ()
        named = self.bootstrap.get(key, ())
        return tuple(dict.fromkeys((*named, *recorded))) if named else recorded

    def get_unexpired(self, keys: Collection[bytes]) -> dict[bytes, AddressRecord]:
        """Return the newest records of other keys among these that name an address and have not expired."""
        now, found = self.get_unix(), {key: self.get_record(key) for key in keys if key != self.own_key}
        return {key: one for key, one in found.items() if one is not None and one.addresses and one.expires_unix > now}

    def get_records(self, first: bytes, allowed: Collection[bytes], own: AddressRecord) -> list[AddressRecord]:
        """Return up to 32 unexpired records, this node's included, by key from `first` on, wrapping round (N1)."""
        found = self.get_unexpired(allowed) | {own.p2p: own}
        keys = sorted(found, key=lambda key: (key < first, key))
        return [found[key] for key in keys[:MAX_RECORDS]]


def _is_newer(record: AddressRecord, known: AddressRecord | None) -> bool:
    """Whether a record replaces the one kept; a record from the book may also replace one of the same second."""
    return known is None or (known.expires_unix <= record.expires_unix and known != record)


_decoder: Final = msgspec.msgpack.Decoder(AddressRecord)


def encode_address_record(record: AddressRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode_address_record(raw: bytes) -> AddressRecord:
    """Decode one item; the caller checks the signature."""
    if len(raw) > ITEM_BYTES:
        raise WireError(f"address record: {len(raw)} bytes, at most {ITEM_BYTES}")
    try:
        return _decoder.decode(raw)
    except UNREADABLE as error:
        raise WireError(f"address record: {error}") from error
