use anchor_lang::prelude::*;
use psyche_rules::enums::SlotState;
use psyche_rules::limits::MAX_CLIENTS;
use psyche_rules::state::State;

use crate::account::{CoordinatorAccount, CoordinatorInstance};
use crate::apply::apply;
use crate::body::kind;
use crate::errors::CoordinatorError;
use crate::events::{LeftRun, Withdrew};

/// What a member, or anyone, needs for a message. The rules decide which keys may send it.
#[derive(Accounts)]
pub struct UserAccounts<'info> {
    pub user: Signer<'info>,
    #[account(
        seeds = [CoordinatorInstance::SEED, coordinator_instance.run_id.as_bytes()],
        bump = coordinator_instance.bump,
        has_one = coordinator_account,
    )]
    pub coordinator_instance: Account<'info, CoordinatorInstance>,
    #[account(mut)]
    pub coordinator_account: AccountLoader<'info, CoordinatorAccount>,
}

/// Apply a message of its signer.
pub(crate) fn process(context: Context<UserAccounts>, number: u8, body: &[u8]) -> Result<()> {
    let (account, user) = (context.accounts.coordinator_account.key(), context.accounts.user.key());
    let mut state = CoordinatorAccount::load(&context.accounts.coordinator_account)?;
    apply(&mut state, &account, &user, number, body)?;
    match number {
        kind::WITHDRAW => emit!(Withdrew { coordinator_account: account, sender: user }),
        kind::LEAVE => emit!(LeftRun { coordinator_account: account, signer: user }),
        _ => (),
    }
    Ok(())
}

/// Free an idle slot of a registry without room. Elsewhere nobody gains by it, and its holder would lose its record.
pub(crate) fn process_reclaim(context: Context<UserAccounts>) -> Result<()> {
    let (account, user) = (context.accounts.coordinator_account.key(), context.accounts.user.key());
    let mut state = CoordinatorAccount::load(&context.accounts.coordinator_account)?;
    require!(is_full(&state), CoordinatorError::RegistryNotFull);
    apply(&mut state, &account, &user, kind::RECLAIM_SLOT, &[])?;
    Ok(())
}

fn is_full(state: &State) -> bool {
    let slots = state.slots();
    let is_open = |state: SlotState| state == SlotState::FREE || state == SlotState::LEFT;
    slots.len() == MAX_CLIENTS && !slots.iter().any(|slot| is_open(slot.state))
}
