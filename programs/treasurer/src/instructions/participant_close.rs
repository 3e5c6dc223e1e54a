use anchor_lang::prelude::*;

use crate::errors::TreasurerError;
use crate::state::{Participant, Run};

#[derive(Accounts)]
pub struct ParticipantClose<'info> {
    /// CHECK: who paid the deposit gets it back.
    #[account(mut)]
    pub payer: UncheckedAccount<'info>,
    /// CHECK: where the run was; it is there no more, or another run is.
    pub run: UncheckedAccount<'info>,
    #[account(mut, close = payer, has_one = payer, has_one = run)]
    pub participant: Account<'info, Participant>,
}

/// As long as the run is there, the record says what must not be paid again.
pub(crate) fn process(context: Context<ParticipantClose>) -> Result<()> {
    let accounts = context.accounts;
    let is_there = holds_run(&accounts.run, &accounts.participant.run_uid)?;
    require!(!is_there, TreasurerError::RunIsNotClosed);
    Ok(())
}

/// Whether the account still holds the run.
fn holds_run(account: &AccountInfo, run_uid: &[u8; 32]) -> Result<bool> {
    if account.owner != &crate::ID {
        return Ok(false);
    }
    Ok(Run::try_deserialize(&mut &account.try_borrow_data()?[..])?.run_uid == *run_uid)
}
