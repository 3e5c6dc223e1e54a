use anchor_lang::prelude::*;
use psyche_authorizer::check::is_valid;

use crate::account::{CoordinatorAccount, CoordinatorInstance};
use crate::apply::apply;
use crate::body::kind;
use crate::errors::CoordinatorError;
use crate::events::Joined;

/// The scope of authorizations to join a run.
pub const JOIN_RUN_SCOPE: &[u8] = b"CoordinatorJoinRun";

#[derive(Accounts)]
pub struct JoinRun<'info> {
    /// The wallet: it owns the slot and what the slot earns.
    pub user: Signer<'info>,
    /// The session key (`p2P` in @coral-xyz/anchor), which signs so that nobody joins with a key of somebody else.
    pub p2p: Signer<'info>,
    /// CHECK: belongs to the authorizer, and `process` reads it.
    #[account(owner = psyche_authorizer::ID)]
    pub authorization: UncheckedAccount<'info>,
    #[account(
        seeds = [CoordinatorInstance::SEED, coordinator_instance.run_id.as_bytes()],
        bump = coordinator_instance.bump,
        has_one = coordinator_account,
    )]
    pub coordinator_instance: Account<'info, CoordinatorInstance>,
    #[account(mut)]
    pub coordinator_account: AccountLoader<'info, CoordinatorAccount>,
}

pub(crate) fn process(context: Context<JoinRun>, expires_unix: u64) -> Result<()> {
    let (user, p2p) = (context.accounts.user.key(), context.accounts.p2p.key());
    let account = context.accounts.coordinator_account.key();
    check_authorization(context.accounts)?;
    let mut state = CoordinatorAccount::load(&context.accounts.coordinator_account)?;
    let mut body = [0; 40];
    body[..32].copy_from_slice(p2p.as_ref());
    body[32..].copy_from_slice(&expires_unix.to_le_bytes());
    if apply(&mut state, &account, &user, kind::JOIN, &body)? {
        emit!(Joined { coordinator_account: account, signer: user, p2p });
    }
    Ok(())
}

fn check_authorization(accounts: &JoinRun) -> Result<()> {
    let authorization = accounts.authorization.try_borrow_data()?;
    let grantor = &accounts.coordinator_instance.join_authority;
    let is_allowed = is_valid(&authorization, grantor, accounts.user.key, JOIN_RUN_SCOPE);
    require!(is_allowed, CoordinatorError::NotAuthorized);
    Ok(())
}
