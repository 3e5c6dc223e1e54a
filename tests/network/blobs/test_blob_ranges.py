"""The range scheduler: everything is fetched, nothing by two at once unless it was taken over."""

from hypothesis import given
from hypothesis import strategies as st

from psyche.network.blobs.ranges import Range, RangeScheduler

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def always(_target: int) -> bool:
    return True


def take_all(scheduler: RangeScheduler, source: bytes, max_chunks: int = 4) -> list[Range]:
    taken: list[Range] = []
    while (item := scheduler.take(source, 0.0, max_chunks, always)) is not None:
        taken.append(item)
    return taken


def test_ranges_cover_every_chunk_once_and_are_no_longer_than_asked() -> None:
    scheduler = RangeScheduler([10, 3])
    scheduler.want(0)
    scheduler.want(1)
    taken = take_all(scheduler, A)
    assert [(r.target, r.first, r.count) for r in taken] == [(0, 0, 4), (0, 4, 4), (0, 8, 2), (1, 0, 3)]


def test_a_dropped_range_comes_back_first_without_what_was_delivered() -> None:
    scheduler = RangeScheduler([8])
    scheduler.want(0)
    first, _ = take_all(scheduler, A)
    scheduler.mark(0, 0)
    scheduler.mark(0, 2)
    scheduler.drop(first)
    assert [(r.first, r.count) for r in take_all(scheduler, B)] == [(1, 1), (3, 1)]


def test_nothing_of_a_blob_is_handed_out_before_its_chunk_list() -> None:
    scheduler = RangeScheduler([5])
    scheduler.want_chunk_list(0)
    (chunk_list,) = take_all(scheduler, A)
    assert chunk_list.count == 0
    scheduler.want(0)
    assert sum(r.count for r in take_all(scheduler, A)) == 5


def test_a_chunk_list_that_came_meanwhile_is_not_asked_for_again() -> None:
    scheduler = RangeScheduler([2])
    scheduler.want_chunk_list(0)
    (chunk_list,) = take_all(scheduler, A)
    scheduler.want(0)
    scheduler.drop(chunk_list)
    assert [r.count for r in take_all(scheduler, B)] == [2]


def test_a_late_range_may_be_taken_over_once_by_another_source() -> None:
    scheduler = RangeScheduler([4])
    scheduler.want(0)
    (held,) = take_all(scheduler, A)
    scheduler.mark(0, 0)
    assert scheduler.take_over(B, 1.0, -1.0, always) is None, "not late yet"
    assert scheduler.take_over(A, 9.0, 5.0, always) is None, "its own"
    copy = scheduler.take_over(B, 9.0, 5.0, always)
    assert copy is not None
    assert (copy.first, copy.count) == (1, 3)
    for chunk in (1, 2, 3):
        assert scheduler.mark(0, chunk)
        assert not scheduler.mark(0, chunk)
    scheduler.finish(copy)
    scheduler.drop(held)
    assert scheduler.get_missing() == []
    assert take_all(scheduler, A) == []


def test_what_is_late_is_asked_of_one_source_after_the_other_and_not_of_all_at_once() -> None:
    scheduler = RangeScheduler([4])
    scheduler.want(0)
    take_all(scheduler, A)
    scheduler.mark(0, 0)
    assert scheduler.take_over(B, 9.0, 5.0, always) is not None
    assert scheduler.take_over(C, 10.0, 6.0, always) is None, "another source was asked just now"
    assert scheduler.take_over(B, 12.0, 10.0, always) is None, "it has it already"
    copy = scheduler.take_over(C, 12.0, 10.0, always)
    assert copy is not None
    assert (copy.first, copy.count) == (1, 3)


def test_a_late_chunk_list_is_asked_of_one_more_source() -> None:
    scheduler = RangeScheduler([4])
    scheduler.want_chunk_list(0)
    take_all(scheduler, A)
    assert scheduler.take_over(B, 9.0, 5.0, always) is not None
    assert scheduler.take_over(C, 10.0, 6.0, always) is None


def test_a_blob_that_a_source_lacks_is_left_for_others() -> None:
    scheduler = RangeScheduler([2, 2])
    scheduler.want(0)
    scheduler.want(1)
    taken = scheduler.take(A, 0.0, 8, lambda target: target == 1)
    assert taken is not None
    assert taken.target == 1
    assert scheduler.take(A, 0.0, 8, lambda target: target == 1) is None


@given(
    chunks=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    moves=st.lists(st.tuples(st.sampled_from("tdfo"), st.integers(0, 7), st.integers(1, 16)), max_size=200),
)
def test_whatever_sources_do_everything_can_still_be_completed(
    chunks: list[int], moves: list[tuple[str, int, int]]
) -> None:
    scheduler = RangeScheduler(chunks)
    for target in range(len(chunks)):
        scheduler.want(target)
    held: dict[Range, bytes] = {}
    marked: set[tuple[int, int]] = set()
    for move, pick, size in moves:
        source = bytes([pick % 3]) * 32
        if move in "to":
            item = scheduler.take(source, 0.0, size, always)
            if item is None and move == "o":
                item = scheduler.take_over(source, 1.0, 0.5, always)
            if item is not None:
                held[item] = source
        elif held:
            item = list(held)[pick % len(held)]
            delivered = range(item.first, item.first + (item.count if move == "f" else min(size, item.count) - 1))
            for chunk in delivered:
                assert scheduler.mark(item.target, chunk) == ((item.target, chunk) not in marked)
                marked.add((item.target, chunk))
            (scheduler.finish if move == "f" else scheduler.drop)(item)
            del held[item]
    for item in held:
        scheduler.drop(item)
    for item in take_all(scheduler, A, 16):
        for chunk in range(item.first, item.first + item.count):
            scheduler.mark(item.target, chunk)
        scheduler.finish(item)
    assert scheduler.get_missing() == []
