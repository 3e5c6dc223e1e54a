use anchor_lang::prelude::*;
use anchor_lang::Discriminator;

use crate::account::{CoordinatorAccount, EarnedPoints, RUN_UID_OFFSET};
use crate::errors::CoordinatorError;

#[derive(Accounts)]
pub struct CloseEarnedPoints<'info> {
    pub signer: Signer<'info>,
    /// CHECK: who paid the deposit gets it back.
    #[account(mut, address = earned_points.payer)]
    pub payer: UncheckedAccount<'info>,
    /// CHECK: where the run was; it is there no more, or another run is.
    #[account(address = earned_points.coordinator_account)]
    pub coordinator_account: UncheckedAccount<'info>,
    #[account(
        mut,
        close = payer,
        seeds = [EarnedPoints::SEED, &earned_points.run_uid, signer.key.as_ref()],
        bump = earned_points.bump,
    )]
    pub earned_points: Account<'info, EarnedPoints>,
}

pub(crate) fn process(context: Context<CloseEarnedPoints>) -> Result<()> {
    let accounts = context.accounts;
    let is_there = holds_run(&accounts.coordinator_account, &accounts.earned_points.run_uid)?;
    require!(!is_there, CoordinatorError::RunNotFreed);
    Ok(())
}

/// Whether the account still holds the run.
fn holds_run(account: &AccountInfo, run_uid: &[u8; 32]) -> Result<bool> {
    let data = account.try_borrow_data()?;
    let is_run = account.owner == &crate::ID && data.starts_with(CoordinatorAccount::DISCRIMINATOR);
    Ok(is_run && data.get(RUN_UID_OFFSET..).is_some_and(|rest| rest.starts_with(run_uid)))
}
