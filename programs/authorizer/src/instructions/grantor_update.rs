use anchor_lang::prelude::*;

use crate::errors::AuthorizerError;
use crate::state::Authorization;

#[derive(Accounts)]
pub struct AuthorizationGrantorUpdate<'info> {
    pub grantor: Signer<'info>,
    #[account(mut, has_one = grantor @ AuthorizerError::SignerIsNotGrantor)]
    pub authorization: Account<'info, Authorization>,
}

pub(crate) fn process(context: Context<AuthorizationGrantorUpdate>, active: bool) -> Result<()> {
    let authorization = &mut context.accounts.authorization;
    authorization.active = active;
    authorization.grantor_update_unix_timestamp = Clock::get()?.unix_timestamp;
    Ok(())
}
