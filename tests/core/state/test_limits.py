"""Bounds so large that no run reaches them, and which both backends of a coordinator must have alike."""

from psyche.core.state import limits


def test_the_bounds_that_no_run_reaches_are_the_same_in_every_backend() -> None:
    assert limits.MAX_DATA_INDEX == 9_223_372_036_854_775_807
    assert limits.MAX_HEIGHT == 4_294_967_294
    assert limits.MAX_EPOCH_ROUNDS == 2_147_483_648
    assert limits.MAX_NONCE == 4_611_686_018_427_387_904
