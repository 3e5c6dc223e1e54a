"""Audits on record, challenges and juries: V7 (doubts first), V9, V12, V14, V15."""

from typing import Any

import pytest
from kits.runs import Run, accuse, build_run, convene, expect_refusal, find_verifiers, get_open, go_to_verifiers, vote

from psyche.core.committee.elections import compute_quorum, get_witnesses
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.encoding.bodies import encode_body
from psyche.core.rules.apply import is_repeat
from psyche.core.rules.audits import get_doubted, process_adjournment
from psyche.core.state.errors import (
    DuplicateWitness,
    Halted,
    InvalidAudit,
    InvalidJudgement,
    InvalidRunState,
    UnknownMember,
    WrongRound,
)
from psyche.core.state.limits import NOBODY, U32_MAX
from psyche.core.state.messages import JudgeChallenge, Pause, ReclaimSlot, ReportAudit
from psyche.core.state.state import (
    AuditReason,
    AuditStatus,
    Challenge,
    ChallengeState,
    ClientState,
    RunState,
    SlotState,
)
from psyche.testing.builders import build_hash

GRADIENT, WITHHELD, UNCLEAR = AuditReason.GRADIENT, AuditReason.WITHHELD, AuditReason.UNCLEAR


def start(members: int = 8, **config: object) -> Run:
    settings: dict[str, Any] = {"verification_percent": 30, "convict": True, "rounds_per_epoch": 30} | config
    return build_run(members, **settings).warm_up()


def test_v9_the_messages_have_the_bytes_of_the_page() -> None:
    assert len(encode_body(ReportAudit(0, 0, 0, 0, 0, 0, bytes(32)))) == 46
    assert len(encode_body(JudgeChallenge(0, 0, 0, 0, 0))) == 12


def test_v9_a_verifier_that_finds_nothing_is_on_record() -> None:
    run = start()
    verifier = go_to_verifiers(run)[0]
    run.report(verifier)
    (audit,) = run.state.current.audits
    assert (audit.verifier, audit.target, audit.piece, audit.status) == (verifier, NOBODY, NOBODY, AuditStatus.PASSED)
    assert get_open(run) == []
    decode_state(encode_state(run.state))


def test_v9_who_is_out_since_the_audited_round_may_be_named_and_who_was_out_by_then_may_not() -> None:
    run = start(verification_percent=60)
    run.run_round()
    gone = run.get_members()[0]
    run.eject(gone)
    for named in (True, False):
        run.run_round()
        verifier = find_verifiers(run)[0]
        if named:
            run.report(verifier, gone, GRADIENT)
        else:
            with expect_refusal(run.state, InvalidAudit, "was not in the audited round"):
                run.report(verifier, gone, GRADIENT)


def test_v12_an_accusation_opens_a_challenge_that_names_all_that_its_jury_needs() -> None:
    run = start()
    verifier, target = accuse(run)
    height = run.state.current.height
    assert run.state.current.audits[0].status is AuditStatus.CHALLENGED
    assert get_open(run) == [
        Challenge(
            target_commitment=build_hash("result", target), height=height - 1, opened_height=height,
            deadline_height=height + 3, verifier=run.state.clients[verifier].slot,
            target=run.state.clients[target].slot, state=ChallengeState.OPEN, reason=GRADIENT, epoch=0, piece=3,
        )
    ]  # fmt: skip
    decode_state(encode_state(run.state))


def test_v12_a_verifier_has_until_the_close_of_the_next_round() -> None:
    run = start()
    verifier = go_to_verifiers(run)[0]
    height, target = run.state.current.height, next(m for m in range(8) if m not in find_verifiers(run))
    run.run_round()
    run.report(verifier, target, GRADIENT, height=height)
    challenge = get_open(run)[0]
    assert (challenge.height, challenge.opened_height, challenge.deadline_height) == (
        height - 1,
        height + 1,
        height + 3,
    )
    run.run_round()
    with expect_refusal(run.state, WrongRound, "T7"):
        run.report(verifier, target, GRADIENT, height=height)


