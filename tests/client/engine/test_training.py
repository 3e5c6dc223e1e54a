"""This member's batch: one training at a time, ended with its round, and its outcome told once (A4, R8, S4)."""

from kits.bench import build_bench
from kits.results import build_train_reply

from psyche.client.engine import actions as act
from psyche.client.engine.chain import OwnResults
from psyche.client.engine.training import Training
from psyche.core.state.state import ZERO32
from psyche.wire.trainer import SentResult

OWN, OTHER = b"own", b"other"
EARLIER = SentResult(height=0, applied=True)


def build_training() -> tuple[Training, list[act.Action]]:
    """A training of the running round that has not begun, of a member with weights; and what it asks for."""
    bench = build_bench(4).start()
    bench.run_round()
    engine = bench.engine
    engine.chain.own.clear()
    engine.chain.own.outcomes.append(EARLIER)
    training = Training(engine._x, engine.chain, engine.announcements, engine.weights)
    engine._x.drain()
    training.enter_round(engine._x.current, bench.state.current.height)
    return training, engine._x.actions


def get_all(actions: list[act.Action], kind: type[act.Action]) -> list[act.Action]:
    return [action for action in actions if isinstance(action, kind)]


def start(training: Training) -> None:
    record = training.context.current
    assert record is not None
    training.act(record)


def test_a_batch_is_fetched_at_the_rounds_start_and_trained_once() -> None:
    training, actions = build_training()
    assert len(get_all(actions, act.FetchData)) == 1
    start(training)
    start(training)
    (train,) = get_all(actions, act.Train)
    assert isinstance(train, act.Train)
    assert (train.epoch, train.height) == training.in_flight
    assert train.decided == (EARLIER,)
    assert not training.work.is_done


def test_who_takes_no_part_in_a_round_has_nothing_fetched() -> None:
    training, actions = build_training()
    actions.clear()
    training.enter_round(None, 2)
    assert actions == []


def test_a_training_is_ended_once_and_the_next_hears_what_it_was_told() -> None:
    """A4, R8."""
    training, actions = build_training()
    training.cancel()
    assert get_all(actions, act.CancelTrain) == [], "nothing runs"
    start(training)
    in_flight = training.in_flight
    assert in_flight is not None
    training.cancel()
    training.cancel()
    assert get_all(actions, act.CancelTrain) == [act.CancelTrain(*in_flight)]
    training.on_trained(act.Trained(*in_flight, build_train_reply(b"", cancelled=True), ZERO32), 1000.0)
    assert training.in_flight is None
    assert training.chain.own.take() == (EARLIER,)


def test_a_lost_trainer_has_lost_its_momentum_too_and_is_told_nothing_again() -> None:
    training, _ = build_training()
    start(training)
    assert training.in_flight is not None
    training.on_train_failed(act.TrainFailed(*training.in_flight, "gone", trainer_lost=True))
    assert training.work.is_done
    assert training.chain.own.take() == ()


def build_results(*heights: int) -> OwnResults:
    """Results of these heights were sent."""
    own = OwnResults()
    for height in heights:
        own.note_sent(height, OWN)
    return own


def test_a_result_counts_as_applied_where_the_set_has_it_under_the_own_number() -> None:
    own = build_results(1, 2, 3, 4)
    own.decide(1, {0: OWN}, 0)
    own.decide(2, {0: OTHER}, 0)
    own.decide(3, {1: OWN}, 0)
    own.decide(4, {0: OWN}, None)
    assert own.take() == tuple(SentResult(height=h, applied=h == 1) for h in (1, 2, 3, 4))


def test_what_an_epoch_did_not_decide_was_not_applied() -> None:
    """P3."""
    own = build_results(5, 6)
    own.end_epoch()
    own.decide(5, {0: OWN}, 0)
    assert own.take() == (SentResult(height=5, applied=False), SentResult(height=6, applied=False))
