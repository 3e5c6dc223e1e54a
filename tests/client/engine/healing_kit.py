"""What the tests of healing share: a bench in its second epoch, and how its weights go wrong there."""

from kits.bench import Bench, build_bench
from kits.results import build_train_reply

from psyche.client.engine import actions as act
from psyche.core.state.state import ZERO32, RunState
from psyche.testing.builders import build_hash
from psyche.wire.crypto import compute_state_digest

WRONG = build_hash("a flipped bit")


def build_bench_in_second_epoch(height: int, **config: object) -> Bench:
    """Certified weights are there; the round of this height runs in epoch 1, everything agreed so far."""
    bench = build_bench(4, rounds_per_epoch=8, cooldown_time=1, **config).start()
    bench.state.epoch.drain_from_height = 0
    bench.state.config.rounds_per_epoch = 1
    while bench.state.in_round:
        bench.run_round()
    bench.state.config.rounds_per_epoch = 12
    bench.pass_time(2)
    assert bench.state.run_state is RunState.WAITING_FOR_MEMBERS
    bench.start()
    bench.run_rounds(height)
    assert (bench.state.progress.epoch, bench.state.current.height) == (1, height)
    bench.forget()
    return bench


def agree_on(bench: Bench, digest: bytes) -> None:
    """The other witnesses agree on a digest; the round goes on."""
    bench.record(1, 2, 3, state_digest=digest)
    bench.show()


def diverge(bench: Bench) -> dict[int, bytes]:
    """The next round's apply goes wrong here and right elsewhere, and the record shows it. The right digests."""
    bench.manual = {act.Apply}
    bench.run_round()
    bench.feed(bench.build_applied(bench.get_all(act.Apply)[-1], part=WRONG))
    weights = bench.engine.weights
    right = compute_state_digest(weights.chain, bench.part)
    digests = weights.digests | {bench.state.current.height: right}
    assert weights.digests[bench.state.current.height] != right
    agree_on(bench, right)
    assert weights.is_diverged
    return digests


def let_go(bench: Bench) -> None:
    if bench.engine.training.in_flight is not None:
        bench.feed(act.Trained(*bench.engine.training.in_flight, build_train_reply(b"", cancelled=True), ZERO32))
