use anchor_lang::prelude::*;

use crate::state::{check_scope, Authorization, SEED};

#[derive(Accounts)]
#[instruction(grantee: Pubkey, scope: Vec<u8>)]
pub struct AuthorizationCreate<'info> {
    #[account(mut)]
    pub payer: Signer<'info>,
    pub grantor: Signer<'info>,
    #[account(
        init,
        payer = payer,
        space = Authorization::get_space(&scope, 0),
        seeds = [SEED, grantor.key().as_ref(), grantee.as_ref(), check_scope(&scope)?],
        bump
    )]
    pub authorization: Account<'info, Authorization>,
    pub system_program: Program<'info, System>,
}

pub(crate) fn process(context: Context<AuthorizationCreate>, grantee: Pubkey, scope: Vec<u8>) -> Result<()> {
    context.accounts.authorization.set_inner(Authorization {
        bump: context.bumps.authorization,
        grantor: context.accounts.grantor.key(),
        grantee,
        scope,
        active: false,
        delegates: Vec::new(),
        grantor_update_unix_timestamp: Clock::get()?.unix_timestamp,
    });
    Ok(())
}
