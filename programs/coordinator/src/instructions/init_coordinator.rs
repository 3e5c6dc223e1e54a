use anchor_lang::prelude::*;
use psyche_rules::genesis::create_run;
use psyche_rules::hash::{sha256, Hash};
use psyche_rules::limits::RUN_ID_BYTES;

use crate::account::{check_size, CoordinatorAccount, CoordinatorInstance};
use crate::errors::CoordinatorError;

/// The names and authorities of a new run.
#[derive(AnchorSerialize, AnchorDeserialize, Clone)]
pub struct InitCoordinatorParams {
    pub main_authority: Pubkey,
    pub join_authority: Pubkey,
    pub run_id: String,
    pub client_version: String,
}

impl InitCoordinatorParams {
    /// The run id as a seed. A longer one is refused by name, not by the runtime's limit of a seed.
    fn seed(&self) -> &[u8] {
        let run_id = self.run_id.as_bytes();
        &run_id[..run_id.len().min(RUN_ID_BYTES)]
    }
}

/// The account is too large for a program to create: the payer creates it in the same transaction, and its key signs
/// both, so that nobody else can take it.
#[derive(Accounts)]
#[instruction(params: InitCoordinatorParams)]
pub struct InitCoordinator<'info> {
    #[account(mut)]
    pub payer: Signer<'info>,
    #[account(
        init,
        payer = payer,
        space = CoordinatorInstance::SPACE,
        seeds = [CoordinatorInstance::SEED, params.seed()],
        bump,
    )]
    pub coordinator_instance: Account<'info, CoordinatorInstance>,
    #[account(zero, signer)]
    pub coordinator_account: AccountLoader<'info, CoordinatorAccount>,
    pub system_program: Program<'info, System>,
}

pub(crate) fn process(context: Context<InitCoordinator>, params: InitCoordinatorParams) -> Result<()> {
    let InitCoordinatorParams { main_authority, join_authority, run_id, client_version } = params;
    let accounts = context.accounts;
    check_size(accounts.coordinator_account.as_ref())?;
    check_empty(accounts.coordinator_account.as_ref())?;
    let account = accounts.coordinator_account.key();
    let state = &mut accounts.coordinator_account.load_init()?.0;
    let run_uid = compute_run_uid(&account, &run_id)?;
    create_run(state, run_id.as_bytes(), &run_uid, client_version.as_bytes())
        .map_err(|_| CoordinatorError::InvalidTexts)?;
    accounts.coordinator_instance.set_inner(CoordinatorInstance {
        bump: context.bumps.coordinator_instance,
        main_authority,
        join_authority,
        coordinator_account: account,
        run_id,
        collected_points: 0,
    });
    Ok(())
}

/// Refuse an account that holds anything. Its bytes are all zero if the first is and each equals the next.
fn check_empty(account: &AccountInfo) -> Result<()> {
    let data = account.try_borrow_data()?;
    let rest = data.len() - 1;
    let is_empty = data[0] == 0 && data[..rest] == data[1..];
    require!(is_empty, CoordinatorError::CoordinatorAccountNotEmpty);
    Ok(())
}

/// Tells this run from every other, also from later ones of its name, unless they begin on its account in its slot.
fn compute_run_uid(account: &Pubkey, run_id: &str) -> Result<Hash> {
    let clock = Clock::get()?;
    let now = u64::try_from(clock.unix_timestamp).unwrap_or(0);
    Ok(sha256(&[account.as_ref(), run_id.as_bytes(), &now.to_le_bytes(), &clock.slot.to_le_bytes()]))
}
