use anchor_lang::prelude::*;
use psyche_coordinator::cpi::accounts::FreeCoordinator;
use psyche_coordinator::cpi::free_coordinator;
use psyche_coordinator::program::PsycheCoordinator;
use psyche_coordinator::{CoordinatorAccount, CoordinatorInstance};

use crate::errors::TreasurerError;
use crate::owed::compute_owed;
use crate::state::Run;
use crate::token::{close, transfer, Token, TokenAccount};

#[derive(Accounts)]
pub struct RunClose<'info> {
    pub main_authority: Signer<'info>,
    /// CHECK: gets the deposits; the owner chooses.
    #[account(mut)]
    pub spill: UncheckedAccount<'info>,
    #[account(
        mut,
        close = spill,
        has_one = main_authority @ TreasurerError::SignerIsNotMainAuthority,
        has_one = run_collateral,
        has_one = coordinator_instance,
        has_one = coordinator_account,
    )]
    pub run: Box<Account<'info, Run>>,
    #[account(mut)]
    pub run_collateral: Box<Account<'info, TokenAccount>>,
    /// Gets the remaining tokens: any token account; the owner chooses.
    #[account(mut, constraint = spill_collateral.mint == run.collateral_mint @ TreasurerError::MintIsForeign)]
    pub spill_collateral: Box<Account<'info, TokenAccount>>,
    #[account(mut)]
    pub coordinator_instance: Box<Account<'info, CoordinatorInstance>>,
    #[account(mut)]
    pub coordinator_account: AccountLoader<'info, CoordinatorAccount>,
    pub coordinator_program: Program<'info, PsycheCoordinator>,
    pub token_program: Program<'info, Token>,
}

/// A run whose token account is empty may owe points: nothing would ever pay them but its owner. Otherwise one wrong
/// rate would keep the deposits for ever.
pub(crate) fn process(context: Context<RunClose>) -> Result<()> {
    let accounts = context.accounts;
    let owed = compute_owed(&accounts.run, &accounts.coordinator_instance, &accounts.coordinator_account)?;
    require!(owed == 0 || accounts.run_collateral.amount == 0, TreasurerError::PointsAreOwed);
    accounts.run.with_seeds(|seeds| {
        close_collateral(accounts, seeds)?;
        free(accounts, seeds)
    })
}

fn close_collateral(accounts: &RunClose, seeds: &[&[&[u8]]]) -> Result<()> {
    let (run, collateral) = (accounts.run.to_account_info(), accounts.run_collateral.to_account_info());
    let rest = accounts.run_collateral.amount;
    transfer(&collateral, &accounts.spill_collateral.to_account_info(), &run, rest, seeds)?;
    close(&collateral, &accounts.spill.to_account_info(), &run, seeds)
}

/// The coordinator refuses unless the run is halted and no slot holds points.
fn free(accounts: &RunClose, seeds: &[&[&[u8]]]) -> Result<()> {
    let free_accounts = FreeCoordinator {
        authority: accounts.run.to_account_info(),
        spill: accounts.spill.to_account_info(),
        coordinator_instance: accounts.coordinator_instance.to_account_info(),
        coordinator_account: accounts.coordinator_account.to_account_info(),
    };
    free_coordinator(CpiContext::new_with_signer(psyche_coordinator::ID, free_accounts, seeds))
}
