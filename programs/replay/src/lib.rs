//! The rules for tests: time, slot, sender and entropy come as data instead of from the chain.
//!
//! A program with one instruction, and the same as a library of the host for long runs of random events. Both take the
//! whole account of a run, 165,192 bytes, and leave its discriminator alone. The instruction's data, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | now, Unix seconds |
//! | 8 | slot |
//! | 32 | sender |
//! | 1 | number of the kind of message |
//! | rest | the message's body |
//!
//! A refusal is 6,000 plus its number.
#![cfg_attr(target_os = "solana", no_std)]

use core::mem::size_of;

use psyche_rules::{message, Context, State};

#[cfg(not(target_os = "solana"))]
mod host;
#[cfg(target_os = "solana")]
mod program;

const DISCRIMINATOR_BYTES: usize = 8;
/// The size of a run's account.
pub const ACCOUNT_BYTES: usize = DISCRIMINATOR_BYTES + size_of::<State>();

/// The data cannot be read; Anchor's number for it.
pub const MALFORMED: u32 = 102;
/// Other than one writable account of the right size was given.
pub const WRONG_ACCOUNTS: u32 = 103;
const FIRST_REFUSAL: u32 = 6000;

/// The state in the account's bytes, and the message in the data: whether the state has changed.
///
/// # Errors
/// The number of a refusal, MALFORMED or WRONG_ACCOUNTS.
pub fn process(account: &mut [u8], data: &[u8]) -> Result<bool, u32> {
    let state = find_state(account).ok_or(WRONG_ACCOUNTS)?;
    let (context, number, body) = read_event(data).ok_or(MALFORMED)?;
    let message = message::read(number, body).map_err(|_| MALFORMED)?;
    psyche_rules::apply(state, &context, &message).map_err(|refusal| FIRST_REFUSAL + refusal as u32)
}

fn find_state(account: &mut [u8]) -> Option<&mut State> {
    if account.len() != ACCOUNT_BYTES {
        return None;
    }
    let state = account[DISCRIMINATOR_BYTES..].as_mut_ptr().cast::<State>();
    // SAFETY: the size is right, the alignment is checked, and any bytes are a valid state.
    state.is_aligned().then(|| unsafe { &mut *state })
}

fn read_event(data: &[u8]) -> Option<(Context, u8, &[u8])> {
    let (now, rest) = data.split_first_chunk()?;
    let (slot, rest) = rest.split_first_chunk()?;
    let (sender, rest) = rest.split_first_chunk()?;
    let (number, body) = rest.split_first()?;
    let context = Context { now: u64::from_le_bytes(*now), slot: u64::from_le_bytes(*slot), sender: *sender };
    Some((context, *number, body))
}
