use anchor_lang::prelude::*;

use crate::account::{CoordinatorAccount, CoordinatorInstance};
use crate::errors::CoordinatorError;

#[derive(Accounts)]
pub struct FreeCoordinator<'info> {
    pub authority: Signer<'info>,
    /// CHECK: whoever shall have the deposits.
    #[account(mut)]
    pub spill: UncheckedAccount<'info>,
    #[account(
        mut,
        close = spill,
        seeds = [CoordinatorInstance::SEED, coordinator_instance.run_id.as_bytes()],
        bump = coordinator_instance.bump,
        has_one = coordinator_account,
        constraint = coordinator_instance.main_authority == authority.key() @ CoordinatorError::NotOwner,
    )]
    pub coordinator_instance: Account<'info, CoordinatorInstance>,
    #[account(mut, close = spill)]
    pub coordinator_account: AccountLoader<'info, CoordinatorAccount>,
}

/// Earnings would be lost with the account, so they must be collected before; earned points outlive it.
pub(crate) fn process(context: Context<FreeCoordinator>) -> Result<()> {
    let state = CoordinatorAccount::load(&context.accounts.coordinator_account)?;
    require!(state.halted(), CoordinatorError::CloseCoordinatorNotHalted);
    require!(state.slots().iter().all(|slot| slot.earned == 0), CoordinatorError::UncollectedEarnings);
    Ok(())
}
