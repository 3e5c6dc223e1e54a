//! The sources from which the certified weights can be loaded (S10).

use crate::enums::checkpoint_kind::{EPHEMERAL, GCS, HUB, LOCAL};
use crate::enums::{ClientState, RunState};
use crate::errors::Refusal;
use crate::hash::{is_same, is_zero, Hash};
use crate::limits::CHECKPOINT_BYTES;
use crate::message::NameCheckpoint;
use crate::state::{Client, Mark, Model, State};
use crate::validate::read_source;
use crate::Context;

/// Record a source of the certified weights: the first replaces the old source, up to three more are kept (S10).
pub fn process_checkpoint(state: &mut State, context: &Context, message: &NameCheckpoint) -> Result<bool, Refusal> {
    let uploader = check_checkpoint(state, &context.sender, message)?;
    check_source(message.source)?;
    if !is_same(&state.checkpoint.digest, message.digest) {
        state.checkpoint = Mark { uploader, ..state.certified };
        state.model.checkpoint = *message.source;
        state.model.extra_checkpoints = [[0; CHECKPOINT_BYTES]; 3];
    } else {
        add_source(&mut state.model, message.source)?;
    }
    if state.run_state == RunState::COOLDOWN && message.epoch == state.progress.epoch {
        state.epoch.checkpoint_sources = state.epoch.checkpoint_sources.saturating_add(1);
        // P10
    }
    Ok(true)
}

fn add_source(model: &mut Model, source: &[u8; CHECKPOINT_BYTES]) -> Result<(), Refusal> {
    if model.checkpoint == *source || model.extra_checkpoints.contains(source) {
        return Err(Refusal::InvalidCheckpoint); // K3
    }
    let is_free = |place: &&mut [u8; CHECKPOINT_BYTES]| place[..4] == EPHEMERAL.to_le_bytes();
    let place = model.extra_checkpoints.iter_mut().find(is_free).ok_or(Refusal::InvalidCheckpoint)?;
    *place = *source;
    Ok(())
}

/// The slot of the member that names the checkpoint.
fn check_checkpoint(state: &State, sender: &Hash, message: &NameCheckpoint) -> Result<u16, Refusal> {
    if state.run_state == RunState::UNINITIALIZED {
        return Err(Refusal::Halted);
    }
    if message.epoch != state.certified.epoch {
        return Err(Refusal::WrongRound); // T7
    }
    let is_early = state.run_state == RunState::WARMUP || state.in_round();
    if is_early && message.epoch == state.progress.epoch {
        return Err(Refusal::InvalidRunState);
    }
    let is_sender = |client: &&Client| {
        client.state != ClientState::EJECTED && (is_same(sender, &client.signer) || is_same(sender, &client.p2p))
    };
    let client = state.clients().iter().find(is_sender).ok_or(Refusal::UnknownMember)?;
    if is_zero(message.digest) || !is_same(message.digest, &state.certified.digest) {
        return Err(Refusal::DigestMismatch);
    }
    Ok(client.slot)
}

/// Refuse a source that depends on a peer, has no name, or whose texts do not fit the record (S10).
fn check_source(source: &[u8; CHECKPOINT_BYTES]) -> Result<(), Refusal> {
    match read_source(source) {
        Some(source) if matches!(source.kind, HUB | GCS | LOCAL) && !source.name.is_empty() => Ok(()),
        _ => Err(Refusal::InvalidCheckpoint),
    }
}

#[cfg(test)]
mod tests;
