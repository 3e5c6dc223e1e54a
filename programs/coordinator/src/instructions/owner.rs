use anchor_lang::prelude::*;
use psyche_rules::limits::{CONFIG_BYTES, MODEL_BYTES};
use psyche_rules::owner::complete_model;
use psyche_rules::state::State;

use crate::account::{CoordinatorAccount, CoordinatorInstance};
use crate::apply::apply;
use crate::body::kind;
use crate::errors::CoordinatorError;

#[derive(Accounts)]
pub struct OwnerAccounts<'info> {
    pub authority: Signer<'info>,
    #[account(
        seeds = [CoordinatorInstance::SEED, coordinator_instance.run_id.as_bytes()],
        bump = coordinator_instance.bump,
        has_one = coordinator_account,
        constraint = coordinator_instance.main_authority == authority.key() @ CoordinatorError::NotOwner,
    )]
    pub coordinator_instance: Account<'info, CoordinatorInstance>,
    #[account(mut)]
    pub coordinator_account: AccountLoader<'info, CoordinatorAccount>,
}

/// Apply an owner's message.
pub(crate) fn process(context: Context<OwnerAccounts>, number: u8, body: &[u8]) -> Result<()> {
    let accounts = context.accounts;
    let mut state = CoordinatorAccount::load(&accounts.coordinator_account)?;
    apply(&mut state, &accounts.coordinator_account.key(), accounts.authority.key, number, body)?;
    Ok(())
}

/// Apply an update, whose model lacks its further sources of weights.
pub(crate) fn process_update(context: Context<OwnerAccounts>, body: &[u8]) -> Result<()> {
    let accounts = context.accounts;
    let mut state = CoordinatorAccount::load(&accounts.coordinator_account)?;
    let whole = complete(&state, body).ok_or(CoordinatorError::Malformed)?;
    apply(&mut state, &accounts.coordinator_account.key(), accounts.authority.key, kind::UPDATE, &whole)?;
    Ok(())
}

/// The body of an update with a whole model. A model with its further sources of weights would not fit a transaction
/// together with config and progress: those on record stay if the first source stays.
fn complete(state: &State, body: &[u8]) -> Option<Vec<u8>> {
    let tag = 1 + if *body.first()? == 0 { 0 } else { CONFIG_BYTES };
    if *body.get(tag)? == 0 {
        return Some(body.to_vec());
    }
    let (head, rest) = body[tag + 1..].split_first_chunk()?;
    let mut whole = Vec::with_capacity(tag + 1 + MODEL_BYTES + rest.len());
    whole.extend_from_slice(&body[..tag + 1]);
    whole.extend_from_slice(&complete_model(state, head));
    whole.extend_from_slice(rest);
    Some(whole)
}
