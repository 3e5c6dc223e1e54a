"""The address book: address records of the run's nodes. Never journaled; clients resend theirs on reconnect."""

from collections.abc import Collection
from typing import Final

from psyche.core.state.limits import MAX_CLIENTS
from psyche.wire.address_record import AddressRecord
from psyche.wire.backend import BookChange

MAX_REMOVED: Final = MAX_CLIENTS  # removals remembered; a subscriber that is further behind gets the whole book


class AddressBook:
    """At most one record per key, the newest; keys outside `allowed` (the registry) are never kept."""

    def __init__(self) -> None:
        self.revision = 0
        self._records: dict[bytes, tuple[int, AddressRecord]] = {}
        self._removed: dict[bytes, int] = {}
        self._forgotten = 0  # removals up to this revision are forgotten

    def put(self, record: AddressRecord, now: int) -> bool:
        """Keep a record whose signature was checked; return false if it has expired or is known already."""
        known = self._records.get(record.p2p)
        if record.expires_unix <= now or (known is not None and known[1] == record):
            return False
        if known is None and len(self._records) >= MAX_CLIENTS:
            return False  # the registry has no more slots, so some records are stale
        self.revision += 1
        self._records[record.p2p] = (self.revision, record)
        self._removed.pop(record.p2p, None)
        return True

    def expire(self, now: int, allowed: Collection[bytes]) -> None:
        for key, (_, record) in list(self._records.items()):
            if record.expires_unix <= now or key not in allowed:
                self.revision += 1
                del self._records[key]
                self._removed[key] = self.revision
        while len(self._removed) > MAX_REMOVED:
            oldest = next(iter(self._removed))
            self._forgotten = self._removed.pop(oldest)

    def records(self) -> tuple[AddressRecord, ...]:
        return tuple(record for _, record in sorted(self._records.values(), key=lambda item: item[0]))

    def get_change(self, since: int) -> BookChange:
        """Return the changes after revision `since` (-1: the whole book)."""
        if since < self._forgotten or since < 0:
            return BookChange(True, self.records(), ())
        records = tuple(record for revision, record in self._records.values() if revision > since)
        removed = tuple(key for key, revision in self._removed.items() if revision > since)
        return BookChange(False, records, removed)
