//! Why an instruction is refused; the first error has number 6000. The coordinator's and the token program's own
//! errors pass through.

use anchor_lang::prelude::*;

#[error_code]
pub enum TreasurerError {
    #[msg("Only the run's owner may do this: sign with its main authority")]
    SignerIsNotMainAuthority,
    #[msg("Only the member or the run's owner may claim the member's points")]
    SignerMayNotClaim,
    #[msg("These points are more than the member has earned, collected and not yet been paid for")]
    PointsAreNotClaimable,
    #[msg("The run's token account holds less: claim less, or wait until it is topped up")]
    CollateralIsInsufficient,
    #[msg("The rest is owed to members: withdraw at most what the run's token account holds beyond that")]
    CollateralIsOwed,
    #[msg("Members have points to claim: pay them before closing the run")]
    PointsAreOwed,
    #[msg("The earned points are not those of this member in this run")]
    EarnedPointsAreForeign,
    #[msg("The record is of an earlier run at this address: close it, then make a new one")]
    ParticipantIsOfFormerRun,
    #[msg("The record is needed as long as its run is there")]
    RunIsNotClosed,
    #[msg("The token account is of another mint than the run's")]
    MintIsForeign,
    #[msg("The token account does not belong to the member, or somebody else may spend from it")]
    UserCollateralIsNotOwn,
    #[msg("The owner can pay a member only to its associated token account, unless that one is frozen or not its own any more")]
    UserCollateralIsNotAssociated,
    #[msg("A total would exceed 64 bits")]
    TotalOverflow,
}
