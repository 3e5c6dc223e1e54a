//! The work of a tick in each phase: one function per phase; each returns whether it changed anything.

use crate::audits::{process_adjournment, process_deadlines};
use crate::enums::{round_flag, ClientState, RunState};
use crate::errors::Refusal;
use crate::formation::{
    get_joined, process_abandonment, process_epoch_start, process_formation, process_warmup_failure,
};
use crate::hash::Hash;
use crate::health::{process_credits, process_health, process_settlement};
use crate::message::Entropy;
use crate::readiness::{find_starters, is_armed, is_start_due, Muster};
use crate::roster::get_healthy;
use crate::rounds::{process_arming, process_next_round, Draw};
use crate::state::{Client, State};
use crate::stopping::{compute_turn, process_cooldown_start, process_epoch_end, Closing, Turn};
use crate::tally::{is_round_agreed, process_slots, process_streaks, Records};
use crate::timeline::{get_attested_round, is_drain};
use crate::timing::{is_timed_out, process_state_change};

/// Make the transition that time or the record requires; return whether a byte changed (T2).
///
/// One call makes at most one transition: tick again until it returns false.
///
/// # Errors
/// `Halted`: the run does not move before the owner resumes it.
pub fn process_tick(state: &mut State, now: u64, slot: u64, entropy: &Entropy) -> Result<bool, Refusal> {
    match state.run_state {
        RunState::WAITING_FOR_MEMBERS => Ok(process_waiting_for_members(state, now)),
        RunState::WARMUP => Ok(process_warmup(state, now, slot, entropy)),
        RunState::ROUND_TRAIN => Ok(process_round_train(state, now, slot)),
        RunState::ROUND_WITNESS => Ok(process_round_witness(state, now, slot, entropy)),
        RunState::COOLDOWN => Ok(process_cooldown(state, now)),
        _ => Err(Refusal::Halted),
    }
}

/// Form an epoch when enough slots have joined and the extra time is over (M3).
fn process_waiting_for_members(state: &mut State, now: u64) -> bool {
    let extra_s = u64::from(state.config.waiting_for_members_extra_time);
    if !is_timed_out(now, state.state_start_unix, extra_s) {
        return false;
    }
    let joined = get_joined(state, now);
    if joined.count() < u32::from(state.config.init_min_clients) {
        return false;
    }
    process_formation(state, now, joined);
    true
}

/// Start round 0, or give up the epoch (T8). The tick that finds the start due arms the seed (E1).
fn process_warmup(state: &mut State, now: u64, slot: u64, entropy: &Entropy) -> bool {
    if is_armed(state) {
        return process_armed_start(state, now, slot, entropy);
    }
    let muster = Muster::count(state);
    if muster.healthy.all < u32::from(state.config.min_clients) {
        process_abandonment(state, now);
        return true;
    }
    if is_start_due(state, now, &muster) {
        return process_arming(state, slot);
    }
    let is_hopeless = muster.ready.all == muster.healthy.all; // no ready message can come any more
    if is_hopeless || is_timed_out(now, state.state_start_unix, state.config.warmup_time) {
        process_warmup_failure(state, now, muster.chosen);
        return true;
    }
    false
}

/// Begin round 0 once the entropy is there, whoever has left since the slot was armed (E1, E2).
///
/// If departures could call the start off, members that know the seed could have another one drawn by leaving.
fn process_armed_start(state: &mut State, now: u64, slot: u64, entropy: &Entropy) -> bool {
    let starters = find_starters(state);
    let is_there = |client: &Client| client.state == ClientState::HEALTHY && starters.has(client);
    if !state.clients().iter().any(is_there) {
        process_abandonment(state, now);
        return true;
    }
    match entropy {
        Entropy::Expired => process_arming(state, slot),
        Entropy::None => false,
        Entropy::Hash(hash) => {
            process_epoch_start(state, now, hash, starters);
            true
        }
    }
}

