"""V6, V10, V11: what distances and signs say of a member."""

import pytest

from psyche.core.committee.verdicts import (
    Verdict,
    compute_agreement,
    compute_calibration,
    compute_distance,
    compute_own_tolerance,
    compute_tolerance,
    find_odd,
    find_suspect,
    find_unfit,
    is_repeated,
    judge_accused,
    judge_piece,
    judge_round,
)
from psyche.core.encoding.header import NumericClass
from psyche.core.state.state import AuditReason, Config

CONFIG = Config(tolerance_fp32_ppm=1_000, tolerance_bf16_ppm=20_000)
OK, UNCLEAR, FAIL = Verdict


@pytest.mark.parametrize(
    ("claimed", "own", "distance"),
    [
        ((3.0, 4.0), (3.0, 4.0), 0),
        ((0.0, 0.0), (3.0, 4.0), 1),
        ((6.0, 8.0), (3.0, 4.0), 1),
        ((3.0, 4.5), (3.0, 4.0), 0.1),
        ((0.0, 0.0), (0.0, 0.0), 0),
        ((1e-30, 0.0), (0.0, 0.0), 2.0**60),
        ((2.0**60, 0.0), (1e-30, 0.0), 2.0**60),
    ],
)
def test_v10_the_distance_is_relative_to_the_own_values(
    claimed: tuple[float, ...], own: tuple[float, ...], distance: float
) -> None:
    assert compute_distance(claimed, own) == distance


@pytest.mark.parametrize(
    ("distance", "verdict"), [(0.0, OK), (0.02, OK), (0.0201, UNCLEAR), (0.06, UNCLEAR), (0.0601, FAIL), (9.0, FAIL)]
)
def test_v10_a_piece_is_ok_up_to_the_tolerance_and_fails_above_three_of_them(distance: float, verdict: Verdict) -> None:
    assert judge_piece(distance, 0.02) is verdict


@pytest.mark.parametrize(("distance", "guilty"), [(0.0, False), (0.05, None), (0.07, True)])
def test_v12_a_piece_neither_right_nor_wrong_convicts_only_for_being_so_too_often(
    distance: float, guilty: bool | None
) -> None:
    assert judge_accused(AuditReason.GRADIENT, distance, 0.02) is guilty
    assert judge_accused(AuditReason.REPEATED, distance, 0.02) is (guilty is not False)


def test_v10_three_unclear_audits_among_the_last_eight_are_too_many() -> None:
    assert not is_repeated([UNCLEAR, UNCLEAR])
    assert is_repeated([UNCLEAR, OK, UNCLEAR, OK, UNCLEAR])
    assert is_repeated([UNCLEAR, *[OK] * 5, UNCLEAR, UNCLEAR])
    assert not is_repeated([UNCLEAR, *[OK] * 6, UNCLEAR, UNCLEAR])
    assert not is_repeated([])


@pytest.mark.parametrize(
    ("numeric_class", "distances", "tolerance"),
    [
        (NumericClass.FP32, {}, 0.001),
        (NumericClass.BF16, {}, 0.02),
        (NumericClass.FP32, {0: 0.0, 1: 0.002, 2: 0.9}, 0.004),
        (NumericClass.BF16, {0: 0.0, 1: 0.002, 2: 0.9}, 0.02),
        (NumericClass.BF16, {0: 0.03, 1: 0.05}, 0.04),
    ],
)
def test_v10_the_tolerance_is_that_of_the_class_or_twice_the_median_of_the_calibration(
    numeric_class: NumericClass, distances: dict[int, float], tolerance: float
) -> None:
    assert compute_tolerance(CONFIG, numeric_class, distances) == tolerance


def test_v10_no_setting_makes_the_tolerance_so_large_that_cheats_pass() -> None:
    assert compute_tolerance(Config(tolerance_fp32_ppm=900_000), NumericClass.FP32, {}) == 0.04


def test_v6_who_is_off_is_named_and_does_not_move_the_median() -> None:
    rows = {0: (3.0, 4.0), 2: (3.0, 4.0), 5: (3.0, 4.001), 7: (-3.0, 40.0)}
    distances = compute_calibration(rows)
    assert find_odd(distances, compute_tolerance(CONFIG, NumericClass.FP32, distances)) == [7]
    assert distances[0] == pytest.approx(0.0001, rel=0.01)
    assert compute_calibration({0: (1.0,), 1: (2.0,), 2: (4.0,)}) == {0: 0.5, 1: 0.0, 2: 1.0}, "relative to the median"
    assert find_odd({0: 0.001, 1: 0.002}, 0.001) == [1]


def test_v6_who_is_as_far_off_as_cheats_are_from_its_class_and_from_all_is_unfit() -> None:
    assert find_unfit({1: 0.04, 2: 0.5, 3: 0.5}, {0: 0.0, 1: 0.5, 2: 0.5, 3: 0.03}) == [2]


@pytest.mark.parametrize(
    ("distance", "tolerance"), [(0.0, 0.001), (0.01, 0.01), (0.04, 0.04), (0.5, 0.04), (9e9, 0.04)]
)
def test_v6_who_is_a_little_off_is_judged_by_that_and_who_is_far_off_has_no_excuse(
    distance: float, tolerance: float
) -> None:
    assert compute_own_tolerance(0.001, distance) == tolerance
    assert compute_calibration({}) == {}


def test_v11_signs_agree_at_the_places_sent() -> None:
    assert compute_agreement([1, -1, 2, -2, 1], [5, -1, 0, 3, 1]) == 0.6
    assert compute_agreement([], []) == 0


def test_v11_who_agrees_least_is_recomputed_but_not_twice_in_64_rounds() -> None:
    agreements = {3: 0.7, 5: 0.4, 8: 0.4, 9: 0.9}
    assert find_suspect(agreements, {}, 100) == 5
    assert find_suspect(agreements, {5: 37}, 100) == 8
    assert find_suspect(agreements, {5: 36}, 100) == 5
    assert find_suspect(agreements, dict.fromkeys(agreements, 99), 100) is None
    assert find_suspect({}, {}, 5) is None


@pytest.mark.parametrize(
    ("agreement", "opened", "distance", "found"),
    [
        (1.0, AuditReason.PATHS, -1, AuditReason.PATHS),
        (1.0, AuditReason.SELECTION, 0.0, AuditReason.SELECTION),
        (0.1, AuditReason.NONE, 0.01, AuditReason.NONE),  # who opens its momentum is not judged by signs
        (1.0, AuditReason.NONE, 0.03, None),
        (1.0, AuditReason.NONE, 1.0, AuditReason.LINK),
        (-1, AuditReason.NONE, -1, None),
        (0.79, AuditReason.NONE, -1, AuditReason.SIGNS),
        (0.8, AuditReason.NONE, -1, AuditReason.NONE),
        (0.0, AuditReason.NONE, -1, AuditReason.SIGNS),
        (0.1, AuditReason.NONE, 0.0, AuditReason.NONE),
    ],
)
def test_v11_a_whole_round_is_judged_by_its_opened_momentum_and_without_one_by_signs(
    agreement: float, opened: AuditReason, distance: float, found: AuditReason | None
) -> None:
    assert judge_round(agreement, opened, distance, 0.02) == found
