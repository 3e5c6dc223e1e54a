use anchor_lang::prelude::*;
use psyche_rules::enums::RunState;
use psyche_rules::state::State;

use crate::account::CoordinatorAccount;
use crate::apply::apply;
use crate::body::kind;
use crate::entropy::{find_recorded, Entropy};
use crate::instructions::user::UserAccounts;

pub(crate) fn process(context: Context<UserAccounts>) -> Result<()> {
    let (account, user) = (context.accounts.coordinator_account.key(), context.accounts.user.key());
    let mut state = CoordinatorAccount::load(&context.accounts.coordinator_account)?;
    let entropy = find_entropy(&state)?;
    apply(&mut state, &account, &user, kind::TICK, entropy.write(&mut [0; 33]))?;
    Ok(())
}

/// The entropy of the armed slot; none where no seed is due.
fn find_entropy(state: &State) -> Result<Entropy> {
    let armed = state.current().entropy_slot;
    let draws = matches!(state.run_state, RunState::WARMUP | RunState::ROUND_WITNESS);
    if draws && armed != 0 {
        return find_recorded(armed);
    }
    Ok(Entropy::None)
}
