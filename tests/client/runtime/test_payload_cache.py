"""Bodies of results stay as long as a round needs them."""

from psyche.client.runtime.trainer_inputs import PayloadCache

BODY = b"a payload"


def test_bodies_are_found_in_the_order_that_is_asked_for_or_not_at_all() -> None:
    """C6: a set is applied whole."""
    cache = PayloadCache()
    cache.keep(b"1", 0, 3, b"one")
    cache.keep(b"2", 0, 3, b"two")
    assert cache.find((b"2", b"1", b"2")) == (b"two", b"one", b"two")
    assert cache.find(()) == ()
    assert cache.find((b"1", b"3")) is None


def test_equal_bodies_of_two_rounds_stay_as_long_as_the_later_one_needs_them() -> None:
    """B3: who copies a payload of an earlier round takes it away from nobody."""
    cache = PayloadCache()
    for height in (6, 5):
        cache.keep(b"1", 0, height, BODY)
    cache.expire(0, 6)
    assert cache.find((b"1",)) == (BODY,)
    assert len(cache) == 1
    cache.expire(0, 7)
    assert cache.find((b"1",)) is None
    assert len(cache) == 0


def test_bodies_of_an_earlier_epoch_go_whatever_their_height() -> None:
    cache = PayloadCache()
    cache.keep(b"1", 0, 900, BODY)
    cache.expire(1, 0)
    assert cache.find((b"1",)) is None
