extern crate std;

use std::boxed::Box;
use std::vec::Vec;

use super::*;
use crate::elections::is_witness;
use crate::enums::RunState;
use crate::testing::{build_context, build_run, STARTED};

const COMMITMENT: [u8; 32] = [3; 32];

/// A convicting run of six in round 1, with the numbers of its verifiers.
fn build_verified() -> (Box<State>, Vec<u16>) {
    let mut state = build_run(6);
    (state.config.verification_percent, state.config.convict) = (50, 1);
    state.rounds[1] = state.rounds[0];
    (state.rounds[1].height, state.epoch.rounds_head) = (1, 1);
    let verifiers = (0..6).filter(|&m| is_verifier(&state.rounds[1], &state.config, usize::from(m))).collect();
    (state, verifiers)
}

fn report(state: &mut State, verifier: u16, target: u16, reason: AuditReason) -> Result<bool, Refusal> {
    let piece = if target == NOBODY { NOBODY } else { 4 };
    let reason = u16::from(reason.0);
    let message = ReportAudit { epoch: 0, height: 1, member: verifier, target, piece, reason, commitment: &COMMITMENT };
    process_audit(state, &build_context(STARTED, usize::from(verifier)), &message)
}

/// Go on to the jury's round.
fn convene(state: &mut State) {
    state.rounds[3] = state.rounds[1];
    (state.rounds[3].height, state.epoch.rounds_head, state.rounds[3].audits_len) = (3, 3, 0);
}

fn vote(state: &mut State, member: u16, is_guilty: bool) -> Result<bool, Refusal> {
    let message = JudgeChallenge { epoch: 0, height: state.current().height, member, challenge: 0, is_guilty };
    process_judgement(state, &build_context(STARTED, usize::from(member)), &message)
}

#[test]
fn an_accusation_opens_a_challenge_and_its_jury_ejects_the_target() {
    let (mut state, verifiers) = build_verified();
    let accuser = verifiers[0];
    let target = (0..6).find(|one| !verifiers.contains(one)).unwrap();
    assert_eq!(report(&mut state, target, accuser, AuditReason::GRADIENT), Err(Refusal::InvalidAudit), "no verifier");
    assert_eq!(report(&mut state, accuser, accuser, AuditReason::GRADIENT), Err(Refusal::InvalidAudit), "itself");
    assert_eq!(report(&mut state, accuser, target, AuditReason::GRADIENT), Ok(true));
    assert_eq!(report(&mut state, accuser, target, AuditReason::GRADIENT), Err(Refusal::DuplicateWitness));
    assert!(state.rounds[1].audits()[0].status == AuditStatus::CHALLENGED);
    assert_eq!((state.challenges[0].height, state.challenges[0].deadline_height), (0, 4));
    assert_eq!(vote(&mut state, 0, true), Err(Refusal::InvalidJudgement), "too early");
    convene(&mut state);
    let jury: Vec<u16> = (0..6).filter(|&m| m != accuser && m != target).collect();
    assert!(jury.iter().all(|&m| is_witness(state.current(), usize::from(m))));
    assert_eq!(vote(&mut state, target, false), Err(Refusal::InvalidJudgement));
    assert_eq!(vote(&mut state, accuser, true), Err(Refusal::InvalidJudgement));
    for &member in &jury[..3] {
        assert!(state.clients[usize::from(target)].state == ClientState::HEALTHY);
        assert_eq!(vote(&mut state, member, true), Ok(true)); // three of the four who are left
    }
    assert!(state.clients[usize::from(target)].state == ClientState::EJECTED);
    assert!(state.challenges[0].state == ChallengeState::FREE);
    assert_eq!(vote(&mut state, jury[3], true), Err(Refusal::InvalidJudgement), "it is decided");
}

