//! The treasurer: owns runs of the coordinator, and pays their members in tokens, one base unit for each point.
//!
//! The run's owner signs for the treasurer's `Run`, which is the run's main authority at the coordinator. Members are
//! paid from the run's token account for the points that the coordinator keeps for them. What is not owed to members
//! is the owner's.

use anchor_lang::prelude::*;

mod errors;
mod instructions;
mod owed;
mod state;
mod token;

pub use errors::TreasurerError;
pub use instructions::*;
pub use state::{Participant, Run};

use psyche_coordinator::UpdateBody;

declare_id!("PsycheTreasurer1111111111111111111111111111");

#[program]
pub mod psyche_treasurer {
    use super::*;

    /// Begin a run that the treasurer owns, and make its token account. Its owner signs.
    pub fn run_create(context: Context<RunCreate>, params: RunCreateParams) -> Result<()> {
        run_create::process(context, params)
    }

    /// Change the run as its owner: the coordinator does what each part that is there says, or refuses all.
    pub fn run_update(context: Context<RunUpdate>, params: RunUpdateParams, settings: UpdateBody) -> Result<()> {
        run_update::process(context, params, settings)
    }

    /// The owner takes tokens that are not owed to members.
    pub fn run_withdraw(context: Context<RunWithdraw>, amount: u64) -> Result<()> {
        run_withdraw::process(context, amount)
    }

    /// Free the run and its accounts, once nothing is left to pay. Remaining tokens and all deposits go to the owner.
    pub fn run_close(context: Context<RunClose>) -> Result<()> {
        run_close::process(context)
    }

    /// Make the record of what a member has been paid.
    pub fn participant_create(context: Context<ParticipantCreate>) -> Result<()> {
        participant_create::process(context)
    }

    /// Pay a member for points that it has earned and that were collected.
    pub fn participant_claim(context: Context<ParticipantClaim>, points: u64) -> Result<()> {
        participant_claim::process(context, points)
    }

    /// Close the record of a member of a closed run; the deposit goes back to who paid it.
    pub fn participant_close(context: Context<ParticipantClose>) -> Result<()> {
        participant_close::process(context)
    }
}
