//! Requests of a run's owner: pause and resume (P4), updates of an existing run (P9), rates (M7).

use crate::enums::{ClientState, RunState};
use crate::errors::Refusal;
use crate::formation::process_joins_closed;
use crate::hash::{is_same, is_zero, Hash};
use crate::limits::*;
use crate::membership::process_vacancies;
use crate::message::{SetRates, Update, UpdateClientVersion};
use crate::state::{Config, Mark, Metadata, Model, Progress, State};
use crate::stopping::is_run_done;
use crate::timing::process_state_change;
use crate::validate::{check_bootstrap, check_config, check_metadata, check_progress, check_version};
use crate::Context;

/// Change the owner's settings; return whether anything changed (P9).
pub fn process_update(state: &mut State, message: &Update) -> Result<bool, Refusal> {
    check_update(state, message)?;
    let mut changed = is_other_start(state, message);
    if changed {
        process_other_start(state);
    }
    if let Some(bytes) = message.model {
        changed |= state.model.as_bytes() != bytes;
        state.model = Model::read(bytes);
    }
    if let Some(bytes) = message.progress {
        changed |= state.progress.as_bytes() != bytes;
        state.progress = Progress::read(bytes);
    }
    if let Some(bytes) = message.config {
        changed |= state.config.as_bytes() != bytes;
        state.config = Config::read(bytes);
    }
    if let Some(bytes) = message.metadata {
        changed |= state.metadata.as_bytes() != bytes;
        state.metadata = Metadata::read(bytes);
    }
    if let Some(addresses) = message.bootstrap {
        changed |= process_bootstrap(state, addresses);
    }
    if let Some(digest) = message.first_weights {
        changed |= process_first_weights(state, digest);
    }
    Ok(changed)
}

/// Put the full digest of the first weights on record: the next epoch starts from no others (S11).
fn process_first_weights(state: &mut State, digest: &Hash) -> bool {
    if is_same(digest, &state.certified.digest) {
        return false;
    }
    let Progress { epoch, step, epoch_start_data_index: data_index, .. } = state.progress;
    state.certified = Mark { digest: *digest, epoch, uploader: NO_UPLOADER, step, data_index };
    state.checkpoint = state.certified;
    true
}

/// The model that an owner means who sends it without the spare checkpoints: they stay if the checkpoint stays.
pub fn complete_model(state: &State, head: &[u8; MODEL_HEAD_BYTES]) -> [u8; MODEL_BYTES] {
    let mut bytes = [0; MODEL_BYTES];
    bytes[..MODEL_HEAD_BYTES].copy_from_slice(head);
    if Model::read(&bytes).checkpoint == state.model.checkpoint {
        bytes[MODEL_HEAD_BYTES..].copy_from_slice(state.model.extra_checkpoints.as_flattened());
    }
    bytes
}

fn check_update(state: &State, message: &Update) -> Result<(), Refusal> {
    if message.nonce.is_some_and(|nonce| nonce != state.nonce) {
        return Err(Refusal::CannotUpdate);
    }
    let changes_settings = message.config.is_some() || message.model.is_some() || message.progress.is_some();
    if changes_settings || message.first_weights.is_some() {
        check_training(state, message)?;
    }
    check_metadata(message.metadata.unwrap_or(state.metadata.as_bytes()))?;
    check_bootstrap(message.bootstrap.unwrap_or(get_bootstrap(state)))?;
    message.first_weights.map_or(Ok(()), |digest| check_first_weights(state, message, digest))
}

/// The first weights of a run are not those from which it goes on once it has certified others (S11).
fn check_first_weights(state: &State, message: &Update, digest: &Hash) -> Result<(), Refusal> {
    let certified = &state.certified.digest;
    let has_trained = state.run_state != RunState::UNINITIALIZED && !is_zero(certified);
    if is_zero(digest) || has_trained && !is_other_start(state, message) && !is_same(digest, certified) {
        return Err(Refusal::ConfigRefused);
    }
    Ok(())
}

/// The addresses on record, up to the first empty one.
fn get_bootstrap(state: &State) -> &[u8] {
    let len = state.bootstrap.iter().position(|address| address[0] == 0).unwrap_or(MAX_BOOTSTRAP);
    state.bootstrap[..len].as_flattened()
}

