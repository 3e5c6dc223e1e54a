"""Token buckets, seen-sets and source statistics: bounded, and right at their edges."""

from psyche.network.announce import MAX_BUCKETS, Buckets, SeenSet
from psyche.network.blobs.sources import SourceStatistics


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    buckets = Buckets(rate_per_s=2, burst=3)
    assert [buckets.take(b"a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert buckets.take(b"b", 0.0), "another origin is not affected"
    assert [buckets.take(b"a", 1.0) for _ in range(3)] == [True, True, False]
    assert [buckets.take(b"a", 100.0) for _ in range(4)] == [True, True, True, False]


def test_buckets_are_bounded_and_forget_who_was_silent_longest() -> None:
    buckets = Buckets(rate_per_s=0, burst=1)
    assert buckets.take(b"first", 0.0)
    assert not buckets.take(b"first", 0.0)
    for number in range(MAX_BUCKETS):
        buckets.take(number.to_bytes(4, "big"), 0.0)
    assert buckets.take(b"first", 0.0)


def test_a_seen_set_keeps_the_newest() -> None:
    seen = SeenSet(2)
    assert seen.add(b"a")
    assert not seen.add(b"a")
    assert seen.add(b"b")
    assert seen.add(b"c")
    assert b"a" not in seen
    assert len(seen) == 2


def test_the_deadline_of_a_request_follows_the_source() -> None:
    source = SourceStatistics(assumed_rate_bytes_s=1_000)
    assert source.compute_limit_s(20_000, 5.0) == 20.0, "size / assumed rate"
    assert source.compute_limit_s(1_000, 5.0) == 5.0, "never less than the least"
    source.add_transfer(1_000_000, 1.0)
    for wait in (1.0, 2.0, 90.0):
        source.add_wait(wait)
    assert source.compute_limit_s(4_000_000, 5.0) == 3 * 2.0 + 4.0


def test_ranges_shrink_for_a_slow_source_and_after_a_stall() -> None:
    source = SourceStatistics(assumed_rate_bytes_s=1_000)
    assert source.compute_chunks(1 << 20, 2.0, 8) == 1, "unknown: careful"
    source.add_transfer(4 << 20, 1.0)
    assert source.compute_chunks(1 << 20, 2.0, 8) == 8
    source.add_stall(1.0)
    source.add_stall(1.0)
    assert source.compute_chunks(1 << 20, 2.0, 8) == 2
    for _ in range(50):
        source.add_stall(1.0)
    assert source.compute_chunks(1 << 20, 2.0, 8) == 1
    assert source.compute_limit_s(0, 0.0) == 3.0, "waits of a stalling source are expected to be long"
    assert source.compute_window(4.0, 1 << 24, 2 << 20) == 2 << 20


def test_a_small_reply_says_nothing_of_the_rate() -> None:
    source = SourceStatistics(assumed_rate_bytes_s=1_000)
    source.add_transfer(1_000, 1e-9)
    assert source.rate_bytes_s == 1_000