/// Enter RoundWitness when q witnesses are complete or time is up (T4), and arm the seed (E1).
fn process_round_train(state: &mut State, now: u64, slot: u64) -> bool {
    let is_complete = state.current().complete_len >= state.current().quorum;
    if !is_complete && !is_timed_out(now, state.state_start_unix, state.config.max_round_train_time) {
        return false;
    }
    process_arming(state, slot);
    process_state_change(state, now, RunState::ROUND_WITNESS);
    true
}

/// Close the round when it is agreed or time is up, and its entropy is available (T5, E2).
fn process_round_witness(state: &mut State, now: u64, slot: u64, entropy: &Entropy) -> bool {
    let is_agreed = is_round_agreed(state);
    if !is_agreed && !is_timed_out(now, state.state_start_unix, state.config.round_witness_time) {
        return false;
    }
    match entropy {
        Entropy::None => false,
        Entropy::Expired => process_arming(state, slot),
        Entropy::Hash(hash) => {
            if !is_agreed {
                state.current_mut().flags |= round_flag::BY_TIMEOUT;
            }
            process_close(state, now, hash);
            true
        }
    }
}

/// Close the running round: tally, health, credits, streaks, stop conditions, then the next phase (T6).
fn process_close(state: &mut State, now: u64, entropy: &Hash) {
    let draw = Draw::count_next(state);
    let attested = get_attested_round(state);
    let attested_members = attested.map(|index| state.rounds[index].members);
    state.epoch.first_round = 0;
    let round = state.current_mut();
    round.flags |= round_flag::CLOSED;
    let records = Records::count(round);
    process_slots(round, attested_members, &records);
    let (has_step, next_height) = (!is_drain(round), round.height.saturating_add(1));
    let mut healthy = get_healthy(state.clients());
    let mass_drop = process_health(state, attested, &records, &mut healthy);
    process_credits(state);
    process_deadlines(state);
    process_streaks(state, attested.is_some());
    if has_step {
        state.progress.step = state.progress.step.saturating_add(1);
    }
    let (turn, reason) = compute_turn(state, now, &Closing { healthy, mass_drop });
    state.epoch.stop_reason = reason;
    if turn == Turn::Cooldown {
        process_adjournment(state);
        return process_cooldown_start(state, now);
    }
    if turn == Turn::Drain {
        state.epoch.drain_from_height = next_height;
    }
    process_next_round(state, now, entropy, &draw);
}

