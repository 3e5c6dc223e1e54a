//! Why an instruction is refused; the first error has number 6000.

use anchor_lang::prelude::*;

#[error_code]
pub enum AuthorizerError {
    #[msg("The authorization is active: turn it off before closing it")]
    AuthorizationActiveIsTrue,
    #[msg("The authorization has delegates: it can be closed 30 days after the grantor's last update")]
    AuthorizationClosingConditionsNotReachedYet,
    #[msg("The signer is not the grantor of this authorization")]
    SignerIsNotGrantor,
    #[msg("The signer is not the grantee of this authorization")]
    SignerIsNotGrantee,
    #[msg("The scope must have 1 to 32 bytes")]
    ScopeLengthIsInvalid,
    #[msg("An authorization has at most 256 delegates: remove some first")]
    DelegatesAreTooMany,
    #[msg("The all-zero key cannot be a delegate")]
    DelegateIsZero,
}
