//! The creation of a run's account.

use crate::errors::Refusal;
use crate::hash::{is_zero, Hash};
use crate::state::{Config, Mark, State};
use crate::validate::pad_text;

const VERSION: u64 = 1; // preset "chain"

/// The settings that are not zero unless an owner says so.
const DEFAULT_CONFIG: Config = Config {
    waiting_for_members_extra_time: 10,
    straggler_percent: 150,
    overlap: 1,
    evict_after: 2,
    late_limit: 3,
    tolerance_fp32_ppm: 1_000,
    tolerance_bf16_ppm: 20_000,
    opened_chunks: 256,
    ..Config::ZERO
};

/// Write a new run into an account of zeros: it has no model and no members, and waits for its owner's `update`.
///
/// `run_uid` identifies the run even among runs of the same name. `client_version` may be empty.
///
/// # Errors
/// `ConfigRefused`: the id is empty, a text does not fit its field or is none, or the uid is zero.
pub fn create_run(state: &mut State, run_id: &[u8], run_uid: &Hash, client_version: &[u8]) -> Result<(), Refusal> {
    if run_id.is_empty() || is_zero(run_uid) {
        return Err(Refusal::ConfigRefused);
    }
    (state.run_id, state.client_version) = (pad_text(run_id)?, pad_text(client_version)?);
    state.run_uid = *run_uid;
    state.version = VERSION;
    state.config = DEFAULT_CONFIG;
    state.progress.step = 1;
    (state.certified, state.checkpoint) = (Mark::UNSET, Mark::UNSET);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::build_state;

    #[test]
    fn a_new_run_waits_for_its_owner() {
        let mut state = build_state();
        assert!(create_run(&mut state, b"run", &[7; 32], b"").is_ok());
        assert!(state.halted() && state.run_id.starts_with(b"run\0"));
        assert_eq!((state.progress.step, state.certified.uploader, state.nonce), (1, 65_535, 0));
    }

    #[test]
    fn names_that_the_record_cannot_hold_are_refused() {
        let refused = |run_id: &[u8], run_uid: u8, version: &[u8]| {
            create_run(&mut build_state(), run_id, &[run_uid; 32], version) == Err(Refusal::ConfigRefused)
        };
        assert!(refused(b"", 7, b"") && refused(&[b'r'; 33], 7, b"") && refused(b"r\0", 7, b""));
        assert!(refused(b"r", 0, b"") && refused(b"r", 7, &[b'v'; 97]) && refused(b"r", 7, b"\xff"));
        assert!(!refused(&[b'r'; 32], 7, &[b'v'; 96]));
    }
}