/// Settle and end the epoch when `cooldown_time` is over or enough sources hold its weights (M7, P3, P10).
fn process_cooldown(state: &mut State, now: u64) -> bool {
    let needed = state.model.cooldown_sources;
    let is_kept = 0 < needed && needed <= state.epoch.checkpoint_sources;
    if !is_kept && !is_timed_out(now, state.state_start_unix, state.config.cooldown_time) {
        return false;
    }
    process_settlement(state);
    process_epoch_end(state, now);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::process_departure;
    use crate::message::WarmupWitness;
    use crate::readiness::process_ready;
    use crate::testing::{build_context, build_run, build_waiting, ENTROPY, STARTED};

    fn tick(state: &mut State, now: u64, entropy: &Entropy) -> bool {
        process_tick(state, now, now, entropy).unwrap()
    }

    #[test]
    fn a_round_passes_through_its_phases_and_waits_for_entropy() {
        let mut state = build_run(3);
        let hash = Entropy::Hash(&ENTROPY);
        assert!(!tick(&mut state, STARTED + 59, &hash));
        assert!(tick(&mut state, STARTED + 60, &hash) && state.run_state == RunState::ROUND_WITNESS);
        assert_eq!(state.current().entropy_slot, STARTED + 60);
        assert!(!tick(&mut state, STARTED + 64, &hash) && !tick(&mut state, STARTED + 65, &Entropy::None));
        assert!(tick(&mut state, STARTED + 66, &Entropy::Expired), "armed again");
        assert_eq!((state.current().entropy_slot, state.current().flags), (STARTED + 66, 0));
        assert!(tick(&mut state, STARTED + 67, &hash) && state.run_state == RunState::ROUND_TRAIN);
        let closed = round_flag::CLOSED | round_flag::BY_TIMEOUT | round_flag::VOID;
        assert_eq!((state.rounds[0].flags, state.current().height, state.progress.step), (closed, 1, 2));
        assert_eq!((state.epoch.digest_streak, state.epoch.void_streak, state.epoch.first_round), (1, 1, 0));
    }

    #[test]
    fn enough_complete_witnesses_end_the_training() {
        let mut state = build_run(3);
        state.current_mut().complete_len = 1;
        assert!(!tick(&mut state, STARTED, &Entropy::None));
        state.current_mut().complete_len = 2;
        assert!(tick(&mut state, STARTED, &Entropy::None) && state.run_state == RunState::ROUND_WITNESS);
    }

    #[test]
    fn enough_sources_end_a_cooldown_early() {
        let mut state = build_run(1);
        (state.run_state, state.config.cooldown_time) = (RunState::COOLDOWN, 100);
        assert!(!tick(&mut state, STARTED + 99, &Entropy::None));
        (state.model.cooldown_sources, state.epoch.checkpoint_sources) = (2, 1);
        assert!(!tick(&mut state, STARTED + 99, &Entropy::None));
        state.epoch.checkpoint_sources = 2;
        assert!(tick(&mut state, STARTED + 99, &Entropy::None) && state.progress.epoch == 1);
    }

    #[test]
    fn a_warmup_waits_for_its_members_and_gives_up_without_them() {
        let mut state = build_waiting(2);
        assert!(tick(&mut state, STARTED, &Entropy::None) && state.run_state == RunState::WARMUP);
        assert!(!tick(&mut state, STARTED + 59, &Entropy::None));
        assert!(tick(&mut state, STARTED + 60, &Entropy::None) && state.run_state == RunState::WAITING_FOR_MEMBERS);
        assert!(!tick(&mut state, STARTED + 90, &Entropy::None), "the joins were taken back");
    }

    #[test]
    fn an_armed_start_takes_place_whoever_leaves() {
        let mut state = build_waiting(4);
        state.config.min_clients = 3;
        tick(&mut state, STARTED, &Entropy::None);
        let show = |state: &mut State, member: usize| {
            let ready = WarmupWitness { epoch: 0, member: member as u16, digest: &[7; 32] };
            process_ready(state, &build_context(STARTED, member), &ready)
        };
        assert!((0..3).all(|member| show(&mut state, member).unwrap()));
        assert!(tick(&mut state, STARTED + 60, &Entropy::None) && state.current().entropy_slot == STARTED + 60);
        assert_eq!(show(&mut state, 3), Err(Refusal::InvalidRunState), "too late");
        for member in [0, 1] {
            process_departure(&mut state, STARTED, member, ClientState::WITHDRAWN);
        }
        assert!(!tick(&mut state, STARTED + 90, &Entropy::None), "also with fewer than min_clients");
        assert!(tick(&mut state, STARTED + 90, &Entropy::Hash(&ENTROPY)) && state.run_state == RunState::ROUND_TRAIN);
        assert!(state.current().members.members().eq([0, 1, 2]) && state.clients[3].state == ClientState::DROPPED);
    }

    #[test]
    fn an_armed_start_is_given_up_when_all_its_starters_have_left() {
        let mut state = build_waiting(2);
        tick(&mut state, STARTED, &Entropy::None);
        let ready = WarmupWitness { epoch: 0, member: 0, digest: &[7; 32] };
        process_ready(&mut state, &build_context(STARTED, 0), &ready).unwrap();
        assert!(tick(&mut state, STARTED + 60, &Entropy::None));
        process_departure(&mut state, STARTED, 0, ClientState::WITHDRAWN);
        assert!(tick(&mut state, STARTED + 61, &Entropy::None));
        assert!(state.run_state == RunState::WAITING_FOR_MEMBERS && state.current().entropy_slot == 0);
    }

    #[test]
    fn a_halted_run_does_not_move() {
        let mut state = build_run(1);
        for run_state in [RunState::UNINITIALIZED, RunState::FINISHED, RunState::PAUSED] {
            state.run_state = run_state;
            assert_eq!(process_tick(&mut state, 9, 9, &Entropy::None), Err(Refusal::Halted));
        }
    }
}
