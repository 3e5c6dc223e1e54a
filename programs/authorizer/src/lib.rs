//! The authorizer: accounts that say who may join a run.
//!
//! A grantor (the join authority of a run) allows a grantee (the master key of a provider of machines, or everybody)
//! something, named by a scope. The grantee adds the keys of its machines as delegates.

use anchor_lang::prelude::*;

pub mod check;
mod errors;
mod instructions;
mod state;

pub use errors::AuthorizerError;
pub use instructions::*;
pub use state::{Authorization, MAX_DELEGATES, MAX_SCOPE_BYTES, SEED};

declare_id!("PsycheAuthorizer111111111111111111111111111");

#[program]
pub mod psyche_authorizer {
    use super::*;

    /// Make the authorization of a grantee for a scope: inactive, without delegates.
    pub fn authorization_create(context: Context<AuthorizationCreate>, grantee: Pubkey, scope: Vec<u8>) -> Result<()> {
        instructions::create::process(context, grantee, scope)
    }

    /// The grantor turns the authorization on or off.
    pub fn authorization_grantor_update(context: Context<AuthorizationGrantorUpdate>, active: bool) -> Result<()> {
        instructions::grantor_update::process(context, active)
    }

    /// The grantee removes all delegates if `delegates_clear`, then adds those that are not delegates yet.
    pub fn authorization_grantee_update(
        context: Context<AuthorizationGranteeUpdate>,
        delegates_clear: bool,
        delegates_added: Vec<Pubkey>,
    ) -> Result<()> {
        instructions::grantee_update::process(context, delegates_clear, delegates_added)
    }

    /// The grantor closes the authorization; its deposit goes to `spill`.
    pub fn authorization_close(context: Context<AuthorizationClose>) -> Result<()> {
        instructions::close::process(context)
    }
}
