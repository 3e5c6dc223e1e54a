//! The coordinator of runs of Psyche: one account per run, and the rules of `psyche_rules` on its bytes.
//!
//! Every message of the protocol is an instruction. The program adds what only a chain can know: who signed, the
//! time and slot, the entropy of a recorded slot, and that an authority allows a join. It runs no tick inside another
//! instruction (T3): a client appends a tick where it expects one to act.

pub mod account;
pub mod apply;
pub mod body;

pub mod entropy;
pub mod errors;
pub mod events;
pub mod evidence;
#[cfg(feature = "idl-build")]
mod idl;
pub mod instructions;

use anchor_lang::prelude::*;

pub use account::*;
pub use body::*;
pub use errors::CoordinatorError;
pub use instructions::*;

declare_id!("PsycheCoordinator11111111111111111111111111");

#[program]
pub mod psyche_coordinator {
    use super::*;

    /// Begin a run on an account that the same transaction created.
    pub fn init_coordinator(context: Context<InitCoordinator>, params: InitCoordinatorParams) -> Result<()> {
        init_coordinator::process(context, params)
    }

    /// Close a halted run without earnings; the deposits of its two accounts go to `spill`. Signed by the owner.
    pub fn free_coordinator(context: Context<FreeCoordinator>) -> Result<()> {
        free_coordinator::process(context)
    }

    /// Change config, model or progress of a paused or new run, or its metadata and bootstrap addresses (P9).
    pub fn update(context: Context<OwnerAccounts>, body: UpdateBody) -> Result<()> {
        owner::process_update(context, &body.bytes)
    }

    /// Set the client version that the run requires, while it is paused or new (P9).
    pub fn update_client_version(context: Context<OwnerAccounts>, body: UpdateClientVersionBody) -> Result<()> {
        owner::process(context, kind::UPDATE_CLIENT_VERSION, &body.bytes)
    }

    /// Set the earning and slashing rates of coming epochs (M7).
    pub fn set_future_epoch_rates(context: Context<OwnerAccounts>, body: SetFutureEpochRatesBody) -> Result<()> {
        owner::process(context, kind::SET_RATES, &body.bytes)
    }

    /// Pause the run, or resume a paused or new one (P4).
    pub fn set_paused(context: Context<OwnerAccounts>, paused: bool) -> Result<()> {
        owner::process(context, if paused { kind::PAUSE } else { kind::RESUME }, &[])
    }

    /// Take a place in the next formation; wallet and p2p key both sign, and an authorization allows it (M1).
    pub fn join_run(context: Context<JoinRun>, expires_unix: u64) -> Result<()> {
        join_run::process(context, expires_unix)
    }

    /// Make the transition that time or the record requires (T2). Anyone may send it.
    pub fn tick(context: Context<UserAccounts>) -> Result<()> {
        tick::process(context)
    }

    /// Put an elected witness's report on record (W1 to W5).
    pub fn witness(context: Context<UserAccounts>, body: WitnessBody) -> Result<()> {
        user::process(context, kind::WITNESS, &body.bytes)
    }

    /// Report ready in Warmup, with the full digest of the loaded weights (S8).
    pub fn warmup_witness(context: Context<UserAccounts>, body: WarmupWitnessBody) -> Result<()> {
        user::process(context, kind::WARMUP_WITNESS, &body.bytes)
    }

    /// Accuse a silent witness of the previous round (H4).
    pub fn health_check(context: Context<UserAccounts>, body: HealthCheckBody) -> Result<()> {
        user::process(context, kind::HEALTH_CHECK, &body.bytes)
    }

    /// Put what an elected verifier found on record; where the run convicts, an accusation opens a challenge (V12).
    pub fn audit(context: Context<UserAccounts>, body: AuditBody) -> Result<()> {
        user::process(context, kind::AUDIT, &body.bytes)
    }

    /// Count a juror's vote on an open challenge (V12).
    pub fn judge(context: Context<UserAccounts>, body: JudgeBody) -> Result<()> {
        user::process(context, kind::JUDGE, &body.bytes)
    }

    /// Name a lasting source of the certified weights (S10).
    pub fn checkpoint(context: Context<UserAccounts>, body: CheckpointBody) -> Result<()> {
        user::process(context, kind::CHECKPOINT, &body.bytes)
    }

    /// Leave the running epoch, or take a join back (M4).
    pub fn withdraw(context: Context<UserAccounts>, body: WithdrawBody) -> Result<()> {
        user::process(context, kind::WITHDRAW, &body.bytes)
    }

    /// Give up the signer's slot (M4).
    pub fn leave_run(context: Context<UserAccounts>) -> Result<()> {
        user::process(context, kind::LEAVE, &[])
    }

    /// Free the slot that has been idle longest, where a full registry has no room (M4). Anyone may send it.
    pub fn reclaim_slot(context: Context<UserAccounts>) -> Result<()> {
        user::process_reclaim(context)
    }

    /// Move the earnings of `signer`'s slot to its account of earned points (M11). Anyone may send it.
    pub fn collect(context: Context<CollectPoints>, signer: Pubkey) -> Result<()> {
        collect::process(context, signer)
    }

    /// Close the account of earned points after its run is freed; signed by whom the points belong to.
    pub fn close_earned_points(context: Context<CloseEarnedPoints>) -> Result<()> {
        close_earned_points::process(context)
    }

    /// Eject a member that signed two results for one round (R7). The instruction before this one is of the ed25519
    /// program and checks both signatures. Anyone may send it.
    pub fn report_equivocation(context: Context<ReportEquivocation>, body: ReportEquivocationBody) -> Result<()> {
        report_equivocation::process(context, &body.bytes)
    }
}
