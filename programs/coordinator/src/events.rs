//! What the program logs, for whoever follows a run without reading its whole account.

use anchor_lang::prelude::*;
use psyche_rules::enums::RunState;
use psyche_rules::state::State;

/// The run entered another state, round or epoch.
#[event]
pub struct StateChanged {
    pub coordinator_account: Pubkey,
    pub nonce: u64,
    pub step: u32,
    pub height: u32,
    pub epoch: u16,
    pub run_state: u8,
}

/// A wallet has a place in the next formation.
#[event]
pub struct Joined {
    pub coordinator_account: Pubkey,
    pub signer: Pubkey,
    pub p2p: Pubkey,
}

/// A member left the epoch, or a join was taken back.
#[event]
pub struct Withdrew {
    pub coordinator_account: Pubkey,
    pub sender: Pubkey,
}

/// A wallet gave up its slot.
#[event]
pub struct LeftRun {
    pub coordinator_account: Pubkey,
    pub signer: Pubkey,
}

/// A member was ejected: it signed two results for one round.
#[event]
pub struct Ejected {
    pub coordinator_account: Pubkey,
    pub signer: Pubkey,
    pub height: u32,
    pub epoch: u16,
    pub member: u16,
}

/// Earnings moved from a slot to the signer's earned points.
#[event]
pub struct Collected {
    pub coordinator_account: Pubkey,
    pub signer: Pubkey,
    pub amount: u64,
    pub points: u64,
}

/// Where a run stands.
#[derive(PartialEq, Eq)]
pub struct Position {
    run_state: RunState,
    epoch: u16,
    height: u32,
}

impl Position {
    pub fn of(state: &State) -> Self {
        Self { run_state: state.run_state, epoch: state.progress.epoch, height: state.current().height }
    }

    /// Log the run's new position, if this is its old one.
    pub fn report_change(&self, state: &State, account: &Pubkey) {
        let Self { run_state, epoch, height } = Self::of(state);
        if (Self { run_state, epoch, height }) == *self {
            return;
        }
        emit!(StateChanged {
            coordinator_account: *account,
            nonce: state.nonce,
            step: state.progress.step,
            height,
            epoch,
            run_state: run_state.0,
        });
    }
}
