//! The state machine: every change to the state of a run goes through this module.

use crate::audits::{process_audit, process_judgement};
use crate::checkpoints::process_checkpoint;
use crate::errors::Refusal;
use crate::health::process_health_check;
use crate::membership::{
    process_collection, process_ejection, process_join, process_leave, process_reclaim, process_withdrawal,
};
use crate::message::Message;
use crate::owner::{process_client_version, process_pause, process_rates, process_resume, process_update};
use crate::phases::process_tick;
use crate::readiness::process_ready;
use crate::state::State;
use crate::timing::process_recovery;
use crate::witnessing::process_witness;
use crate::Context;

/// Apply a message; return whether a byte of the state changed (T2). If one did, `nonce` is incremented.
///
/// The caller has checked the sender's signature, and that this sender may send this kind of message.
///
/// # Errors
/// The message breaks a rule. No byte has changed.
pub fn apply(state: &mut State, context: &Context, message: &Message) -> Result<bool, Refusal> {
    let changed = process(state, context, message)?;
    state.nonce += u64::from(changed);
    Ok(changed)
}

fn process(state: &mut State, context: &Context, message: &Message) -> Result<bool, Refusal> {
    match message {
        Message::Tick(tick) => process_tick(state, context.now, context.slot, &tick.entropy),
        Message::Join(join) => process_join(state, context, join),
        Message::LeaveRun => process_leave(state, context),
        Message::Withdraw(withdrawal) => process_withdrawal(state, context, withdrawal),
        Message::WarmupWitness(ready) => process_ready(state, context, ready),
        Message::Witness(report) => process_witness(state, context, report),
        Message::HealthCheck(accusation) => process_health_check(state, context, accusation),
        Message::Checkpoint(named) => process_checkpoint(state, context, named),
        Message::ReportEquivocation(report) => process_ejection(state, report),
        Message::Pause => process_pause(state, context),
        Message::Resume => process_resume(state, context),
        Message::Recover(recovery) => process_recovery(state, context, recovery),
        Message::ReclaimSlot => process_reclaim(state),
        Message::SetRates(rates) => process_rates(state, rates),
        Message::Collect(collection) => process_collection(state, collection),
        Message::Update(update) => process_update(state, update),
        Message::UpdateClientVersion(version) => process_client_version(state, version),
        Message::ReportAudit(finding) => process_audit(state, context, finding),
        Message::JudgeChallenge(vote) => process_judgement(state, context, vote),
    }
}
