"""What a server tells of verification: in its log, and in the run's status."""

from kits.log import Log
from kits.runs import accuse, convene, vote
from kits.server import CLIENTS, Members, MemoryDisk, build_file, build_handler, build_restarted

from psyche.core.state.state import AuditReason
from psyche.telemetry import types
from psyche.telemetry.challenges import UNDECIDED
from psyche.wire.report import Verification

VERIFIED = {"verification_percent": 30, "convict": True, "rounds_per_epoch": 30}


def start(disk: MemoryDisk, log: Log) -> Members:
    state = build_file(init_min_clients=6, total_steps=90, **VERIFIED).build_state()
    members = Members(build_handler(state, disk=disk, sink=log), CLIENTS[:6])
    members.join_all()
    members.warm_up()
    return members


def get_shown(members: Members) -> Verification:
    shown = members.handler.get_status().verification
    assert shown is not None
    return shown


def test_a_run_that_is_not_verified_tells_nothing_of_audits() -> None:
    assert build_handler().get_status().verification is None


def test_an_accusation_and_its_end_are_events_and_the_status_has_votes_verdict_and_who_is_banned() -> None:
    disk, log = MemoryDisk(), Log()
    members = start(disk, log)
    verifier, target = accuse(members)
    ada, ben = (members.key(member) for member in (verifier, target))
    (opened,) = [event for event in log.told if isinstance(event, types.Challenged)]
    assert (opened.accuser, opened.target, opened.reason) == (ada.hex()[:16], ben.hex()[:16], AuditReason.GRADIENT)
    shown = get_shown(members)
    assert (shown.percent, shown.convicts, shown.accused, shown.banned) == (30, True, 1, ())
    jury = convene(members)
    vote(members, jury[:1], guilty=True)
    (one,) = get_shown(members).challenges
    assert (one.accuser, one.target, one.guilty, one.innocent, one.outcome) == (ada, ben, 1, 0, "")
    vote(members, jury[1:], guilty=True)
    (ended,) = [event for event in log.told if isinstance(event, types.ChallengeEnded)]
    assert ended.outcome == "put out: a piece of its work is not the gradient of its samples"
    (one,) = get_shown(members).challenges
    assert (one.target, one.guilty, one.outcome) == (ben[:8], ended.guilty, ended.outcome)
    assert get_shown(members).banned == (ben,)
    again = build_restarted(disk)
    again.history.restore([ended])
    told = again.get_status().verification
    assert told is not None
    assert told.challenges == (one,), "from the log of the process before"


def test_what_no_quorum_decided_is_told_once_and_with_its_votes() -> None:
    log = Log()
    members = start(MemoryDisk(), log)
    accuse(members)
    jury = convene(members)
    vote(members, jury[:1], guilty=True)
    vote(members, jury[1:2], guilty=False)
    while not any(isinstance(event, types.ChallengeEnded) for event in log.told):
        members.run_round()
    (one,) = get_shown(members).challenges
    assert (one.guilty, one.innocent, one.outcome) == (1, 1, UNDECIDED)
