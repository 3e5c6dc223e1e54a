"""A client that never can train this run's model or data ends, and nobody waits for it (M4)."""

from kits.bench import Bench, build_bench
from kits.results import build_load_reply

from psyche.client.engine import actions as act
from psyche.core.state.messages import Join, Withdraw
from psyche.core.state.state import ZERO32, RunState
from psyche.telemetry import types
from psyche.telemetry.types import LeaveCause

REASON = "model config config.json: AR1: model_type 'gpt_2' is no causal language model"


def load_in_warmup() -> Bench:
    bench = build_bench(4, manual={act.Load})
    bench.warm_up()
    assert bench.state.run_state is RunState.WARMUP
    return bench


def assert_ended(bench: Bench, cause: LeaveCause, reason: str) -> None:
    assert len(bench.get_all(Withdraw)) == 1
    (ended,) = bench.get_all(act.Exit)
    assert (ended.code, ended.cause, ended.reason) == (1, cause, reason)
    bench.forget()
    bench.show()
    bench.wait(30.0)
    assert bench.get_all(Join) == bench.get_all(act.Load) == bench.get_all(act.Exit) == []


def test_weights_that_never_can_be_loaded_end_the_client() -> None:
    bench = load_in_warmup()
    bench.feed(act.LoadFailed(0, REASON, for_good=True))
    assert [event.reason for event in bench.get_logs(types.LoadFailed)] == [REASON]
    assert_ended(bench, LeaveCause.UNUSABLE_MODEL, REASON)


def test_a_plan_that_cannot_be_used_ends_the_client_and_its_membership() -> None:
    bench = load_in_warmup()
    bench.feed(act.Loaded(0, ZERO32, types.WeightSource.CONFIGURED, build_load_reply(b"no plan")))
    assert bench.get_all(act.Exit)[0].reason.startswith("the model's transform plan cannot be used")
    assert len(bench.get_all(Withdraw)) == 1


def test_tokens_that_the_model_does_not_have_end_the_client() -> None:
    bench = build_bench(4).start()
    bench.feed(act.TrainFailed(0, 0, "data: token 4000", trainer_lost=False, for_good=True))
    (event,) = bench.get_logs(types.NotSent)
    assert event.failed
    assert_ended(bench, LeaveCause.UNUSABLE_DATA, "data: token 4000")


def test_whoever_learns_it_while_members_gather_takes_its_join_back() -> None:
    bench = build_bench(4)
    bench.show()
    bench.join(0)
    bench.show()
    bench.feed(act.LoadFailed(0, REASON, for_good=True))
    assert_ended(bench, LeaveCause.UNUSABLE_MODEL, REASON)
