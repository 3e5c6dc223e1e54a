//! Look-ups of members and slots by index, state and key (M1).

use crate::bits::Bitmap;
use crate::enums::{ClientState, RunState, SlotState};
use crate::errors::Refusal;
use crate::hash::{is_same, Hash};
use crate::state::{Client, Slot, State};

/// Whether an epoch is running; otherwise `clients` are the members of the last one.
pub fn is_in_epoch(state: &State) -> bool {
    matches!(state.run_state, RunState::WARMUP | RunState::ROUND_TRAIN | RunState::ROUND_WITNESS | RunState::COOLDOWN)
}

/// The Healthy members: those that still take part.
pub fn get_healthy(clients: &[Client]) -> Bitmap {
    Bitmap::collect(clients, |client| client.state == ClientState::HEALTHY)
}

/// The last round that has a member which leaves now: the next one once its seed is armed (E1).
pub fn compute_exit_height(state: &State) -> u32 {
    state.current().height + u32::from(state.run_state == RunState::ROUND_WITNESS)
}

/// The slot of a member of the running epoch; a slot is not freed before the epoch is over.
pub fn get_slot_mut(state: &mut State, member: usize) -> &mut Slot {
    &mut state.registry.slots[state.clients[member].slot as usize]
}

/// Whether the slot's session key has expired (M2); `expires_unix` 0 sets no expiry.
pub fn is_expired(slot: &Slot, now: u64) -> bool {
    slot.expires_unix != 0 && now >= slot.expires_unix
}

/// Check that the member exists and the sender is one of its valid keys (M1).
///
/// # Errors
/// `UnknownMember`: it does not, or is not.
pub fn check_member(state: &State, now: u64, sender: &Hash, member: usize) -> Result<(), Refusal> {
    let client = state.clients().get(member).ok_or(Refusal::UnknownMember)?;
    if is_same(sender, &client.signer) {
        return Ok(());
    }
    let is_over = || is_in_epoch(state) && is_expired(&state.registry.slots[client.slot as usize], now);
    if !is_same(sender, &client.p2p) || is_over() {
        return Err(Refusal::UnknownMember);
    }
    Ok(())
}

/// The number of the slot that holds this signer or p2p key; None if there is none or it was given up.
pub fn find_slot(state: &State, sender: &Hash) -> Option<usize> {
    let holds = |slot: &Slot| is_held(slot) && (is_same(sender, &slot.signer) || is_same(sender, &slot.p2p));
    state.slots().iter().position(holds)
}

/// Whether a signer has this slot; it may be banned or leaving.
pub fn is_held(slot: &Slot) -> bool {
    !matches!(slot.state, SlotState::FREE | SlotState::LEFT)
}

/// The index of the running epoch's member with this slot, in any state, since it may still earn; else None.
pub fn find_member(state: &State, number: usize) -> Option<usize> {
    if !is_in_epoch(state) {
        return None;
    }
    state.clients().iter().position(|client| client.slot as usize == number)
}