fn check_training(state: &State, message: &Update) -> Result<(), Refusal> {
    check_changeable(state)?;
    let given_model;
    let model = match message.model {
        Some(bytes) => {
            given_model = Model::read(bytes); // a copy at an address that suits its numbers
            &given_model
        }
        None => &state.model,
    };
    let config = message.config.map_or(state.config, Config::read);
    let progress = message.progress.map_or(state.progress, Progress::read);
    check_config(&config, model)?;
    check_progress(&progress, &config)?;
    if progress.epoch != state.progress.epoch && state.run_state == RunState::PAUSED {
        return Err(Refusal::ConfigRefused); // P5: signatures name the epoch
    }
    Ok(())
}

fn check_changeable(state: &State) -> Result<(), Refusal> {
    match state.run_state {
        RunState::UNINITIALIZED | RunState::PAUSED => Ok(()),
        _ => Err(Refusal::CannotUpdate),
    }
}

/// Whether the next epoch would begin from other weights, or at another epoch, step or sample, than without the update.
fn is_other_start(state: &State, message: &Update) -> bool {
    let has_other_sources = message.model.map(Model::read).is_some_and(|model| {
        (model.checkpoint, model.extra_checkpoints) != (state.model.checkpoint, state.model.extra_checkpoints)
    });
    has_other_sources || message.progress.is_some_and(|bytes| bytes != state.progress.as_bytes())
}

/// Forget the weights on record: P3 takes progress and S8 takes weights from `certified`, which no longer fits the run.
fn process_other_start(state: &mut State) {
    (state.certified, state.checkpoint) = (Mark::UNSET, Mark::UNSET);
    state.epoch.warmup_failures = 0;
}

fn process_bootstrap(state: &mut State, addresses: &[u8]) -> bool {
    let old = state.bootstrap;
    state.bootstrap = [[0; BOOTSTRAP_BYTES]; MAX_BOOTSTRAP];
    state.bootstrap.as_flattened_mut()[..addresses.len()].copy_from_slice(addresses);
    state.bootstrap != old
}

/// Set the client version that the run requires; return whether it changed (P9).
pub fn process_client_version(state: &mut State, message: &UpdateClientVersion) -> Result<bool, Refusal> {
    check_changeable(state)?;
    check_version(message.version)?;
    let changed = state.client_version != *message.version;
    state.client_version = *message.version;
    Ok(changed)
}

/// Set the earning and slashing rates of coming epochs; return whether they changed (M7).
pub fn process_rates(state: &mut State, message: &SetRates) -> Result<bool, Refusal> {
    let registry = &mut state.registry;
    let before = (registry.future_earning_rate, registry.future_slashing_rate);
    registry.future_earning_rate = message.earning.unwrap_or(before.0);
    registry.future_slashing_rate = message.slashing.unwrap_or(before.1);
    Ok((registry.future_earning_rate, registry.future_slashing_rate) != before)
}

/// Pause the run: at once before an epoch's first round, otherwise after its drain and Cooldown (P4).
///
/// A repeated pause changes nothing.
pub fn process_pause(state: &mut State, context: &Context) -> Result<bool, Refusal> {
    if state.halted() {
        return Err(Refusal::Halted);
    }
    if state.in_round() || state.run_state == RunState::COOLDOWN {
        let changed = state.pending_pause == 0;
        state.pending_pause = 1;
        return Ok(changed);
    }
    if state.run_state == RunState::WARMUP {
        process_members_released(state);
        process_vacancies(state);
    }
    state.epoch.cold_start = 1;
    process_state_change(state, context.now, RunState::PAUSED);
    Ok(true)
}

fn process_members_released(state: &mut State) {
    let len = state.epoch.clients_len as usize;
    for client in state.clients[..len].iter_mut().filter(|client| client.state == ClientState::HEALTHY) {
        client.state = ClientState::WITHDRAWN;
    }
}

/// Resume a paused run, or start a new one; everybody must join again (P4).
pub fn process_resume(state: &mut State, context: &Context) -> Result<bool, Refusal> {
    if !matches!(state.run_state, RunState::PAUSED | RunState::UNINITIALIZED) {
        return Err(Refusal::CannotResume);
    }
    check_config(&state.config, &state.model)?;
    process_joins_closed(state); // M3
    let following = if is_run_done(state) { RunState::FINISHED } else { RunState::WAITING_FOR_MEMBERS };
    process_state_change(state, context.now, following);
    Ok(true)
}

#[cfg(test)]
mod tests;
