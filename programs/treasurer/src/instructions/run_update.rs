use anchor_lang::prelude::*;
use psyche_coordinator::cpi;
use psyche_coordinator::cpi::accounts::OwnerAccounts;
use psyche_coordinator::program::PsycheCoordinator;
use psyche_coordinator::{SetFutureEpochRatesBody, UpdateBody, UpdateClientVersionBody};

use crate::errors::TreasurerError;
use crate::state::Run;

/// The parts of an update beside the settings; none leaves a part as it is.
#[derive(AnchorSerialize, AnchorDeserialize, Clone)]
pub struct RunUpdateParams {
    pub epoch_earning_rate: Option<u64>,
    pub epoch_slashing_rate: Option<u64>,
    pub paused: Option<bool>,
    /// Padded with zeros.
    pub client_version: Option<[u8; 96]>,
}

/// Settings in which nothing is there: five options.
const NO_SETTINGS: [u8; 5] = [0; 5];

#[derive(Accounts)]
pub struct RunUpdate<'info> {
    pub main_authority: Signer<'info>,
    #[account(
        has_one = main_authority @ TreasurerError::SignerIsNotMainAuthority,
        has_one = coordinator_instance,
        has_one = coordinator_account,
    )]
    pub run: Box<Account<'info, Run>>,
    /// CHECK: the run names it, and the coordinator checks it.
    pub coordinator_instance: UncheckedAccount<'info>,
    /// CHECK: the run names it, and the coordinator checks it.
    #[account(mut)]
    pub coordinator_account: UncheckedAccount<'info>,
    pub coordinator_program: Program<'info, PsycheCoordinator>,
}

/// A pause comes first and a resumption last: most settings change only while the run is paused.
pub(crate) fn process(context: Context<RunUpdate>, params: RunUpdateParams, settings: UpdateBody) -> Result<()> {
    let run = &context.accounts.run;
    run.with_seeds(|seeds| {
        let build = || CpiContext::new_with_signer(psyche_coordinator::ID, get_accounts(context.accounts), seeds);
        if params.paused == Some(true) {
            cpi::set_paused(build(), true)?;
        }
        if settings.bytes != NO_SETTINGS {
            cpi::update(build(), settings)?;
        }
        if params.epoch_earning_rate.is_some() || params.epoch_slashing_rate.is_some() {
            cpi::set_future_epoch_rates(build(), encode_rates(&params)?)?;
        }
        if let Some(version) = params.client_version {
            cpi::update_client_version(build(), UpdateClientVersionBody { bytes: version.to_vec() })?;
        }
        if params.paused == Some(false) {
            cpi::set_paused(build(), false)?;
        }
        Ok(())
    })
}

fn get_accounts<'info>(accounts: &RunUpdate<'info>) -> OwnerAccounts<'info> {
    OwnerAccounts {
        authority: accounts.run.to_account_info(),
        coordinator_instance: accounts.coordinator_instance.to_account_info(),
        coordinator_account: accounts.coordinator_account.to_account_info(),
    }
}

fn encode_rates(params: &RunUpdateParams) -> Result<SetFutureEpochRatesBody> {
    let mut bytes = Vec::with_capacity(18);
    params.epoch_earning_rate.serialize(&mut bytes)?;
    params.epoch_slashing_rate.serialize(&mut bytes)?;
    Ok(SetFutureEpochRatesBody { bytes })
}
