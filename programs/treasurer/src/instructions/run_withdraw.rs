use anchor_lang::prelude::*;
use psyche_coordinator::{CoordinatorAccount, CoordinatorInstance};

use crate::errors::TreasurerError;
use crate::owed::compute_owed;
use crate::state::Run;
use crate::token::{transfer, Token, TokenAccount};

#[derive(Accounts)]
pub struct RunWithdraw<'info> {
    pub main_authority: Signer<'info>,
    #[account(
        has_one = main_authority @ TreasurerError::SignerIsNotMainAuthority,
        has_one = run_collateral,
        has_one = coordinator_instance,
        has_one = coordinator_account,
    )]
    pub run: Box<Account<'info, Run>>,
    #[account(mut)]
    pub run_collateral: Box<Account<'info, TokenAccount>>,
    /// Any token account: the owner chooses.
    #[account(mut, constraint = spill_collateral.mint == run.collateral_mint @ TreasurerError::MintIsForeign)]
    pub spill_collateral: Box<Account<'info, TokenAccount>>,
    pub coordinator_instance: Box<Account<'info, CoordinatorInstance>>,
    pub coordinator_account: AccountLoader<'info, CoordinatorAccount>,
    pub token_program: Program<'info, Token>,
}

pub(crate) fn process(context: Context<RunWithdraw>, amount: u64) -> Result<()> {
    let accounts = context.accounts;
    let held = accounts.run_collateral.amount;
    require_gte!(held, amount, TreasurerError::CollateralIsInsufficient);
    let owed = compute_owed(&accounts.run, &accounts.coordinator_instance, &accounts.coordinator_account)?;
    require_gte!(held - amount, owed, TreasurerError::CollateralIsOwed);
    accounts.run.with_seeds(|seeds| {
        transfer(
            &accounts.run_collateral.to_account_info(),
            &accounts.spill_collateral.to_account_info(),
            &accounts.run.to_account_info(),
            amount,
            seeds,
        )
    })
}
