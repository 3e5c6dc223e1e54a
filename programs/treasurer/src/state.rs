//! The accounts of the treasurer.

use anchor_lang::prelude::*;

use crate::errors::TreasurerError;

/// A run that the treasurer owns. Its address names its owner, so that nobody else can take it.
#[account]
#[derive(InitSpace)]
pub struct Run {
    pub bump: u8,
    pub index: u64,
    /// The owner.
    pub main_authority: Pubkey,
    pub join_authority: Pubkey,
    pub coordinator_account: Pubkey,
    pub coordinator_instance: Pubkey,
    pub collateral_mint: Pubkey,
    /// All points for which members were ever paid.
    pub total_claimed_earned_points: u64,
    /// The token account that pays them.
    pub run_collateral: Pubkey,
    /// Tells the run from others on the same coordinator account.
    pub run_uid: [u8; 32],
}

impl Run {
    pub const SEED: &'static [u8] = b"Run";
    pub const SPACE: usize = 8 + Self::INIT_SPACE;

    /// What signs for the run.
    pub fn with_seeds<T>(&self, sign: impl FnOnce(&[&[&[u8]]]) -> T) -> T {
        let (index, bump) = (self.index.to_le_bytes(), [self.bump]);
        sign(&[&[Self::SEED, self.main_authority.as_ref(), &index, &bump]])
    }
}

/// What one member of one run was paid.
#[account]
#[derive(InitSpace)]
pub struct Participant {
    pub bump: u8,
    pub run: Pubkey,
    /// Tells the run from later ones at its address.
    pub run_uid: [u8; 32],
    pub user: Pubkey,
    /// Who paid the deposit and gets it back.
    pub payer: Pubkey,
    pub claimed_earned_points: u64,
}

impl Participant {
    pub const SEED: &'static [u8] = b"Participant";
    pub const SPACE: usize = 8 + Self::INIT_SPACE;
}

/// The sum, or an error that says why there is none.
pub fn add(total: u64, points: u64) -> Result<u64> {
    Ok(total.checked_add(points).ok_or(TreasurerError::TotalOverflow)?)
}