def test_v9_what_a_verifier_may_not_report() -> None:
    run = build_run(8, verification_percent=30, convict=True, rounds_per_epoch=9)
    report = ReportAudit(0, 0, 0, 1, 1, 2, build_hash("c"))
    with expect_refusal(run.state, InvalidRunState, "V9"):
        run.apply(report, run.keys(0)[1])
    run.warm_up()
    with expect_refusal(run.state, InvalidAudit, "no round before"):
        run.report(find_verifiers(run)[0])
    verifier = go_to_verifiers(run)[0]
    idle = next(m for m in range(8) if m not in find_verifiers(run))
    with expect_refusal(run.state, InvalidAudit, "no verifier"):
        run.report(idle)
    with expect_refusal(run.state, UnknownMember):
        run.apply(ReportAudit(0, run.state.current.height, verifier, idle, 1, 2, build_hash("c")), build_hash("x"))
    slips: tuple[tuple[dict[str, Any], str], ...] = (
        ({"reason": AuditReason.NONE}, "reason: is none"),
        ({"reason": 10}, "reason: is unknown"),
        ({"commitment": bytes(32)}, "commitment: is zero"),
        ({"target": verifier}, "is the verifier itself"),
        ({"target": 300}, "was not in the audited round"),
        ({"target": NOBODY}, "target: is nobody"),
        ({"target": NOBODY, "piece": NOBODY}, "target: is nobody"),
        ({"target": NOBODY, "reason": AuditReason.NONE}, "target: is nobody"),
    )
    for changes, rule in slips:
        with expect_refusal(run.state, InvalidAudit, rule):
            run.report(verifier, **{"target": idle, "reason": GRADIENT, "piece": 3, **changes})
    for names in ({"epoch": 1}, {"height": run.state.current.height + 1}, {"height": run.state.current.height - 2}):
        with expect_refusal(run.state, WrongRound):
            run.report(verifier, idle, GRADIENT, **names)
    run.report(verifier, idle, GRADIENT)
    with expect_refusal(run.state, DuplicateWitness, "K3"):
        run.report(verifier)
    run.apply(Pause())
    run.finish_epoch()
    with expect_refusal(run.state, Halted):
        run.apply(report, run.keys(0)[1])


def test_v9_a_verifier_that_has_left_reports_nothing() -> None:
    run = start()
    verifier = go_to_verifiers(run)[0]
    run.withdraw(verifier)
    with expect_refusal(run.state, InvalidAudit, "or not Healthy"):
        run.report(verifier)


def test_k3_a_repeat_of_a_report_or_a_vote_is_a_success() -> None:
    run = start()
    verifier, target = accuse(run)
    key, height = run.state.clients[verifier].p2p, run.state.current.height
    same = ReportAudit(0, height, verifier, target, 3, GRADIENT, build_hash("result", target))
    assert is_repeat(run.state, key, same)
    assert not is_repeat(run.state, key, ReportAudit(0, height, verifier, target, 4, GRADIENT, same.commitment))
    assert not is_repeat(run.state, build_hash("x"), same)
    juror = convene(run)[0]
    run.judge(juror)
    for member, known in ((juror, True), (target, False)):
        again = JudgeChallenge(0, run.state.current.height, member, 0, 0)
        assert is_repeat(run.state, run.state.clients[member].p2p, again) is known
    assert not is_repeat(run.state, build_hash("x"), JudgeChallenge(0, run.state.current.height, juror, 0, 0))


@pytest.mark.parametrize("is_overlapping", [True, False])
def test_v12_the_quorum_of_the_jury_ejects_the_target(*, is_overlapping: bool) -> None:
    run = start(overlap=is_overlapping)
    _, target = accuse(run)
    jury = convene(run)
    assert run.state.current.height == run.state.challenges[0].deadline_height - 1
    run.run_round()  # it may judge in the round after its own, too
    needed = compute_quorum(len(jury))
    assert vote(run, jury, guilty=True) == needed
    assert run.state.clients[target].state is ClientState.EJECTED
    assert run.state.registry.slots[run.state.clients[target].slot].state is SlotState.BANNED
    assert run.state.challenges[0] == Challenge()
    assert run.state.clients[target].credits == 0
    run.finish_epoch()
    decode_state(encode_state(run.state))


