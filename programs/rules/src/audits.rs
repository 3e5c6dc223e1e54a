//! Audits on record, challenges and their juries (V9, V12, V14, V15).
//!
//! A verifier names the first member whose work it doubts. Where the run convicts, that opens a challenge, and the
//! witnesses of a later round judge it: a seed draws them that nobody knew when the accusation was made.

use crate::elections::{compute_quorum, find_elected_parties, is_verifier};
use crate::enums::{AuditReason, AuditStatus, ChallengeState, ClientState, SlotState};
use crate::errors::Refusal;
use crate::hash::is_zero;
use crate::health::{process_drop, process_strike};
use crate::limits::{FALSE_CHALLENGE_LIMIT, NOBODY};
use crate::membership::process_expulsion;
use crate::message::{JudgeChallenge, ReportAudit};
use crate::roster::{check_member, compute_exit_height, find_member};
use crate::state::{Audit, Challenge, State};
use crate::timeline::{check_round, get_round};
use crate::Context;

const JUDGED_AFTER_ROUNDS: u32 = 3; // the audited round's jury are the witnesses of this later round
const DOUBTED_ROUNDS: u32 = 6; // a challenge that decided nothing is kept so long,
const MOST_BUSY: usize = 4; // if no more entries than these are in use
const REARMED_HEIGHT: u32 = 1; // until the close of which the jury of a new epoch's first round judges

/// Put what a verifier found on record; open a challenge if it accuses somebody (V9, V12).
pub fn process_audit(state: &mut State, context: &Context, message: &ReportAudit) -> Result<bool, Refusal> {
    let index = check_audit(state, context, message)?;
    let reason = AuditReason(message.reason as u8); // a known one: it is checked
    let opened = message.reason > u16::from(AuditReason::UNCLEAR.0) && process_challenge(state, message, reason);
    let status = match (message.target, opened) {
        (NOBODY, _) => AuditStatus::PASSED,
        (_, false) => AuditStatus::DOUBTED,
        (_, true) => AuditStatus::CHALLENGED,
    };
    let ReportAudit { member: verifier, target, piece, commitment, .. } = *message;
    let round = &mut state.rounds[index];
    let audit = Audit { verifier, target, status, reason, piece, commit: *commitment, _reserve: [0; 24] };
    round.audits[usize::from(round.audits_len)] = audit;
    round.audits_len += 1;
    Ok(true)
}

/// Check a verifier's finding; return the place of the round in which it was elected.
fn check_audit(state: &State, context: &Context, message: &ReportAudit) -> Result<usize, Refusal> {
    let (running, height) = (state.current().height, message.height);
    check_round(state, state.progress.epoch, running)?; // some round is running
    let is_now = message.epoch == state.progress.epoch && (running == height || Some(running) == height.checked_add(1));
    let index = get_round(state, height).filter(|_| is_now).ok_or(Refusal::WrongRound)?;
    let (round, member) = (&state.rounds[index], usize::from(message.member));
    check_member(state, context.now, &context.sender, member)?;
    if state.clients[member].state != ClientState::HEALTHY || !is_verifier(round, &state.config, member) {
        return Err(Refusal::InvalidAudit);
    }
    if round.audits().iter().any(|audit| audit.verifier == message.member) {
        return Err(Refusal::DuplicateWitness); // K3
    }
    let audited = height.checked_sub(1).and_then(|before| get_round(state, before)).ok_or(Refusal::InvalidAudit)?;
    let named = usize::from(message.target);
    let is_clean = message.piece == NOBODY && message.reason == u16::from(AuditReason::NONE.0);
    let is_other = named != member && state.rounds[audited].members.get(named);
    let is_named = is_other && message.reason != u16::from(AuditReason::NONE.0);
    let is_right = if message.target == NOBODY { is_clean } else { is_named };
    let is_known = message.reason <= u16::from(AuditReason::LINK.0) && !is_zero(message.commitment);
    (is_right && is_known).then_some(index).ok_or(Refusal::InvalidAudit)
}

/// Open a challenge; return whether there is one.
///
/// There is none in a run that only shows, and while the accuser has one open, the target is accused already or banned,
/// or the table is full.
fn process_challenge(state: &mut State, message: &ReportAudit, reason: AuditReason) -> bool {
    let slot_of = |member: u16| state.clients[usize::from(member)].slot;
    let (verifier, target) = (slot_of(message.member), slot_of(message.target));
    let opened_height = state.current().height;
    let is_open = |one: &Challenge| one.state == ChallengeState::OPEN;
    let is_busy = |one: &Challenge| is_open(one) && (one.verifier == verifier || one.target == target);
    let is_banned = state.registry.slots[usize::from(target)].state == SlotState::BANNED;
    let free = state.challenges.iter().position(|one| one.state == ChallengeState::FREE);
    let Some(free) = free else { return false };
    if state.config.convict == 0 || is_banned || state.challenges.iter().any(is_busy) {
        return false;
    }
    let height = message.height - 1; // it is checked that there is a round before
    state.challenges[free] = Challenge {
        target_commitment: *message.commitment,
        height,
        opened_height,
        deadline_height: height.saturating_add(JUDGED_AFTER_ROUNDS + 1),
        verifier,
        target,
        state: ChallengeState::OPEN,
        reason,
        epoch: message.epoch,
        piece: message.piece,
        ..Challenge::ZERO
    };
    true
}

