"""What a server tells of verification: in its log, and in the run's status."""

from copy import deepcopy

from kits.log import Log, choose
from kits.runs import accuse, convene, go_to_verifiers, vote
from kits.server import CLIENTS, Members, MemoryDisk, build_file, build_handler, build_restarted

from psyche.core.state.state import AuditReason, ChallengeState, SlotState
from psyche.telemetry import types
from psyche.telemetry.challenges import UNDECIDED, find_challenges
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


def test_each_acquittal_says_what_it_means_for_the_accuser() -> None:
    log = Log()
    members = start(MemoryDisk(), log)
    verifier, target = accuse(members)
    vote(members, convene(members), guilty=False)
    accuser = members.state.registry.slots[members.state.clients[verifier].slot]
    assert accuser.false_challenges == 1
    while verifier not in go_to_verifiers(members):
        members.run_round()
    members.report(verifier, target, AuditReason.GRADIENT)
    vote(members, convene(members), guilty=False)
    assert get_shown(members).banned == (members.key(verifier),)
    assert [(event.guilty, event.outcome) for event in choose(log.told, types.ChallengeEnded)] == [
        (0, "not guilty: the accuser is put out if it makes more false accusations"),
        (0, "not guilty, and the accuser is put out for false accusations"),
    ]


def test_what_nobody_decided_does_not_put_out_who_is_banned_meanwhile() -> None:
    members = start(MemoryDisk(), Log())
    accuse(members)
    before, after = (deepcopy(members.state) for _ in range(2))
    (one,) = [one for one in after.challenges if one.state is ChallengeState.OPEN]
    one.state, after.registry.slots[one.target].state = ChallengeState.UNDECIDED, SlotState.BANNED
    (ended,) = choose(find_challenges(before, after), types.ChallengeEnded)
    assert ended.outcome == UNDECIDED
