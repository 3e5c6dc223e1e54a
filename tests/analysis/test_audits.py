"""What clients found of each other, in words."""

import msgspec
from msgspec.structs import replace

from psyche.analysis.audits import AuditsView
from psyche.analysis.run_view import RunView
from psyche.core.committee.verdicts import Verdict
from psyche.core.state.enums import AuditReason, ClientState
from psyche.telemetry import types
from psyche.telemetry.challenges import ACCUSATIONS
from psyche.wire.backend import MemberInfo, Members
from psyche.wire.report import Accusation, AuditedMember, SelfReport, Verification

ADA, BEN = "a" * 16, "b" * 16
ACCUSED, OPEN = "  ada, accused by ben of its work in epoch 0, round 3", "its jury has not decided yet"
NOBODY = "0 guilty, 0 innocent"


def build_audit(key: str, distance: float, verdict: Verdict, *, report: bool = False) -> types.Audited:
    return types.Audited(
        height=3, target=2, key=key, piece=0, report=report, distance=distance, tolerance=0.001, verdict=verdict
    )


def name(key: bytes) -> str:
    return {"aa": "ada", "bb": "ben"}[key.hex()[:2]]


def test_a_run_without_audits_says_nothing_of_them() -> None:
    view = AuditsView()
    view.take(types.TooLate(action="join", reason=""))
    view.take_status(None)
    assert list(view.describe()) == []


def test_audits_are_counted_and_each_member_has_its_median_and_worst_distance() -> None:
    view = AuditsView()
    for distance in (1e-6, 2e-6, 4e-6):
        view.take(build_audit(ADA, distance, Verdict.OK))
    view.take(build_audit(BEN, 0.5, Verdict.FAIL))
    view.take(build_audit(BEN, 0.9, Verdict.UNCLEAR, report=True))
    view.take(types.ArithmeticOff(member=2, key=BEN, epoch=4, distance=0.1))
    odd = "its arithmetic is off by 1.0e-01 in epoch 4"
    assert list(view.describe(name)) == [
        "audits: 5 made, 3 fine, 1 unclear, 1 failed",
        "  ben: off by 5.0e-01 in the median, 5.0e-01 at worst, in 1 audit; " + odd,
        "  ada: off by 2.0e-06 in the median, 4.0e-06 at worst, in 3 audits",
    ]


def test_a_challenge_is_told_once_however_many_logs_have_it() -> None:
    view = AuditsView()
    named = {"epoch": 0, "height": 3, "target": ADA, "accuser": BEN, "reason": AuditReason.GRADIENT}
    for _ in range(2):
        view.take(types.Challenged(piece=1, **named))  # pyright: ignore[reportArgumentType]
    assert list(view.describe(name)) == [f"{ACCUSED} ({ACCUSATIONS[AuditReason.GRADIENT]}): {OPEN}; {NOBODY}"]
    for _ in range(2):
        view.take(types.ChallengeEnded(guilty=3, innocent=0, outcome="put out: it cheated", **named))  # pyright: ignore[reportArgumentType]
    view.take(types.Challenged(piece=1, **named))  # pyright: ignore[reportArgumentType]  # the log of a client that was late
    (line,) = view.describe(name)
    assert line.endswith(": put out: it cheated; 3 guilty, 0 innocent")


def test_what_several_members_say_of_one_is_put_together() -> None:
    found = AuditsView()
    for distance, verdict in ((0.002, Verdict.OK), (0.004, Verdict.FAIL)):
        found.take(build_audit(ADA, distance, verdict))
    found.take(types.ArithmeticOff(member=2, key=BEN, epoch=4, distance=0.1))
    first = SelfReport(audits=found.count(), audited=found.list_members())
    second = SelfReport(audits=(4, 0, 0), audited=(AuditedMember(bytes.fromhex(ADA), 4, 0.001, 0.008),))
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=SelfReport) for one in (first, second)]
    view = AuditsView()
    for _ in range(2):  # each answer of a backend replaces the last one
        view.take_reports(sent)
    assert list(view.describe(name)) == [
        "audits: 6 made, 5 fine, 0 unclear, 1 failed",
        "  ben: its arithmetic is off by 1.0e-01 in epoch 4",
        "  ada: off by 1.0e-03 in the median, 8.0e-03 at worst, in 6 audits",
    ]


def test_what_a_member_says_that_is_put_out_does_not_count() -> None:
    view, said = RunView(), SelfReport(audits=(1, 0, 1), audited=(AuditedMember(bytes.fromhex(ADA), 2, 0.1, 2.0),))
    out = MemberInfo(bytes.fromhex(BEN * 4), 1, ClientState.EJECTED, True, said)
    for members, counts in (((out,), (0, 0, 0)), ((replace(out, state=ClientState.HEALTHY),), (1, 0, 1))):
        view.take_members(Members(1, members))
        assert view.audits.count() == counts


def test_a_backend_tells_of_the_record_its_challenges_and_who_is_banned() -> None:
    ada, ben = (bytes.fromhex(key * 2) for key in (ADA, BEN))
    view = AuditsView()
    record = "on record 6 reports of the last rounds: 4 passed, 1 doubted, 1 accused"
    challenge = Accusation(0, 3, ada, ben, AuditReason.LINK, 2, 1)
    view.take_status(Verification(20, True, 4, 1, 1, (challenge,), (ada,)))
    assert list(view.describe(name)) == [
        f"20 % of the members verify, juries put out who fails; {record}",
        f"{ACCUSED} ({ACCUSATIONS[AuditReason.LINK]}): {OPEN}; 2 guilty, 1 innocent",
        "  banned from the run: ada",
    ]
    view.take_status(Verification(20, False))
    assert list(view.describe(name)) == ["20 % of the members verify, what they find is only shown"]


def test_texts_and_keys_of_strangers_do_no_harm() -> None:
    view = AuditsView()
    view.take(build_audit("no key", 0.5, Verdict.FAIL))
    view.take(
        types.ChallengeEnded(
            epoch=0, height=3, target=ADA, accuser="", reason=AuditReason.LINK, guilty=1, innocent=0, outcome=""
        )
    )
    assert list(view.describe(name)) == ["audits: 1 made, 0 fine, 0 unclear, 1 failed"]
    view.take_status(Verification(20, True, challenges=(Accusation(0, 3, bytes(8), bytes(8), 99),)))
    assert "(reason 99)" in list(view.describe(lambda _: "x"))[2]