def test_v12_target_and_accuser_are_not_in_the_jury_and_six_members_still_convict() -> None:
    run = start(6)
    verifier, target = accuse(run)
    jury = convene(run)
    assert sorted({*jury, verifier, target}) == list(range(6))
    assert vote(run, jury, guilty=True) == 3
    assert run.state.clients[target].state is ClientState.EJECTED


def test_v12_who_may_not_judge() -> None:
    run = start(8, witness_nodes=4)
    verifier, target = accuse(run)
    with expect_refusal(run.state, InvalidJudgement, "does not judge now"):
        run.judge(0)
    jury = convene(run)
    others = [m for m in range(8) if m not in get_witnesses(run.state.current)]
    for member in (verifier, target, others[0]):
        elected = run.state.challenges[0].deadline_height - 1
        with expect_refusal(run.state, InvalidJudgement, f"is not in the jury of round {elected},"):
            run.judge(member)
    with expect_refusal(run.state, InvalidJudgement, "challenge 1 is not open"):
        run.judge(jury[0], challenge=1)
    names: dict[str, Any]
    for names in ({"epoch": 1}, {"height": run.state.current.height - 1}):
        with expect_refusal(run.state, WrongRound, "T7"):
            run.judge(jury[0], **names)
    with expect_refusal(run.state, UnknownMember):
        run.apply(JudgeChallenge(0, run.state.current.height, jury[0], 0, 1), build_hash("x"))
    run.judge(jury[0])
    with expect_refusal(run.state, DuplicateWitness, "K3"):
        run.judge(jury[0], guilty=False)
    run.withdraw(jury[1])
    with expect_refusal(run.state, InvalidJudgement, "or not Healthy"):
        run.judge(jury[1])
    run.run_round()
    run.run_round()
    with expect_refusal(run.state, InvalidJudgement, "not open"):
        run.judge(jury[0])


def test_v12_the_second_false_accusation_of_a_run_ejects_the_accuser() -> None:
    run = start(3, verification_percent=40)
    counts: dict[int, int] = {}
    while 2 not in counts.values():
        verifier, target = accuse(run)
        slot = run.state.clients[verifier].slot
        vote(run, convene(run), guilty=False)
        counts[verifier] = counts.get(verifier, 0) + 1
        assert run.state.registry.slots[slot].false_challenges == counts[verifier]
        assert (run.state.clients[verifier].state is ClientState.EJECTED) is (counts[verifier] == 2)
        assert run.state.clients[target].state is ClientState.HEALTHY


def test_v12_a_false_accusation_stays_with_a_signer_that_leaves_and_joins_again() -> None:
    run = start(8, rounds_per_epoch=9)
    verifier, _ = accuse(run)
    vote(run, convene(run), guilty=False)
    signer, slot = run.state.clients[verifier].signer, run.state.clients[verifier].slot
    run.leave(verifier)
    run.finish_epoch()
    left = run.state.registry.slots[slot]
    assert (left.state, left.signer, left.false_challenges) == (SlotState.LEFT, signer, 1)
    run.join(verifier)
    assert run.state.registry.slots[slot].false_challenges == 1


def test_v12_who_withheld_its_opening_is_dropped_with_a_strike() -> None:
    run = start()
    _, target = accuse(run, WITHHELD)
    vote(run, convene(run), guilty=True)
    slot = run.state.registry.slots[run.state.clients[target].slot]
    assert (run.state.clients[target].state, slot.strikes, slot.state) == (ClientState.DROPPED, 1, SlotState.JOINED)


def test_v12_who_has_left_by_then_gets_the_strike_or_the_ban_all_the_same() -> None:
    for reason, strikes, state in ((WITHHELD, 1, SlotState.JOINED), (GRADIENT, 0, SlotState.BANNED)):
        run = start()
        _, target = accuse(run, reason)
        jury = convene(run)
        run.withdraw(target)
        vote(run, jury, guilty=True)
        slot = run.state.registry.slots[run.state.clients[target].slot]
        assert (slot.strikes, slot.state) == (strikes, state)


