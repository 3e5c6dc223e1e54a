"""Ready: who is slow or behind still says that it is there; in crowded runs it rides in Finished (A1, C6, R2, S6)."""

import pytest
from kits.bench import Bench, build_bench

from psyche.client.engine import actions as act
from psyche.client.engine.witness_report import GOSSIP_BUDGET, is_over_gossip_budget
from psyche.core.state.gossip import Finished, Ready, ReadyFlag
from psyche.core.state.state import ZERO32
from psyche.telemetry import types
from psyche.testing.builders import build_hash
from psyche.wire.crypto import blake3_hash

MEMBERS = 8


def build_round(seconds: float, **config: object) -> Bench:
    bench = build_bench(MEMBERS, **config).start()
    bench.play()
    bench.close(seconds=seconds)
    assert bench.state.current.height == 1
    return bench


def get_said(bench: Bench, kind: type, height: int = 1) -> list[object]:
    return [m.body for m in bench.get_said(kind) if m.height == height]


def finish(bench: Bench) -> Finished:
    bench.deliver(*range(1, MEMBERS))
    bench.train()
    (finished,) = get_said(bench, Finished)
    assert isinstance(finished, Finished)
    return finished


@pytest.mark.parametrize(("seconds", "is_over"), [(1.0, True), (2.0, False), (30.0, False)])
def test_a_run_is_over_the_gossip_budget_by_the_length_of_its_last_round(seconds: float, is_over: bool) -> None:
    assert not is_over_gossip_budget(build_bench(MEMBERS).start().state), "the first round has no measure yet"
    bench = build_round(seconds)
    assert is_over_gossip_budget(bench.state) == is_over == (3 * MEMBERS / seconds > GOSSIP_BUDGET)


def test_in_a_crowded_run_ready_is_said_with_finished() -> None:
    """S6."""
    bench = build_round(1.0)
    digest = bench.engine.weights.digests[1]
    assert get_said(bench, Ready) == []
    finished = finish(bench)
    assert finished.ready == Ready(digest, ReadyFlag(0))
    assert get_said(bench, Ready) == []
    assert bench.get_record().ready[bench.index] == finished.ready


def test_who_is_not_finished_when_a_quorum_is_says_that_it_is_there() -> None:
    """A1: from then on witnesses wait for nobody for long, and who was not heard is absent."""
    bench = build_round(1.0)
    for member in range(1, 6):
        bench.hear(bench.build_finished(member))
        assert get_said(bench, Ready) == []
    bench.hear(bench.build_finished(6))
    assert get_said(bench, Ready) == [Ready(bench.engine.weights.digests[1], ReadyFlag(0))]
    finished = finish(bench)
    assert finished.ready is None, "it was said already"


def test_who_diverged_says_so_at_once() -> None:
    """S6: divergence shows within seconds."""
    bench = build_round(1.0)
    bench.spoil_weights()
    bench.wait(0.0)
    (ready,) = get_said(bench, Ready)
    assert isinstance(ready, Ready)
    assert ready.flags == ReadyFlag.DIVERGED


def test_who_has_no_digest_says_that_it_is_there_after_a_second() -> None:
    """A1, C6."""
    bench = build_bench(MEMBERS).start()
    bench.play()
    bench.manual = {act.Apply}
    bench.close(seconds=1.0)
    bench.wait(1.0)
    assert get_said(bench, Ready) == [Ready(ZERO32, ReadyFlag.BEHIND)]
    bench.feed(bench.build_applied(bench.get_all(act.Apply)[-1]))
    finished = finish(bench)
    assert finished.ready == Ready(bench.engine.weights.digests[1], ReadyFlag(0))


def test_without_overlap_a_result_stands_for_finished_and_ready_goes_alone() -> None:
    """A2: there is nothing it could ride in."""
    bench = build_round(1.0, overlap=False)
    assert len(get_said(bench, Ready)) == 1


def test_a_ready_that_rides_is_heard_like_one_that_does_not() -> None:
    """S6."""
    bench = build_round(1.0)
    other = Ready(build_hash("other weights"), ReadyFlag(0))
    bench.hear(bench.sign(1, Finished(0, ZERO32, 0, other)))
    assert bench.get_record().ready[1] == other
    assert [(f.member, f.digest) for f in bench.get_logs(types.ReadyDiffers)] == [(1, other.digest)]
    assert 1 in bench.get_record().finished


# --- in runs of few


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
