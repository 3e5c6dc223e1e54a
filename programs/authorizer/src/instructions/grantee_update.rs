use anchor_lang::prelude::*;
use anchor_lang::system_program::{transfer, Transfer};

use crate::errors::AuthorizerError;
use crate::state::Authorization;

#[derive(Accounts)]
pub struct AuthorizationGranteeUpdate<'info> {
    /// Pays for the room of new delegates, and gets back what removed ones had cost.
    #[account(mut)]
    pub payer: Signer<'info>,
    pub grantee: Signer<'info>,
    #[account(mut, has_one = grantee @ AuthorizerError::SignerIsNotGrantee)]
    pub authorization: Account<'info, Authorization>,
    pub system_program: Program<'info, System>,
}

pub(crate) fn process(
    context: Context<AuthorizationGranteeUpdate>,
    delegates_clear: bool,
    delegates_added: Vec<Pubkey>,
) -> Result<()> {
    let authorization = &mut context.accounts.authorization;
    if delegates_clear {
        authorization.delegates.clear();
    }
    for key in delegates_added {
        authorization.add_delegate(key)?;
    }
    resize(context.accounts)
}

/// Give the account the room of its delegates, and exactly the deposit of that room.
fn resize(accounts: &AuthorizationGranteeUpdate) -> Result<()> {
    let account = accounts.authorization.to_account_info();
    let space = Authorization::get_space(&accounts.authorization.scope, accounts.authorization.delegates.len());
    let (deposit, held) = (Rent::get()?.minimum_balance(space), account.lamports());
    if held < deposit {
        let from = accounts.payer.to_account_info();
        let transfer_accounts = Transfer { from, to: account.clone() };
        transfer(CpiContext::new(System::id(), transfer_accounts), deposit - held)?;
    } else {
        accounts.authorization.sub_lamports(held - deposit)?;
        accounts.payer.add_lamports(held - deposit)?;
    }
    account.resize(space)?;
    Ok(())
}
