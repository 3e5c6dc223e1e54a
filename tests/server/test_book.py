"""The address book: newest record per key, expiry, and updates that bring every reader to the same book."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from psyche.core.state.limits import MAX_CLIENTS
from psyche.server.book import MAX_REMOVED, AddressBook
from psyche.testing.builders import build_hash
from psyche.wire.address_record import AddressRecord

KEYS = [build_hash("key", number) for number in range(5)]


def build_record(key: bytes, port: int, expires_unix: int = 1_000) -> AddressRecord:
    return AddressRecord(key, (f"/ip4/10.0.0.1/tcp/{port}",), expires_unix, bytes(64))


def test_a_record_sent_again_changes_nothing_and_is_not_pushed() -> None:
    book = AddressBook()
    book.put(build_record(KEYS[0], 1), now=0)
    revision = book.revision
    assert not book.put(build_record(KEYS[0], 1), now=0)
    assert book.revision == revision
    update = book.get_change(revision)
    assert (update.whole, update.records, update.removed) == (False, (), ())


def test_expired_records_and_those_of_freed_slots_go() -> None:
    book = AddressBook()
    book.put(build_record(KEYS[0], 1, expires_unix=50), now=0)
    book.put(build_record(KEYS[1], 1), now=0)
    book.put(build_record(KEYS[2], 1), now=0)
    since = book.revision
    book.expire(50, {KEYS[0], KEYS[1]})
    assert [r.p2p for r in book.records()] == [KEYS[1]]
    update = book.get_change(since)
    assert set(update.removed) == {KEYS[0], KEYS[2]}
    assert not book.put(build_record(KEYS[0], 1, expires_unix=50), now=50), "it is over already"


def test_the_book_never_holds_more_records_than_a_run_has_slots() -> None:
    book = AddressBook()
    for number in range(MAX_CLIENTS + 50):
        book.put(build_record(build_hash("many", number), 1), now=0)
    assert len(book.records()) == MAX_CLIENTS


def test_who_lags_behind_the_remembered_removals_gets_the_whole_book() -> None:
    book = AddressBook()
    for number in range(MAX_REMOVED + 10):
        key = build_hash("many", number)
        book.put(build_record(key, 1), now=0)
        book.expire(0, set())
    book.put(build_record(KEYS[0], 1), now=0)
    update = book.get_change(1)
    assert update.whole
    assert update.records == book.records()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.integers(1, 3)),
        st.tuples(st.just("expire"), st.sets(st.sampled_from(KEYS)), st.integers(0, 3)),
        st.tuples(st.just("read"), st.integers(0, 2), st.none()),
    ),
    max_size=40,
)


@given(operations)
def test_readers_that_get_updates_at_any_time_end_with_the_same_book(steps: list[tuple]) -> None:
    book, now = AddressBook(), 0
    readers: list[tuple[int, dict[bytes, AddressRecord]]] = [(-1, {})] * 3

    def read(number: int) -> None:
        revision, known = readers[number]
        update = book.get_change(revision)
        fresh = {} if update.whole else {k: r for k, r in known.items() if k not in update.removed}
        readers[number] = (book.revision, fresh | {r.p2p: r for r in update.records})

    for kind, what, number in steps:
        if kind == "put":
            book.put(replace(build_record(what, number), expires_unix=now + number), now)
        elif kind == "expire":
            now += number
            book.expire(now, what)
        else:
            read(what)
    for number in range(3):
        read(number)
        assert readers[number][1] == {r.p2p: r for r in book.records()}