/// Count a juror's vote; the quorum of the jury decides (V12).
pub fn process_judgement(state: &mut State, context: &Context, message: &JudgeChallenge) -> Result<bool, Refusal> {
    let quorum = check_judgement(state, context, message)?;
    let number = usize::from(message.challenge);
    let challenge = &mut state.challenges[number];
    challenge.voters.set(usize::from(message.member));
    challenge.guilty = challenge.guilty.saturating_add(u8::from(message.is_guilty));
    challenge.innocent = challenge.innocent.saturating_add(u8::from(!message.is_guilty));
    let Challenge { guilty, innocent, .. } = *challenge;
    if u32::from(guilty) >= quorum {
        process_conviction(state, number);
        state.challenges[number] = Challenge::ZERO;
    } else if u32::from(innocent) >= quorum {
        process_acquittal(state, number);
        state.challenges[number] = Challenge::ZERO;
    }
    Ok(true)
}

/// Check a juror's vote; return the quorum of the jury: the elected witnesses without target and accuser.
fn check_judgement(state: &State, context: &Context, message: &JudgeChallenge) -> Result<u32, Refusal> {
    check_round(state, message.epoch, message.height)?;
    let member = usize::from(message.member);
    check_member(state, context.now, &context.sender, member)?;
    let challenge = &state.challenges[usize::from(message.challenge)];
    let is_now = message.height == challenge.deadline_height || message.height + 1 == challenge.deadline_height;
    if challenge.state != ChallengeState::OPEN || !is_now {
        return Err(Refusal::InvalidJudgement);
    }
    let elected = challenge.deadline_height.checked_sub(1).and_then(|height| get_round(state, height));
    let round = &state.rounds[elected.ok_or(Refusal::InvalidJudgement)?];
    let client = &state.clients[member];
    let parties = [challenge.target, challenge.verifier];
    let found = parties.map(|slot| find_member(state, usize::from(slot)));
    let [is_juror, has_target, has_accuser] = find_elected_parties(round, [Some(member), found[0], found[1]]);
    if client.state != ClientState::HEALTHY || parties.contains(&client.slot) || !is_juror {
        return Err(Refusal::InvalidJudgement);
    }
    if challenge.voters.get(member) {
        return Err(Refusal::DuplicateWitness); // K3
    }
    let left = u32::from(round.witnesses_expected).saturating_sub(u32::from(has_target) + u32::from(has_accuser));
    Ok(compute_quorum(left))
}

/// Eject the target; whoever withheld what it owed is dropped with a strike, for silence.
fn process_conviction(state: &mut State, number: usize) {
    let Challenge { target, reason, .. } = state.challenges[number];
    let target = usize::from(target);
    if reason != AuditReason::WITHHELD {
        return process_expulsion(state, target);
    }
    let (member, height) = (find_member(state, target), compute_exit_height(state));
    let State { clients, registry, .. } = state;
    match member {
        Some(member) if clients[member].state == ClientState::HEALTHY => {
            process_drop(registry, &mut clients[member], height, true);
        }
        _ => process_strike(&mut registry.slots[target], registry.next_active),
    }
}

/// Count a false accusation; the second one of a run ejects the accuser.
fn process_acquittal(state: &mut State, number: usize) {
    let accuser = usize::from(state.challenges[number].verifier);
    let slot = &mut state.registry.slots[accuser];
    slot.false_challenges = slot.false_challenges.saturating_add(1);
    if slot.false_challenges >= FALSE_CHALLENGE_LIMIT {
        process_expulsion(state, accuser);
    }
}

/// At close: what no quorum decided in time decides nothing (V12).
///
/// It is kept for a while as a doubt, unless others need its entry.
pub fn process_deadlines(state: &mut State) {
    let height = state.current().height;
    let is_kept = state.challenges.iter().filter(|one| one.state != ChallengeState::FREE).count() <= MOST_BUSY;
    for challenge in &mut state.challenges {
        if challenge.state == ChallengeState::FREE || height < challenge.deadline_height {
            continue;
        }
        if challenge.state == ChallengeState::OPEN && is_kept {
            challenge.state = ChallengeState::UNDECIDED;
            challenge.deadline_height = height.saturating_add(DOUBTED_ROUNDS);
        } else {
            *challenge = Challenge::ZERO;
        }
    }
}

/// At the start of Cooldown: an open challenge costs its target a credit, and goes on in the next epoch (V15).
pub fn process_adjournment(state: &mut State) {
    for number in 0..state.challenges.len() {
        let Challenge { state: stands, target, epoch, .. } = state.challenges[number];
        if stands == ChallengeState::UNDECIDED {
            state.challenges[number] = Challenge::ZERO;
        }
        if stands != ChallengeState::OPEN {
            continue;
        }
        if epoch == state.progress.epoch {
            process_lost_credit(state, usize::from(target));
        }
        let challenge = &mut state.challenges[number];
        challenge.deadline_height = REARMED_HEIGHT;
        (challenge.voters, challenge.guilty, challenge.innocent) = (Challenge::ZERO.voters, 0, 0);
    }
}

fn process_lost_credit(state: &mut State, number: usize) {
    if let Some(member) = find_member(state, number) {
        let client = &mut state.clients[member];
        state.epoch.credit_total -= u64::from(client.credits > 0);
        client.credits = client.credits.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests;
