use anchor_lang::prelude::*;
use psyche_rules::state::State;

use crate::account::{CoordinatorAccount, CoordinatorInstance, EarnedPoints};
use crate::apply::apply;
use crate::body::kind;
use crate::events::Collected;

#[derive(Accounts)]
#[instruction(signer: Pubkey)]
pub struct CollectPoints<'info> {
    /// Pays the deposit of new earned points, and gets it back when they are closed.
    #[account(mut)]
    pub payer: Signer<'info>,
    #[account(
        mut,
        seeds = [CoordinatorInstance::SEED, coordinator_instance.run_id.as_bytes()],
        bump = coordinator_instance.bump,
        has_one = coordinator_account,
    )]
    pub coordinator_instance: Account<'info, CoordinatorInstance>,
    #[account(mut)]
    pub coordinator_account: AccountLoader<'info, CoordinatorAccount>,
    #[account(
        init_if_needed,
        payer = payer,
        space = EarnedPoints::SPACE,
        seeds = [EarnedPoints::SEED, &CoordinatorAccount::load(&coordinator_account)?.run_uid, signer.as_ref()],
        bump,
    )]
    pub earned_points: Account<'info, EarnedPoints>,
    pub system_program: Program<'info, System>,
}

pub(crate) fn process(context: Context<CollectPoints>, signer: Pubkey) -> Result<()> {
    let accounts = context.accounts;
    let account = accounts.coordinator_account.key();
    let mut state = CoordinatorAccount::load(&accounts.coordinator_account)?;
    let before = get_earned(&state, &signer);
    apply(&mut state, &account, &accounts.payer.key(), kind::COLLECT, &write_claim(&signer))?;
    let amount = before - get_earned(&state, &signer);
    let earned = &mut accounts.earned_points;
    if earned.bump == 0 {
        earned.bump = context.bumps.earned_points;
        earned.coordinator_account = account;
        earned.run_uid = state.run_uid;
        earned.signer = signer;
        earned.payer = accounts.payer.key();
    }
    // A refusal would keep the slot's earnings, and with them the run, for ever. No mint has more units than 64 bits.
    earned.points = earned.points.saturating_add(amount);
    let collected = &mut accounts.coordinator_instance.collected_points;
    *collected = collected.saturating_add(amount);
    emit!(Collected { coordinator_account: account, signer, amount, points: earned.points });
    Ok(())
}

/// The earnings in the signer's slot.
fn get_earned(state: &State, signer: &Pubkey) -> u64 {
    let own = state.slots().iter().filter(|slot| slot.signer == signer.to_bytes());
    own.map(|slot| slot.earned).sum()
}

/// The body of a collection of all that one signer has earned.
fn write_claim(signer: &Pubkey) -> [u8; 37] {
    let mut claim = [0; 37];
    claim[0] = 1; // one claim; its last byte says that it names no amount
    claim[4..36].copy_from_slice(signer.as_ref());
    claim
}
