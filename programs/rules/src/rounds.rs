//! The start of a round: its members, seed and samples (E1 to E3, P2).

use crate::bits::Bitmap;
use crate::elections::{compute_quorum, compute_witnesses_expected};
use crate::enums::{client_flag, round_flag, ClientState, RunState};
use crate::hash::{Hash, ZERO};
use crate::limits::{MAX_DATA_INDEX, STORED_ROUNDS};
use crate::schedule::compute_batch_size;
use crate::seeds::{compute_seed, get_random_seed};
use crate::state::{Client, Round, State};
use crate::timeline::is_data_height;
use crate::timing::process_state_change;

/// Fix the slot whose hash will be the entropy (E1, E2); return whether the armed slot changed.
///
/// On record 0 means "not armed", so slot 0 without delay is armed as slot 1.
pub fn process_arming(state: &mut State, slot: u64) -> bool {
    let armed = slot.saturating_add(u64::from(state.config.entropy_delay)).max(1);
    let round = state.current_mut();
    let changed = round.entropy_slot != armed;
    round.entropy_slot = armed;
    changed
}

/// Those whom a seed puts in order: all members of its round, and the electors among them (E1, M10).
pub struct Draw {
    pub members: Bitmap,
    pub electors: Bitmap,
}

impl Draw {
    /// The electors are the members that are not on probation; all of them if all are (M10).
    pub fn count(clients: &[Client], members: Bitmap) -> Draw {
        let on_probation = Bitmap::collect(clients, |client| client.flags & client_flag::PROBATION != 0);
        let proven = members.without(on_probation);
        Draw { members, electors: if proven.is_empty() { members } else { proven } }
    }

    /// The draw of the next round: who was Healthy when the seed was armed (E1).
    ///
    /// At a close this comes before health and credits: records that arrive when the entropy is public decide about
    /// both.
    pub fn count_next(state: &State) -> Draw {
        let height = state.current().height;
        let is_drawn = |client: &Client| client.state == ClientState::HEALTHY || client.exited_height > height;
        Draw::count(state.clients(), Bitmap::collect(state.clients(), is_drawn))
    }
}

/// Start round 0 of an epoch; the seed drawn last takes the place of the previous round's seed (E3).
pub fn process_first_round(state: &mut State, now: u64, entropy: &Hash, starters: Bitmap) {
    let seed = compute_seed(&state.run_uid, state.progress.epoch, 0, &state.last_seed, &ZERO, entropy);
    let draw = Draw::count(state.clients(), starters);
    process_start(state, now, 0, seed, state.progress.epoch_start_data_index, &draw);
}

/// Start the round after the running one, with the next samples.
pub fn process_next_round(state: &mut State, now: u64, entropy: &Hash, draw: &Draw) {
    let last = state.current();
    let height = last.height + 1;
    let seed = compute_seed(&state.run_uid, state.progress.epoch, height, &last.seed, &last.mix, entropy);
    let data_index = get_next_data_index(last);
    state.epoch.rounds_head = height % STORED_ROUNDS as u32;
    process_start(state, now, height, seed, data_index, draw);
}

/// The index of the first sample after the round's samples; a drain round has no samples (P2).
///
/// The clamp never takes effect in a run with a checked configuration.
pub fn get_next_data_index(round: &Round) -> u64 {
    round.data_index.saturating_add(u64::from(round.batch_size)).min(MAX_DATA_INDEX)
}

