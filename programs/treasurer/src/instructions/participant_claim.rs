use anchor_lang::prelude::*;
use psyche_coordinator::EarnedPoints;

use crate::errors::TreasurerError;
use crate::state::{add, Participant, Run};
use crate::token::{get_associated_address, transfer, Token, TokenAccount, TOKEN_ID};

#[derive(Accounts)]
pub struct ParticipantClaim<'info> {
    /// The member, or the run's owner, who pays a member that is away before it closes the run.
    #[account(
        constraint = [user.key(), run.main_authority].contains(authority.key) @ TreasurerError::SignerMayNotClaim
    )]
    pub authority: Signer<'info>,
    /// CHECK: the records below name it.
    pub user: UncheckedAccount<'info>,
    #[account(
        mut,
        constraint = user_collateral.mint == run.collateral_mint @ TreasurerError::MintIsForeign,
        constraint = is_own(&user_collateral, user.key) @ TreasurerError::UserCollateralIsNotOwn,
    )]
    pub user_collateral: Box<Account<'info, TokenAccount>>,
    #[account(mut, has_one = run_collateral)]
    pub run: Box<Account<'info, Run>>,
    #[account(mut)]
    pub run_collateral: Box<Account<'info, TokenAccount>>,
    #[account(
        constraint = is_of_member(&earned_points, &run, user.key) @ TreasurerError::EarnedPointsAreForeign,
    )]
    pub earned_points: Box<Account<'info, EarnedPoints>>,
    #[account(
        mut,
        has_one = run,
        has_one = user,
        constraint = participant.run_uid == run.run_uid @ TreasurerError::ParticipantIsOfFormerRun,
    )]
    pub participant: Box<Account<'info, Participant>>,
    pub token_program: Program<'info, Token>,
}

fn is_own(collateral: &TokenAccount, user: &Pubkey) -> bool {
    collateral.owner == *user && !collateral.has_delegate
}

fn is_of_member(earned: &EarnedPoints, run: &Run, user: &Pubkey) -> bool {
    earned.run_uid == run.run_uid && earned.signer == *user
}

/// One point is one base unit of the token.
pub(crate) fn process(context: Context<ParticipantClaim>, points: u64) -> Result<()> {
    check_destination(context.accounts, context.remaining_accounts)?;
    let accounts = context.accounts;
    let claimed = add(accounts.participant.claimed_earned_points, points)?;
    require_gte!(accounts.earned_points.points, claimed, TreasurerError::PointsAreNotClaimable);
    require_gte!(accounts.run_collateral.amount, points, TreasurerError::CollateralIsInsufficient);
    accounts.participant.claimed_earned_points = claimed;
    accounts.run.total_claimed_earned_points = add(accounts.run.total_claimed_earned_points, points)?;
    accounts.run.with_seeds(|seeds| {
        transfer(
            &accounts.run_collateral.to_account_info(),
            &accounts.user_collateral.to_account_info(),
            &accounts.run.to_account_info(),
            points,
            seeds,
        )
    })
}

/// The owner may not choose where a member's tokens lie: the member might never find them.
///
/// It may where the associated account, shown behind the others, takes no payment that is the member's alone. Otherwise
/// a member could keep its points owed, and with them the deposits of the run, by giving that account away.
fn check_destination(accounts: &ParticipantClaim, others: &[AccountInfo]) -> Result<()> {
    let user = accounts.user.key;
    if accounts.authority.key == user {
        return Ok(());
    }
    let associated = get_associated_address(user, &accounts.run.collateral_mint);
    let is_shut = || others.first().is_some_and(|other| other.key == &associated && takes_nothing(other, user));
    let is_right = accounts.user_collateral.key() == associated || is_shut();
    require!(is_right, TreasurerError::UserCollateralIsNotAssociated);
    Ok(())
}

/// Whether a token account is frozen, or not the user's own any more. One that is not there yet can be made.
fn takes_nothing(account: &AccountInfo, user: &Pubkey) -> bool {
    let read = || TokenAccount::try_deserialize(&mut &account.try_borrow_data().ok()?[..]).ok();
    account.owner == &TOKEN_ID && read().is_some_and(|found| found.is_frozen || !is_own(&found, user))
}
