//! The end of an epoch: stop conditions, drain, Cooldown (P1 to P4, S5, P7, H3).

use crate::bits::Bitmap;
use crate::enums::{round_flag, RunState, StopReason};
use crate::limits::{DIGEST_LIMIT_ROUNDS, MAX_EPOCH_ROUNDS, MAX_HEIGHT, NO_UPLOADER, VOID_LIMIT_ROUNDS};
use crate::rounds::get_next_data_index;
use crate::state::{Mark, State};
use crate::tally::is_digest_agreed;
use crate::timeline::{is_drain, is_last_drain};
use crate::timing::{is_timed_out, process_state_change};

/// The step after the close of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Another round like this one; in a drain: the next drain round, or the last one again (P2).
    GoOn,
    /// The first drain round.
    Drain,
    Cooldown,
}

/// What the close of a round has found out about its members.
pub struct Closing {
    /// Those who go on.
    pub healthy: Bitmap,
    /// H3 applied.
    pub mass_drop: bool,
}

impl Closing {
    /// Whether the round has lost members, so that the remaining ones may still agree among themselves.
    fn took_out(&self, state: &State) -> bool {
        !state.current().members.without(self.healthy).is_empty()
    }
}

/// The step after the closing round, and the reason for it (P1, P2).
pub fn compute_turn(state: &State, now: u64, closing: &Closing) -> (Turn, StopReason) {
    let round = state.current();
    if closing.mass_drop {
        return (Turn::Cooldown, StopReason::MASS_DROP);
    }
    if closing.healthy.is_empty() {
        return (Turn::Cooldown, StopReason::MIN_CLIENTS);
    }
    if round.height >= MAX_HEIGHT {
        return (Turn::Cooldown, StopReason::EPOCH_LENGTH);
    }
    let hopeless = find_disagreement(state);
    if hopeless != StopReason::NONE && !closing.took_out(state) {
        return (Turn::Cooldown, hopeless);
    }
    if is_drain(round) {
        let done = is_last_drain(&state.config, &state.epoch, round.height) && is_digest_agreed(state);
        return (if done { Turn::Cooldown } else { Turn::GoOn }, state.epoch.stop_reason);
    }
    let reason = if hopeless != StopReason::NONE { hopeless } else { find_stop(state, now, closing.healthy) };
    (if reason == StopReason::NONE { Turn::GoOn } else { Turn::Drain }, reason)
}

/// The reason to give up agreement: two rounds in a row without a digest, or two void ones and no digest.
fn find_disagreement(state: &State) -> StopReason {
    if state.epoch.digest_streak >= DIGEST_LIMIT_ROUNDS {
        return StopReason::NO_DIGEST; // S5
    }
    if is_void_again(state) && !is_digest_agreed(state) {
        return StopReason::VOID; // P7
    }
    StopReason::NONE
}

fn is_void_again(state: &State) -> bool {
    // the round itself must be void: if nothing was due, the streak keeps its old value
    state.current().flags & round_flag::VOID != 0 && state.epoch.void_streak >= VOID_LIMIT_ROUNDS
}

/// The reason why a round with data is the epoch's last one; NONE if it is not (P1).
fn find_stop(state: &State, now: u64, healthy: Bitmap) -> StopReason {
    let (config, epoch) = (&state.config, &state.epoch);
    let most = if config.rounds_per_epoch == 0 { MAX_EPOCH_ROUNDS } else { config.rounds_per_epoch };
    if state.current().height + 1 >= most.min(MAX_EPOCH_ROUNDS) {
        return StopReason::EPOCH_LENGTH;
    }
    if config.epoch_time != 0 && is_timed_out(now, epoch.start_timestamp, config.epoch_time) {
        return StopReason::EPOCH_LENGTH;
    }
    if is_run_done(state) {
        return StopReason::TOTAL_STEPS;
    }
    if state.pending_pause != 0 {
        return StopReason::PAUSE;
    }
    if healthy.count() < u32::from(config.min_clients) {
        return StopReason::MIN_CLIENTS;
    }
    if is_void_again(state) {
        StopReason::VOID
    } else {
        StopReason::NONE
    }
}

/// Whether the record has reached `total_steps`.
pub fn is_run_done(state: &State) -> bool {
    state.progress.step >= state.config.total_steps
}

