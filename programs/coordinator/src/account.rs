//! The program's accounts.

use std::cell::RefMut;

use anchor_lang::prelude::*;
use anchor_lang::{Discriminator, Owner, ZeroCopy};
use bytemuck::{Pod, Zeroable};
use psyche_rules::limits::STATE_BYTES;
use psyche_rules::state::State;

use crate::errors::CoordinatorError;

/// The version of the layout that this program reads and writes.
pub const VERSION: u64 = 1;

/// Where `run_uid` lies in a coordinator account: behind the discriminator.
pub const RUN_UID_OFFSET: usize = 8 + core::mem::offset_of!(State, run_uid);

/// The state of a run: 165,192 bytes with the discriminator, used in place.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct CoordinatorAccount(pub State);

// SAFETY: a transparent wrapper of a type that is both.
unsafe impl Zeroable for CoordinatorAccount {}
unsafe impl Pod for CoordinatorAccount {}

impl ZeroCopy for CoordinatorAccount {}

impl Discriminator for CoordinatorAccount {
    /// The first 8 bytes of SHA-256(`account:CoordinatorAccount`).
    const DISCRIMINATOR: &'static [u8] = &[0xef, 0x21, 0xb1, 0x37, 0x2c, 0x9b, 0x56, 0x2b];
}

impl Owner for CoordinatorAccount {
    fn owner() -> Pubkey {
        crate::ID
    }
}

impl CoordinatorAccount {
    /// The state of an account, to be changed.
    #[inline(never)]
    pub fn load<'a>(account: &'a AccountLoader<CoordinatorAccount>) -> Result<RefMut<'a, State>> {
        check_size(account.as_ref())?;
        let loaded = RefMut::map(account.load_mut()?, |account| &mut account.0);
        require_eq!(loaded.version, VERSION, CoordinatorError::UnsupportedVersion);
        Ok(loaded)
    }
}

/// Refuse an account of another size than a coordinator account has.
pub fn check_size(account: &AccountInfo) -> Result<()> {
    require_eq!(account.data_len(), STATE_BYTES, CoordinatorError::CoordinatorAccountIncorrectSize);
    Ok(())
}

/// Names a run's authorities and its account. Its address follows from the run id, so each run id stands once.
#[account]
pub struct CoordinatorInstance {
    pub bump: u8,
    /// The owner of the run.
    pub main_authority: Pubkey,
    /// Whose authorizations allow a join.
    pub join_authority: Pubkey,
    pub coordinator_account: Pubkey,
    pub run_id: String,
    /// All that was ever moved from the slots to earned points; whoever pays for points knows from it what is owed.
    pub collected_points: u64,
}

impl CoordinatorInstance {
    pub const SEED: &'static [u8] = b"coordinator";
    /// Room for a run id of 64 bytes, twice what the program allows.
    pub const SPACE: usize = 8 + 1 + 3 * 32 + 4 + 64 + 8;
}

/// What one signer has earned in one run. It outlives the slot and the run, and whoever pays the signer reads it.
#[account]
#[derive(InitSpace)]
pub struct EarnedPoints {
    pub bump: u8,
    pub coordinator_account: Pubkey,
    /// Tells the run from later ones on the same account or of the same name.
    pub run_uid: [u8; 32],
    pub signer: Pubkey,
    /// Who paid the deposit and gets it back.
    pub payer: Pubkey,
    /// All points ever collected; never goes down.
    pub points: u64,
}

impl EarnedPoints {
    pub const SEED: &'static [u8] = b"Earned";
    pub const SPACE: usize = 8 + Self::INIT_SPACE;
}