def test_v12_a_jury_that_does_not_agree_in_time_decides_nothing_and_the_target_is_first_in_four_lists() -> None:
    run = start(8)
    _, target = accuse(run)
    for place, juror in enumerate(convene(run)):
        run.judge(juror, guilty=place % 2 == 0)
    run.run_round()
    assert get_doubted(run.state, run.state.current.height) == []
    assert run.state.challenges[0].state is ChallengeState.OPEN
    run.run_round()
    assert get_doubted(run.state, run.state.current.height - 1) == [], "as it was in that round"
    for _ in range(4):
        assert run.state.challenges[0].state is ChallengeState.UNDECIDED
        assert get_doubted(run.state, run.state.current.height) == [target]
        run.run_round()
        assert get_doubted(run.state, run.state.current.height - 1) == [target]  # the list does not change meanwhile
    assert get_doubted(run.state, run.state.current.height) == []
    for _ in range(2):
        with expect_refusal(run.state, InvalidJudgement, "is not open"):
            run.judge(target)
        run.run_round()
    assert run.state.challenges[0] == Challenge()
    assert run.state.clients[target].state is ClientState.HEALTHY


@pytest.mark.parametrize(("accused", "left"), [(4, ChallengeState.UNDECIDED), (5, ChallengeState.FREE)])
def test_v12_what_decides_nothing_is_kept_only_where_few_are_accused(accused: int, left: ChallengeState) -> None:
    run = start(20, verification_percent=50)
    verifiers = go_to_verifiers(run, accused)
    targets = [m for m in range(20) if m not in verifiers]
    for verifier, target in zip(verifiers[:accused], targets, strict=False):
        run.report(verifier, target, GRADIENT)
    for _ in range(4):
        assert len(get_open(run)) == accused
        run.run_round()
    assert {one.state for one in run.state.challenges[:accused]} == {left}
    doubted = targets[:accused] if left is ChallengeState.UNDECIDED else []
    assert get_doubted(run.state, run.state.current.height) == doubted


def test_v14_a_run_that_shows_opens_no_challenge_and_doubts_all_the_same() -> None:
    run = start(convict=False)
    _, target = accuse(run)
    assert run.state.current.audits[0].status is AuditStatus.DOUBTED
    assert get_open(run) == []
    assert get_doubted(run.state, run.state.current.height) == []
    run.run_round()
    run.run_round()
    assert get_doubted(run.state, run.state.current.height) == [target]
    run.run_round()
    assert get_doubted(run.state, run.state.current.height) == []
    assert get_doubted(run.state, 1) == []


def test_v10_an_unclear_piece_accuses_nobody() -> None:
    run = start()
    accuse(run, UNCLEAR)
    assert get_open(run) == []
    assert run.state.current.audits[0].status is AuditStatus.DOUBTED


def test_v12_one_challenge_at_a_time_for_a_target_and_for_an_accuser_and_none_against_the_banned() -> None:
    run = start(8, verification_percent=60)
    first, second, third, *_ = go_to_verifiers(run, 3)
    target = next(m for m in range(8) if m not in find_verifiers(run))
    run.report(first, target, GRADIENT)
    run.report(second, target, GRADIENT)
    run.eject(second)
    run.report(third, second, GRADIENT)
    assert [audit.status for audit in run.state.current.audits] == [
        AuditStatus.CHALLENGED, AuditStatus.DOUBTED, AuditStatus.DOUBTED,
    ]  # fmt: skip
    while first not in find_verifiers(run) or run.state.current.audits:
        run.run_round()
        assert len(get_open(run)) == 1
    run.report(first, next(m for m in run.get_members() if m not in (first, target)), GRADIENT)
    assert len(get_open(run)) == 1


def test_v12_a_full_table_leaves_a_doubt() -> None:
    run = start(60, verification_percent=40)
    verifiers = go_to_verifiers(run, 17)
    targets = [m for m in range(60) if m not in verifiers]
    for verifier, target in zip(verifiers[:17], targets, strict=False):
        run.report(verifier, target, GRADIENT)
    assert len(get_open(run)) == 16
    assert run.state.current.audits[16].status is AuditStatus.DOUBTED


def play_short_epoch() -> tuple[Run, int]:
    run = start(6, verification_percent=50, rounds_per_epoch=2, min_clients=1)
    _, target = accuse(run)
    while run.state.run_state is not RunState.COOLDOWN:
        run.run_round()
    return run, target