/// In Cooldown: whether the epoch certified nothing and its work is lost (P3).
fn is_given_up(state: &State) -> bool {
    state.certified.step <= state.epoch.start_step
}

/// Begin Cooldown; a full digest agreed on in the last drain round becomes `certified` (P3).
pub fn process_cooldown_start(state: &mut State, now: u64) {
    let round = state.current();
    if is_last_drain(&state.config, &state.epoch, round.height) && is_digest_agreed(state) {
        state.certified = Mark {
            digest: round.agreed_digest,
            epoch: state.progress.epoch,
            uploader: NO_UPLOADER,
            step: state.progress.step,
            data_index: get_next_data_index(round),
        };
    }
    process_state_change(state, now, RunState::COOLDOWN);
}

/// End Cooldown: set progress to `certified` (P3), then pause, finish or wait for members (P4).
///
/// If the epoch certified nothing, this rolls progress back. The epoch number rises in any case, because signatures
/// name it.
pub fn process_epoch_end(state: &mut State, now: u64) {
    let pauses = state.pending_pause != 0;
    // a cold start is over after an epoch that certified something
    let is_cold = pauses || (state.epoch.cold_start != 0 && is_given_up(state));
    let progress = &mut state.progress;
    (progress.step, progress.epoch_start_data_index) = (state.certified.step, state.certified.data_index);
    let was_last = progress.epoch == u16::MAX; // no epoch number is left for signatures
    progress.epoch = progress.epoch.saturating_add(1);
    state.epoch.cold_start = u8::from(is_cold);
    state.pending_pause = 0;
    let next = if was_last {
        RunState::FINISHED // after a pause there would be a second epoch with this number
    } else if pauses {
        RunState::PAUSED
    } else if is_run_done(state) {
        RunState::FINISHED
    } else {
        RunState::WAITING_FOR_MEMBERS
    };
    process_state_change(state, now, next);
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;

    use super::*;
    use crate::testing::{build_run, STARTED};

    const NOW: u64 = STARTED + 30;

    fn build_closing() -> (Box<State>, Closing) {
        let mut state = build_run(4);
        state.current_mut().flags = round_flag::DIGEST | round_flag::ROOT | round_flag::CLOSED;
        (state, Closing { healthy: Bitmap::below(4), mass_drop: false })
    }

    fn turn(change: impl Fn(&mut State, &mut Closing)) -> (Turn, StopReason) {
        let (mut state, mut closing) = build_closing();
        change(&mut state, &mut closing);
        compute_turn(&state, NOW, &closing)
    }

    #[test]
    fn a_round_with_data_goes_on_until_something_stops_it() {
        assert_eq!(turn(|_, _| ()), (Turn::GoOn, StopReason::NONE));
        let drain = |reason| (Turn::Drain, reason);
        assert_eq!(turn(|s, _| s.config.rounds_per_epoch = 1), drain(StopReason::EPOCH_LENGTH));
        assert_eq!(turn(|s, _| s.config.rounds_per_epoch = 2), (Turn::GoOn, StopReason::NONE));
        assert_eq!(turn(|s, _| s.current_mut().height = MAX_EPOCH_ROUNDS - 1), drain(StopReason::EPOCH_LENGTH));
        assert_eq!(turn(|s, _| s.config.epoch_time = 30), drain(StopReason::EPOCH_LENGTH));
        assert_eq!(turn(|s, _| s.config.epoch_time = 31), (Turn::GoOn, StopReason::NONE));
        assert_eq!(turn(|s, _| s.config.total_steps = 1), drain(StopReason::TOTAL_STEPS));
        assert_eq!(turn(|s, _| s.pending_pause = 1), drain(StopReason::PAUSE));
        assert_eq!(turn(|s, _| s.config.min_clients = 5), drain(StopReason::MIN_CLIENTS));
    }

    #[test]
    fn an_epoch_without_hope_ends_at_once() {
        let end = |reason| (Turn::Cooldown, reason);
        assert_eq!(turn(|_, closing| closing.mass_drop = true), end(StopReason::MASS_DROP));
        assert_eq!(turn(|_, closing| closing.healthy = Bitmap::EMPTY), end(StopReason::MIN_CLIENTS));
        assert_eq!(turn(|s, _| s.current_mut().height = MAX_HEIGHT), end(StopReason::EPOCH_LENGTH));
        assert_eq!(turn(|s, _| s.epoch.digest_streak = 2), end(StopReason::NO_DIGEST));
        let void = |s: &mut State| (s.epoch.void_streak, s.current_mut().flags) = (2, round_flag::VOID);
        assert_eq!(turn(|s, _| void(s)), end(StopReason::VOID));
    }

    #[test]
    fn those_who_are_left_after_a_loss_may_still_agree() {
        let lose = |closing: &mut Closing| closing.healthy = Bitmap::below(3);
        let stop = |s: &mut State, closing: &mut Closing| {
            s.epoch.digest_streak = 2;
            lose(closing);
        };
        assert_eq!(turn(stop), (Turn::Drain, StopReason::NO_DIGEST));
        let voids = |s: &mut State, flags: u8| (s.epoch.void_streak, s.current_mut().flags) = (2, flags);
        assert_eq!(turn(|s, _| voids(s, round_flag::VOID | round_flag::DIGEST)), (Turn::Drain, StopReason::VOID));
        assert_eq!(turn(|s, _| voids(s, round_flag::DIGEST)), (Turn::GoOn, StopReason::NONE), "not void itself");
    }

    #[test]
    fn a_drain_ends_with_a_full_digest_of_its_last_round() {
        let drains = |height: u32, flags: u8| {
            turn(move |s, _| {
                (s.config.overlap, s.epoch.drain_from_height, s.epoch.stop_reason) = (1, 5, StopReason::PAUSE);
                let round = s.current_mut();
                (round.height, round.flags) = (height, flags | round_flag::DRAIN);
            })
        };
        let full = round_flag::DIGEST | round_flag::FULL;
        assert_eq!(drains(5, full), (Turn::GoOn, StopReason::PAUSE));
        assert_eq!(drains(6, full), (Turn::Cooldown, StopReason::PAUSE));
        assert_eq!(drains(6, round_flag::DIGEST), (Turn::GoOn, StopReason::PAUSE));
    }

    #[test]
    fn only_a_full_digest_of_the_last_drain_is_certified() {
        for (height, flags, is_certified) in [(5, 12, true), (5, 4, false), (4, 12, false)] {
            let (mut state, _) = build_closing();
            state.epoch.drain_from_height = 5;
            let before = state.certified.digest;
            let round = state.current_mut();
            (round.height, round.flags, round.agreed_digest, round.data_index) = (height, flags, [5; 32], 70);
            process_cooldown_start(&mut state, NOW);
            assert_eq!(state.certified.digest == [5; 32], is_certified);
            assert!(is_certified || state.certified.digest == before);
            if is_certified {
                assert_eq!((state.certified.step, state.certified.data_index), (1, 70 + 256));
            }
        }
    }

    fn end(change: impl Fn(&mut State)) -> Box<State> {
        let (mut state, _) = build_closing();
        (state.run_state, state.progress.step, state.certified.step) = (RunState::COOLDOWN, 30, 20);
        state.certified.data_index = 5_000;
        change(&mut state);
        process_epoch_end(&mut state, NOW);
        state
    }

    #[test]
    fn an_epoch_ends_at_what_is_certified() {
        let state = end(|_| ());
        assert_eq!((state.progress.step, state.progress.epoch_start_data_index, state.progress.epoch), (20, 5_000, 1));
        assert!(state.run_state == RunState::WAITING_FOR_MEMBERS && state.state_start_unix == NOW);
        assert!(end(|s| s.config.total_steps = 20).run_state == RunState::FINISHED);
        let paused = end(|s| s.pending_pause = 1);
        assert!(paused.run_state == RunState::PAUSED && paused.pending_pause == 0 && paused.epoch.cold_start == 1);
    }

    #[test]
    fn the_last_epoch_number_ends_the_run() {
        let state = end(|s| (s.progress.epoch, s.pending_pause) = (u16::MAX, 1));
        assert!(state.run_state == RunState::FINISHED && state.progress.epoch == u16::MAX);
    }

    #[test]
    fn a_cold_start_lasts_until_an_epoch_certifies_something() {
        let cold = |start_step| end(|s| (s.epoch.cold_start, s.epoch.start_step) = (1, start_step)).epoch.cold_start;
        assert_eq!((cold(20), cold(19)), (1, 0));
        assert_eq!(end(|s| s.epoch.start_step = 20).epoch.cold_start, 0);
    }
}
