"""The trainer hears once of each own result whether it was applied (R8, P3)."""

from psyche.client.engine.chain import OwnResults
from psyche.wire.trainer import SentResult

OWN, OTHER = b"own", b"other"


def build(*heights: int) -> OwnResults:
    """Results of these heights were sent."""
    own = OwnResults()
    for height in heights:
        own.note_sent(height, OWN)
    return own


def test_a_result_counts_as_applied_where_the_set_has_it_under_the_own_number() -> None:
    own = build(1, 2, 3, 4)
    own.decide(1, {0: OWN}, 0)
    own.decide(2, {0: OTHER}, 0)
    own.decide(3, {1: OWN}, 0)
    own.decide(4, {0: OWN}, None)
    assert own.take() == tuple(SentResult(height=h, applied=h == 1) for h in (1, 2, 3, 4))


def test_an_outcome_is_taken_once_unless_the_training_changed_nothing() -> None:
    own = build(1)
    own.decide(1, {0: OWN}, 0)
    own.decide(1, {0: OWN}, 0)
    taken = own.take()
    assert len(taken) == 1
    assert own.take() == ()
    own.note_unsent(2)
    own.put_back(taken)
    assert own.take() == (*taken, SentResult(height=2, applied=False))


def test_what_an_epoch_did_not_decide_was_not_applied() -> None:
    """P3."""
    own = build(5, 6)
    own.end_epoch()
    own.decide(5, {0: OWN}, 0)
    assert own.take() == (SentResult(height=5, applied=False), SentResult(height=6, applied=False))


def test_other_weights_hear_nothing_of_results_since() -> None:
    """R8: their momentum is that of an earlier time, or zero."""
    own = build(1, 2)
    own.decide(1, {0: OWN}, 0)
    own.clear()
    own.decide(2, {0: OWN}, 0)
    assert own.take() == ()
