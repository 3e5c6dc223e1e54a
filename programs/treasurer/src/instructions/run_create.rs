use anchor_lang::prelude::*;
use psyche_coordinator::cpi::accounts::InitCoordinator;
use psyche_coordinator::cpi::init_coordinator;
use psyche_coordinator::program::PsycheCoordinator;
use psyche_coordinator::{InitCoordinatorParams, RUN_UID_OFFSET};

use crate::state::Run;
use crate::token::{create_associated, get_associated_address, AssociatedToken, Mint, Token};

/// The names and authorities of a new run.
#[derive(AnchorSerialize, AnchorDeserialize, Clone)]
pub struct RunCreateParams {
    /// Tells the runs of one owner apart.
    pub index: u64,
    pub run_id: String,
    pub client_version: String,
    pub join_authority: Pubkey,
}

/// The payer's own instruction creates `coordinator_account` in the same transaction, as for `init_coordinator`.
#[derive(Accounts)]
#[instruction(params: RunCreateParams)]
pub struct RunCreate<'info> {
    #[account(mut)]
    pub payer: Signer<'info>,
    /// The owner. It signs, so that nobody else takes its addresses.
    pub main_authority: Signer<'info>,
    #[account(
        init,
        payer = payer,
        space = Run::SPACE,
        seeds = [Run::SEED, main_authority.key.as_ref(), &params.index.to_le_bytes()],
        bump,
    )]
    pub run: Box<Account<'info, Run>>,
    pub collateral_mint: Account<'info, Mint>,
    /// CHECK: made by the program of associated token accounts, or by it before.
    #[account(mut, address = get_associated_address(&run.key(), &collateral_mint.key()))]
    pub run_collateral: UncheckedAccount<'info>,
    /// CHECK: the coordinator makes it.
    #[account(mut)]
    pub coordinator_instance: UncheckedAccount<'info>,
    /// CHECK: the coordinator checks that it is new.
    #[account(mut)]
    pub coordinator_account: Signer<'info>,
    pub coordinator_program: Program<'info, PsycheCoordinator>,
    pub associated_token_program: Program<'info, AssociatedToken>,
    pub token_program: Program<'info, Token>,
    pub system_program: Program<'info, System>,
}

pub(crate) fn process(context: Context<RunCreate>, params: RunCreateParams) -> Result<()> {
    let (index, join_authority) = (params.index, params.join_authority);
    create_collateral(context.accounts)?;
    init_run(context.accounts, params)?;
    let accounts = context.accounts;
    accounts.run.set_inner(Run {
        bump: context.bumps.run,
        index,
        main_authority: accounts.main_authority.key(),
        join_authority,
        coordinator_account: accounts.coordinator_account.key(),
        coordinator_instance: accounts.coordinator_instance.key(),
        collateral_mint: accounts.collateral_mint.key(),
        total_claimed_earned_points: 0,
        run_collateral: accounts.run_collateral.key(),
        run_uid: read_run_uid(accounts.coordinator_account.as_ref())?,
    });
    Ok(())
}

fn create_collateral(accounts: &RunCreate) -> Result<()> {
    create_associated(
        &accounts.payer.to_account_info(),
        &accounts.run_collateral.to_account_info(),
        &accounts.run.to_account_info(),
        &accounts.collateral_mint.to_account_info(),
        &accounts.system_program.to_account_info(),
        &accounts.token_program.to_account_info(),
    )
}

/// Let the coordinator begin the run, with the treasurer's run as its owner.
fn init_run(accounts: &RunCreate, params: RunCreateParams) -> Result<()> {
    let init_accounts = InitCoordinator {
        payer: accounts.payer.to_account_info(),
        coordinator_instance: accounts.coordinator_instance.to_account_info(),
        coordinator_account: accounts.coordinator_account.to_account_info(),
        system_program: accounts.system_program.to_account_info(),
    };
    let params = InitCoordinatorParams {
        main_authority: accounts.run.key(),
        join_authority: params.join_authority,
        run_id: params.run_id,
        client_version: params.client_version,
    };
    init_coordinator(CpiContext::new(psyche_coordinator::ID, init_accounts), params)
}

fn read_run_uid(account: &AccountInfo) -> Result<[u8; 32]> {
    let data = account.try_borrow_data()?;
    let run_uid = data.get(RUN_UID_OFFSET..).and_then(|rest| rest.first_chunk());
    Ok(*run_uid.ok_or(ErrorCode::AccountDidNotDeserialize)?)
}
