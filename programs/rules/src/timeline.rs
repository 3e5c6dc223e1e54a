//! The timeline of results: the rounds in which they are attested (P1, P2, S2).
//!
//! Heights count the rounds of an epoch from 0. `epoch.drain_from_height` is the height of the first drain round, or 0
//! while the epoch has none. With overlap, the results of round h are attested in h+1, without overlap in h itself.

use crate::enums::round_flag;
use crate::errors::Refusal;
use crate::limits::STORED_ROUNDS;
use crate::state::{Config, Epoch, Round, State};

/// Whether this is a drain round, which trains nothing and only empties the pipeline.
pub fn is_drain(round: &Round) -> bool {
    round.flags & round_flag::DRAIN != 0
}

/// Whether round `height` trains on data.
pub fn is_data_height(epoch: &Epoch, height: u32) -> bool {
    epoch.drain_from_height == 0 || height < epoch.drain_from_height
}

/// Whether round `height` is the last drain round or a repetition of it (P2). An epoch ends with two drain rounds, or
/// with one without overlap (P1).
pub fn is_last_drain(config: &Config, epoch: &Epoch, height: u32) -> bool {
    let first = epoch.drain_from_height;
    first != 0 && height >= first.saturating_add(u32::from(config.overlap != 0))
}

/// a(h): the round whose results the witnesses of round `height` report; None if nothing is attested.
pub fn get_attested_height(config: &Config, epoch: &Epoch, height: u32) -> Option<u32> {
    let attested = if config.overlap != 0 { height.checked_sub(1)? } else { height };
    is_data_height(epoch, attested).then_some(attested)
}

/// The place in the ring of the running epoch's round of this height; None if it is not there.
pub fn get_round(state: &State, height: u32) -> Option<usize> {
    let index = height as usize % STORED_ROUNDS;
    let round = &state.rounds[index];
    (!round.members.is_empty() && round.height == height).then_some(index)
}

/// Check that a message names the running round (T7).
///
/// # Errors
/// `Halted`, `InvalidRunState`: no round is running. `WrongRound`: another one is.
pub fn check_round(state: &State, epoch: u16, height: u32) -> Result<(), Refusal> {
    if state.halted() {
        return Err(Refusal::Halted);
    }
    if !state.in_round() {
        return Err(Refusal::InvalidRunState);
    }
    if (epoch, height) != (state.progress.epoch, state.current().height) {
        return Err(Refusal::WrongRound);
    }
    Ok(())
}

/// The place in the ring of the round that the witnesses of the current round report on; None if nothing is attested.
pub fn get_attested_round(state: &State) -> Option<usize> {
    let height = get_attested_height(&state.config, &state.epoch, state.current().height)?;
    get_round(state, height)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::Bitmap;
    use crate::testing::build_state;

    #[test]
    fn results_are_attested_one_round_later_with_overlap() {
        let mut state = build_state();
        assert_eq!(get_attested_height(&state.config, &state.epoch, 0), Some(0));
        state.config.overlap = 1;
        assert_eq!(get_attested_height(&state.config, &state.epoch, 0), None);
        assert_eq!(get_attested_height(&state.config, &state.epoch, 7), Some(6));
        state.epoch.drain_from_height = 7;
        assert_eq!(get_attested_height(&state.config, &state.epoch, 7), Some(6));
        assert_eq!(get_attested_height(&state.config, &state.epoch, 8), None);
    }

    #[test]
    fn the_last_drain_is_the_second_with_overlap() {
        let mut state = build_state();
        assert!(!is_last_drain(&state.config, &state.epoch, 9));
        state.epoch.drain_from_height = 5;
        assert!(!is_last_drain(&state.config, &state.epoch, 4));
        assert!(is_last_drain(&state.config, &state.epoch, 5));
        state.config.overlap = 1;
        assert!(!is_last_drain(&state.config, &state.epoch, 5));
        assert!(is_last_drain(&state.config, &state.epoch, 6) && is_last_drain(&state.config, &state.epoch, 60));
        assert!(is_data_height(&state.epoch, 4) && !is_data_height(&state.epoch, 5));
    }

    #[test]
    fn only_rounds_of_the_ring_are_found() {
        let mut state = build_state();
        for height in 3..7 {
            let round = &mut state.rounds[height as usize % STORED_ROUNDS];
            (round.height, round.members) = (height, Bitmap::below(2));
        }
        state.epoch.rounds_head = 2;
        assert_eq!((get_round(&state, 2), get_round(&state, 3), get_round(&state, 7)), (None, Some(3), None));
        assert_eq!(get_attested_round(&state), Some(2));
        state.config.overlap = 1;
        assert_eq!(get_attested_round(&state), Some(1));
        state.rounds[1].members = Bitmap::EMPTY;
        assert_eq!(get_attested_round(&state), None);
    }
}
