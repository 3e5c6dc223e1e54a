"""Who is slow or behind still says that it is there (A1, C6, S6)."""

from kits.bench import Bench, build_bench

from psyche.client.engine import actions as act
from psyche.core.state.gossip import Ready, ReadyFlag
from psyche.core.state.state import ZERO32
from psyche.telemetry import types
from psyche.wire.crypto import blake3_hash


def get_readies(bench: Bench) -> list[Ready]:
    return [message.body for message in bench.get_said(Ready)]  # type: ignore[misc]


def test_who_has_its_digest_at_once_says_ready_once() -> None:
    bench = build_bench().start()
    bench.wait(5.0)
    assert [(r.digest, r.flags) for r in get_readies(bench)] == [(bench.engine.weights.digests[0], 0)]


def test_who_has_no_digest_after_a_second_says_that_it_is_there_and_shows_the_digest_later() -> None:
    """A1: silence ends the waiting of others, lateness does not."""
    bench = build_bench(manual={act.Apply}).start()
    assert bench.engine.get_deadline(bench.now) == bench.now + 1.0
    bench.wait(0.5)
    assert get_readies(bench) == []
    bench.wait(0.5)
    assert [(r.digest, r.flags) for r in get_readies(bench)] == [(ZERO32, ReadyFlag.BEHIND)]
    bench.feed(bench.build_applied(bench.get_all(act.Apply)[-1]))
    bench.wait(5.0)
    assert [r.flags for r in get_readies(bench)] == [ReadyFlag.BEHIND, 0]
    assert get_readies(bench)[-1].digest == bench.engine.weights.digests[0]


def test_a_digest_that_follows_a_behind_is_taken_and_a_third_word_is_not() -> None:
    """S6: divergence shows within seconds, whoever was slow included."""
    bench = build_bench().start()
    other = blake3_hash(b"other weights")
    bench.hear(bench.build_ready(1, ZERO32, ReadyFlag.BEHIND))
    assert bench.get_logs(types.ReadyDiffers) == []
    bench.hear(bench.build_ready(1, other))
    assert [(f.member, f.digest) for f in bench.get_logs(types.ReadyDiffers)] == [(1, other)]
    bench.hear(bench.build_ready(1, blake3_hash(b"yet another")))
    assert len(bench.get_logs(types.ReadyDiffers)) == 1


def test_a_ready_with_the_own_digest_is_no_difference() -> None:
    bench = build_bench().start()
    bench.hear(bench.build_ready(2, bench.engine.weights.digests[0]))
    assert bench.get_logs(types.ReadyDiffers) == []
    assert bench.get_record().ready[2].digest == bench.engine.weights.digests[0]
    assert bench.get_record().heard >> 2 & 1
