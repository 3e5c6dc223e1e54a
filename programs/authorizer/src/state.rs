//! The account of one authorization.

use anchor_lang::prelude::*;

use crate::check::is_same;
use crate::errors::AuthorizerError;

/// The first seed of an authorization's address; grantor, grantee and scope follow.
pub const SEED: &[u8] = b"Authorization";
/// As many as a run has members.
pub const MAX_DELEGATES: usize = 256;
/// The longest seed of an address.
pub const MAX_SCOPE_BYTES: usize = 32;

const FIXED_BYTES: usize = 8 + 1 + 32 + 32 + 4 + 1 + 4 + 8;

#[account]
pub struct Authorization {
    pub bump: u8,
    pub grantor: Pubkey,
    /// The key that is authorized and that names delegates; all zero authorizes everybody.
    pub grantee: Pubkey,
    pub scope: Vec<u8>,
    pub active: bool,
    pub delegates: Vec<Pubkey>,
    pub grantor_update_unix_timestamp: i64,
}

impl Authorization {
    /// The bytes of an account with this scope and so many delegates, its discriminator included.
    pub fn get_space(scope: &[u8], delegates: usize) -> usize {
        FIXED_BYTES + scope.len() + delegates * 32
    }

    /// Add a delegate; a key that is one already changes nothing.
    pub fn add_delegate(&mut self, key: Pubkey) -> Result<()> {
        require!(key != Pubkey::default(), AuthorizerError::DelegateIsZero);
        if self.delegates.iter().any(|d| is_same(d.as_array(), key.as_array())) {
            return Ok(());
        }
        require!(self.delegates.len() < MAX_DELEGATES, AuthorizerError::DelegatesAreTooMany);
        self.delegates.push(key);
        Ok(())
    }
}

/// The scope as a seed.
pub fn check_scope(scope: &[u8]) -> Result<&[u8]> {
    require!((1..=MAX_SCOPE_BYTES).contains(&scope.len()), AuthorizerError::ScopeLengthIsInvalid);
    Ok(scope)
}