#[test]
fn the_second_false_accusation_of_a_run_ejects_the_accuser() {
    let (mut state, verifiers) = build_verified();
    let accuser = usize::from(verifiers[0]);
    let slot = usize::from(state.clients[accuser].slot);
    for strikes in 1..=2 {
        (state.epoch.rounds_head, state.rounds[1].audits_len) = (1, 0);
        assert_eq!(report(&mut state, verifiers[0], verifiers[1], AuditReason::LINK), Ok(true));
        convene(&mut state);
        for member in (0..6).filter(|m| !verifiers[..2].contains(m)).take(3) {
            assert_eq!(vote(&mut state, member, false), Ok(true));
        }
        assert_eq!(state.registry.slots[slot].false_challenges, strikes);
        assert_eq!(state.clients[accuser].state == ClientState::EJECTED, strikes == 2);
    }
}

#[test]
fn who_withheld_is_dropped_with_a_strike() {
    let (mut state, verifiers) = build_verified();
    assert_eq!(report(&mut state, verifiers[0], verifiers[1], AuditReason::WITHHELD), Ok(true));
    convene(&mut state);
    for member in (0..6).filter(|m| !verifiers[..2].contains(m)).take(3) {
        assert_eq!(vote(&mut state, member, true), Ok(true));
    }
    let target = usize::from(verifiers[1]);
    assert!(state.clients[target].state == ClientState::DROPPED && state.registry.slots[target].strikes == 1);
}

#[test]
fn a_run_that_shows_opens_no_challenge() {
    let (mut state, verifiers) = build_verified();
    state.config.convict = 0;
    assert_eq!(report(&mut state, verifiers[0], verifiers[1], AuditReason::GRADIENT), Ok(true));
    assert_eq!(report(&mut state, verifiers[1], NOBODY, AuditReason::NONE), Ok(true));
    assert!(state.rounds[1].audits()[0].status == AuditStatus::DOUBTED);
    assert!(state.rounds[1].audits()[1].status == AuditStatus::PASSED);
    assert!(state.challenges.iter().all(|one| one.state == ChallengeState::FREE));
}

#[test]
fn what_no_quorum_decides_is_kept_as_a_doubt_or_goes_on_in_the_next_epoch() {
    let (mut state, verifiers) = build_verified();
    report(&mut state, verifiers[0], verifiers[1], AuditReason::GRADIENT).unwrap();
    convene(&mut state);
    let juror = (0..6).find(|&m| m != verifiers[0] && m != verifiers[1]).unwrap();
    assert_eq!(vote(&mut state, juror, true), Ok(true));
    process_deadlines(&mut state);
    assert!(state.challenges[0].state == ChallengeState::OPEN, "its jury has a round more");
    let target = usize::from(verifiers[1]);
    (state.clients[target].credits, state.epoch.credit_total) = (2, 2);
    process_adjournment(&mut state);
    assert_eq!((state.clients[target].credits, state.epoch.credit_total), (1, 1));
    assert_eq!(state.challenges[0].deadline_height, 1);
    assert_eq!((state.challenges[0].guilty, state.challenges[0].innocent), (0, 0));
    assert!(state.challenges[0].voters == Challenge::ZERO.voters, "another jury begins anew");
    process_deadlines(&mut state);
    assert!(state.challenges[0].state == ChallengeState::UNDECIDED);
    assert_eq!(state.challenges[0].deadline_height, 9);
    process_adjournment(&mut state);
    assert!(state.challenges[0].state == ChallengeState::FREE && state.run_state == RunState::ROUND_TRAIN);
}

#[test]
fn what_no_quorum_decides_is_kept_only_where_few_are_accused() {
    for (accused, left) in [(4, ChallengeState::UNDECIDED), (5, ChallengeState::FREE)] {
        let mut state = build_verified().0;
        for number in 0..accused {
            state.challenges[number].state = ChallengeState::OPEN;
            state.challenges[number].deadline_height = 1;
        }
        process_deadlines(&mut state);
        assert!(state.challenges[..accused].iter().all(|one| one.state == left));
    }
}
