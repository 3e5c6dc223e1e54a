//! What a run owes its members.

use anchor_lang::prelude::*;
use psyche_coordinator::{CoordinatorAccount, CoordinatorInstance};
use psyche_rules::roster::is_in_epoch;
use psyche_rules::state::State;

use crate::state::Run;

/// The points for which members have not been paid: in their slots, collected, and those that the running epoch pays
/// at its end. More than 64 bits hold are as many as they hold: no run can pay them.
pub fn compute_owed(
    run: &Run,
    instance: &CoordinatorInstance,
    account: &AccountLoader<CoordinatorAccount>,
) -> Result<u64> {
    let gross = compute_gross(&account.load()?.0, instance.collected_points);
    Ok(gross.map_or(u64::MAX, |gross| gross.saturating_sub(run.total_claimed_earned_points)))
}

/// All that the run ever owed.
fn compute_gross(state: &State, collected: u64) -> Option<u64> {
    let registry = &state.registry;
    let is_paying = is_in_epoch(state);
    let pool = if is_paying { registry.current_earning_rate.checked_add(registry.carry)? } else { 0 };
    registry.slots.iter().try_fold(collected.checked_add(pool)?, |sum, slot| sum.checked_add(slot.earned))
}
