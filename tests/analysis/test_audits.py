"""What clients found of each other, in words."""

from psyche.analysis.audits import AuditsView
from psyche.core.committee.verdicts import Verdict
from psyche.core.state.enums import AuditReason
from psyche.telemetry import types


def build_audit(target: int, distance: float, verdict: Verdict, *, report: bool = False) -> types.Audited:
    return types.Audited(
        height=3, target=target, piece=0, report=report, distance=distance, tolerance=0.001, verdict=verdict
    )


def test_a_run_without_audits_says_nothing_of_them() -> None:
    view = AuditsView()
    view.take(types.TooLate(action="join", reason=""))
    assert list(view.describe()) == []


def test_audits_are_counted_and_each_member_has_its_median_and_worst_distance() -> None:
    view = AuditsView()
    for distance in (1e-6, 2e-6, 4e-6):
        view.take(build_audit(1, distance, Verdict.OK))
    view.take(build_audit(2, 0.5, Verdict.FAIL))
    view.take(build_audit(2, 0.9, Verdict.UNCLEAR, report=True))
    view.take(types.ArithmeticOff(member=2, epoch=0, distance=0.1))
    assert list(view.describe()) == [
        "audits: 5 made, 3 fine, 1 unclear, 1 failed",
        "  member 2: off by 5.0e-01 in the median, 5.0e-01 at worst, its arithmetic is off",
        "  member 1: off by 2.0e-06 in the median, 4.0e-06 at worst",
    ]


def test_a_challenge_is_told_once_however_many_logs_have_it() -> None:
    view = AuditsView()
    named = {"epoch": 0, "height": 3, "target": "aa", "accuser": "bb", "reason": AuditReason.GRADIENT}
    for _ in range(2):
        view.take(types.Challenged(piece=1, **named))  # pyright: ignore[reportArgumentType]
    assert list(view.describe())[-1].endswith("its jury has not decided yet")
    for _ in range(2):
        view.take(types.ChallengeEnded(guilty=3, innocent=0, outcome="put out: it cheated", **named))  # pyright: ignore[reportArgumentType]
    assert list(view.describe()) == [
        "audits: 0 made, 0 fine, 0 unclear, 0 failed",
        "  aa was accused of its work in epoch 0, round 3: put out: it cheated (3 guilty, 0 innocent)",
    ]
