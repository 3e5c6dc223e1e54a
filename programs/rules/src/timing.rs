//! Time-outs (T1), the single place where the run state changes, and the clocks after a restart (K2).

use crate::enums::RunState;
use crate::errors::Refusal;
use crate::message::Recover;
use crate::roster::is_in_epoch;
use crate::state::{Config, State};
use crate::Context;

/// Seconds since `start`; 0 if the clock went backwards (T1).
pub fn compute_elapsed(now: u64, start: u64) -> u64 {
    now.saturating_sub(start)
}

/// Whether a time-out of `duration_s` seconds since `start` fires; a duration of 0 still takes one second (T1).
pub fn is_timed_out(now: u64, start: u64, duration_s: u64) -> bool {
    let elapsed = compute_elapsed(now, start);
    elapsed >= duration_s && elapsed > 0
}

/// Enter another run state and restart its clock.
pub fn process_state_change(state: &mut State, now: u64, run_state: RunState) {
    state.run_state = run_state;
    state.state_start_unix = now;
}

/// Shift the run's clocks by the coordinator's downtime; return whether that changed anything (K2).
///
/// The running phase keeps at least `reconnect_s` seconds, so that members can reconnect.
pub fn process_recovery(state: &mut State, context: &Context, message: &Recover) -> Result<bool, Refusal> {
    let Some(duration_s) = get_duration_s(&state.config, state.run_state) else {
        return Ok(false);
    };
    let before = state.state_start_unix;
    let shifted = before.saturating_add(message.gap_s);
    let latest = u128::from(context.now) + u128::from(message.reconnect_s); // the phase ends no earlier
    let kept = latest.saturating_sub(u128::from(duration_s)).min(u128::from(u64::MAX)) as u64;
    let shift = shifted.max(kept) - before;
    if shift == 0 {
        return Ok(false);
    }
    state.state_start_unix += shift;
    if is_in_epoch(state) {
        let epoch = &mut state.epoch;
        epoch.start_timestamp = epoch.start_timestamp.saturating_add(shift);
        if epoch.ready_quorum_unix != 0 {
            epoch.ready_quorum_unix = epoch.ready_quorum_unix.saturating_add(shift);
        }
    }
    if state.in_round() {
        let round = state.current_mut();
        round.started_unix = round.started_unix.saturating_add(shift);
    }
    Ok(true)
}

/// The time-out of a phase in seconds; None for a phase without one.
fn get_duration_s(config: &Config, run_state: RunState) -> Option<u64> {
    match run_state {
        RunState::WAITING_FOR_MEMBERS => Some(u64::from(config.waiting_for_members_extra_time)),
        RunState::WARMUP => Some(config.warmup_time),
        RunState::ROUND_TRAIN => Some(config.max_round_train_time),
        RunState::ROUND_WITNESS => Some(config.round_witness_time),
        RunState::COOLDOWN => Some(config.cooldown_time),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::build_state;

    #[test]
    fn a_time_out_takes_at_least_a_second_and_ignores_clocks_that_go_backwards() {
        assert!(!is_timed_out(5, 5, 0) && is_timed_out(6, 5, 0));
        assert!(!is_timed_out(14, 5, 10) && is_timed_out(15, 5, 10));
        assert!(!is_timed_out(3, 5, 0) && !is_timed_out(0, u64::MAX, 0));
    }

    fn recover(state: &mut State, now: u64, gap_s: u64, reconnect_s: u64) -> bool {
        let context = Context { now, slot: 0, sender: [0; 32] };
        process_recovery(state, &context, &Recover { gap_s, reconnect_s }).unwrap()
    }

    #[test]
    fn all_clocks_move_by_the_gap() {
        let mut state = build_state();
        state.run_state = RunState::ROUND_TRAIN;
        state.config.max_round_train_time = 100;
        (state.state_start_unix, state.epoch.start_timestamp) = (1_000, 900);
        assert!(recover(&mut state, 1_040, 30, 15));
        assert_eq!((state.state_start_unix, state.epoch.start_timestamp), (1_030, 930));
        assert_eq!((state.epoch.ready_quorum_unix, state.rounds[0].started_unix), (0, 30));
        assert!(recover(&mut state, 1_129, 0, 15)); // 1 second is left, 15 are kept
        assert_eq!(state.state_start_unix, 1_044);
        assert!(!recover(&mut state, 1_129, 0, 15));
    }

    #[test]
    fn clocks_stop_at_the_end_of_time() {
        let mut state = build_state();
        state.run_state = RunState::COOLDOWN;
        (state.state_start_unix, state.epoch.start_timestamp) = (5, u64::MAX - 3);
        state.epoch.ready_quorum_unix = 1;
        assert!(recover(&mut state, u64::MAX, u64::MAX, u64::MAX));
        assert_eq!((state.state_start_unix, state.epoch.start_timestamp), (u64::MAX, u64::MAX));
        assert_eq!(state.epoch.ready_quorum_unix, u64::MAX - 4);
    }

    #[test]
    fn a_halted_run_has_no_clock_to_move() {
        let mut state = build_state();
        state.run_state = RunState::PAUSED;
        assert!(!recover(&mut state, 9, 9, 9));
    }
}