/// Write the round in place, at the ring's head: it is too large to build it elsewhere.
fn process_start(state: &mut State, now: u64, height: u32, seed: Hash, data_index: u64, draw: &Draw) {
    let has_data = is_data_height(&state.epoch, height);
    let tokens_done = u128::from(data_index) * u128::from(state.model.max_seq_len);
    let batch_size = if has_data { compute_batch_size(&state.config, tokens_done) } else { 0 };
    let expected = compute_witnesses_expected(state.config.witness_nodes, draw.electors.count());
    let step = state.progress.step;
    let round = state.current_mut();
    *round = Round::ZERO;
    round.seed = seed;
    round.random_seed = get_random_seed(&seed);
    round.members = draw.members;
    round.electors = draw.electors;
    round.clients_len = draw.members.count() as u16;
    round.witnesses_expected = expected as u16;
    round.quorum = compute_quorum(expected) as u16;
    round.data_index = data_index;
    round.batch_size = batch_size;
    round.started_unix = now;
    round.height = height;
    round.step = step;
    round.flags = if has_data { 0 } else { round_flag::DRAIN };
    state.last_seed = seed;
    process_state_change(state, now, RunState::ROUND_TRAIN);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build_run, ENTROPY, STARTED};

    #[test]
    fn a_slot_is_armed_once_and_never_as_zero() {
        let mut state = build_run(1);
        assert!(process_arming(&mut state, 0) && !process_arming(&mut state, 0));
        assert_eq!(state.current().entropy_slot, 1);
        state.config.entropy_delay = 4;
        assert!(process_arming(&mut state, 7) && process_arming(&mut state, u64::MAX));
        assert_eq!(state.current().entropy_slot, u64::MAX);
    }

    #[test]
    fn the_first_round_takes_all_members_and_the_seed_drawn_last() {
        let state = build_run(9);
        let round = state.current();
        let seed = compute_seed(&state.run_uid, 0, 0, &ZERO, &ZERO, &ENTROPY);
        assert_eq!((round.seed, round.random_seed, state.last_seed), (seed, get_random_seed(&seed), seed));
        assert_eq!((round.members, round.electors), (Bitmap::below(9), Bitmap::below(9)));
        assert_eq!((round.clients_len, round.witnesses_expected, round.quorum), (9, 9, 7));
        assert_eq!((round.batch_size, round.started_unix, round.flags), (256, STARTED, 0));
    }

    #[test]
    fn the_next_round_goes_on_from_the_last_one_in_a_clean_place() {
        let mut state = build_run(3);
        state.rounds[1].entropy_slot = 5;
        state.rounds[0].mix = [3; 32];
        let draw = Draw { members: Bitmap::below(2), electors: Bitmap::below(2).without(Bitmap::below(1)) };
        process_next_round(&mut state, STARTED + 9, &ENTROPY, &draw);
        let round = state.current();
        let seed = compute_seed(&state.run_uid, 0, 1, &state.rounds[0].seed, &[3; 32], &ENTROPY);
        assert_eq!((round.seed, round.height, state.epoch.rounds_head), (seed, 1, 1));
        assert_eq!((round.data_index, round.batch_size, round.entropy_slot), (256, 256, 0));
        assert_eq!((round.members, round.electors), (draw.members, draw.electors));
        assert_eq!((round.clients_len, round.witnesses_expected, round.quorum), (2, 1, 1));
    }

    #[test]
    fn a_draw_has_who_was_there_when_its_seed_was_armed() {
        let mut state = build_run(9);
        state.current_mut().height = 4;
        for (member, exited_height) in [(2, 4), (3, 5), (4, 5)] {
            let client = &mut state.clients[member];
            (client.state, client.exited_height) = (ClientState::WITHDRAWN, exited_height);
        }
        for member in [4, 5] {
            state.clients[member].flags |= client_flag::PROBATION;
        }
        let draw = Draw::count_next(&state);
        assert!(draw.members.members().eq([0, 1, 3, 4, 5, 6, 7, 8]));
        assert!(draw.electors.members().eq([0, 1, 3, 6, 7, 8]));
    }

    #[test]
    fn all_members_elect_where_all_are_on_probation() {
        let mut state = build_run(5);
        state.clients.iter_mut().for_each(|client| client.flags |= client_flag::PROBATION);
        assert_eq!(Draw::count_next(&state).electors, Bitmap::below(5));
    }

    #[test]
    fn drain_rounds_have_no_samples() {
        let mut state = build_run(2);
        state.epoch.drain_from_height = 1;
        let draw = Draw::count_next(&state);
        process_next_round(&mut state, STARTED, &ENTROPY, &draw);
        assert_eq!((state.current().flags, state.current().batch_size), (round_flag::DRAIN, 0));
        assert_eq!(get_next_data_index(state.current()), 256);
    }

    #[test]
    fn sample_numbers_stop_at_the_highest_one() {
        let mut round = Round::ZERO;
        (round.data_index, round.batch_size) = (MAX_DATA_INDEX - 3, 9);
        assert_eq!(get_next_data_index(&round), MAX_DATA_INDEX);
        round.data_index = u64::MAX;
        assert_eq!(get_next_data_index(&round), MAX_DATA_INDEX);
    }
}
