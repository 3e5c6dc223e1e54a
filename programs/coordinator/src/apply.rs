//! Applies a message at the chain's time.

use anchor_lang::prelude::*;
use psyche_rules::message::read;
use psyche_rules::state::State;

use crate::errors::CoordinatorError;
use crate::events::Position;

/// Read the body of a message and apply it at the chain's time; return whether it changed the state (T2).
///
/// A clock before 1970 counts as 0 (T1).
#[inline(never)] // the rules stand once in the program, not once per instruction
pub fn apply(state: &mut State, account: &Pubkey, sender: &Pubkey, number: u8, body: &[u8]) -> Result<bool> {
    let message = read(number, body).map_err(|_| CoordinatorError::Malformed)?;
    let clock = Clock::get()?;
    let now = u64::try_from(clock.unix_timestamp).unwrap_or(0);
    let context = psyche_rules::Context { now, slot: clock.slot, sender: sender.to_bytes() };
    let before = Position::of(state);
    let changed = psyche_rules::apply(state, &context, &message).map_err(CoordinatorError::from)?;
    before.report_change(state, account);
    Ok(changed)
}