def test_v15_cooldown_takes_a_credit_and_the_challenge_goes_on_in_the_next_epoch() -> None:
    run, target = play_short_epoch()
    credited = [client.credits for client in run.state.clients]
    assert credited == [2 - (member == target) for member in range(6)]
    assert run.state.epoch.credit_total == 11
    decode_state(encode_state(run.state))
    run.finish_epoch()
    run.rejoin()
    run.warm_up()
    challenge = run.state.challenges[0]
    assert (challenge.state, challenge.epoch, challenge.deadline_height) == (ChallengeState.OPEN, 0, 1)
    vote(run, convene(run), guilty=True)
    assert run.state.clients[target].state is ClientState.EJECTED
    run.finish_epoch()


def test_v15_a_challenge_that_no_jury_judges_is_carried_on_once_without_another_fine() -> None:
    run, target = play_short_epoch()
    run.finish_epoch()
    run.rejoin()
    run.warm_up()
    while run.state.run_state is not RunState.COOLDOWN:
        run.run_round()
    assert run.state.challenges[0] == Challenge()
    assert run.state.clients[target].credits == 2


def test_v15_votes_of_an_epoch_do_not_count_in_the_next_one() -> None:
    run = start(8)
    accuse(run)
    vote(run, convene(run)[:1], guilty=True)
    assert run.state.challenges[0].voters
    process_adjournment(run.state)
    challenge = run.state.challenges[0]
    assert (challenge.voters, challenge.guilty, challenge.innocent) == (0, 0, 0)


def test_v15_who_has_no_credit_left_loses_none() -> None:
    run = start(6)
    _, target = accuse(run)
    run.state.epoch.credit_total -= run.state.clients[target].credits
    run.state.clients[target].credits = 0
    process_adjournment(run.state)
    assert run.state.clients[target].credits == 0
    decode_state(encode_state(run.state))


def test_v15_a_challenge_of_an_earlier_epoch_costs_no_second_credit() -> None:
    run = start(6)
    _, target = accuse(run)
    run.state.clients[target].credits, run.state.challenges[0].epoch = 2, 9
    process_adjournment(run.state)
    assert run.state.clients[target].credits == 2
    assert run.state.challenges[0].deadline_height == 1


def test_v12_a_slot_in_a_challenge_is_neither_freed_nor_reclaimed() -> None:
    run, target = play_short_epoch()
    slot = run.state.challenges[0].target
    run.leave(target)
    run.finish_epoch()
    assert run.state.registry.slots[slot].state is SlotState.LEAVING
    run.state.progress.epoch = 9
    run.apply(ReclaimSlot())
    assert run.state.registry.slots[slot].state is SlotState.LEAVING
    run.state.challenges[0] = Challenge()
    run.join(*(number for number in range(6) if number != target))
    run.warm_up().finish_epoch()
    assert run.state.registry.slots[slot].state is SlotState.FREE


def test_v15_a_target_that_is_no_member_of_the_next_epoch_is_banned_by_its_slot() -> None:
    run, target = play_short_epoch()
    slot = run.state.challenges[0].target
    run.leave(target)
    run.finish_epoch()
    run.join(*(number for number in range(6) if number != target))
    run.warm_up()
    vote(run, convene(run), guilty=True)
    assert run.state.registry.slots[slot].state is SlotState.BANNED
    assert all(client.slot != slot for client in run.state.clients)


def test_v15_a_doubt_about_a_member_that_has_not_come_back_names_nobody() -> None:
    run, target = play_short_epoch()
    run.leave(target)
    run.finish_epoch()
    run.join(*(number for number in range(6) if number != target))
    run.warm_up()
    run.run_round()
    run.run_round()
    assert run.state.challenges[0].state is ChallengeState.UNDECIDED
    assert get_doubted(run.state, run.state.current.height) == []


def test_t2_the_last_heights_of_an_epoch_leave_room_for_deadlines() -> None:
    run = start()
    accuse(run)
    run.state.challenges[0].deadline_height = U32_MAX
    decode_state(encode_state(run.state))
    run.run_round()
    assert run.state.challenges[0].state is ChallengeState.OPEN
