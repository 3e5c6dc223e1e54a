use anchor_lang::prelude::*;

use crate::errors::AuthorizerError;
use crate::state::Authorization;

/// So long the grantee's list of delegates, for which it paid, stays after the grantor's last word.
const DELEGATES_KEPT_S: i64 = 30 * 24 * 60 * 60;

#[derive(Accounts)]
pub struct AuthorizationClose<'info> {
    pub grantor: Signer<'info>,
    /// CHECK: any account can take the deposit; the grantor chooses it.
    #[account(mut)]
    pub spill: UncheckedAccount<'info>,
    #[account(mut, has_one = grantor @ AuthorizerError::SignerIsNotGrantor, close = spill)]
    pub authorization: Account<'info, Authorization>,
}

pub(crate) fn process(context: Context<AuthorizationClose>) -> Result<()> {
    let authorization = &context.accounts.authorization;
    require!(!authorization.active, AuthorizerError::AuthorizationActiveIsTrue);
    let kept = Clock::get()?.unix_timestamp.saturating_sub(authorization.grantor_update_unix_timestamp);
    require!(
        authorization.delegates.is_empty() || kept >= DELEGATES_KEPT_S,
        AuthorizerError::AuthorizationClosingConditionsNotReachedYet
    );
    Ok(())
}
