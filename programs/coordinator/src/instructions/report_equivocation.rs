use anchor_lang::prelude::*;

use crate::account::{CoordinatorAccount, CoordinatorInstance};
use crate::apply::apply;
use crate::body::kind;
use crate::errors::CoordinatorError;
use crate::events::Ejected;
use crate::evidence;

const INSTRUCTIONS: Pubkey = pubkey!("Sysvar1nstructions1111111111111111111111111");

#[derive(Accounts)]
pub struct ReportEquivocation<'info> {
    pub user: Signer<'info>,
    #[account(
        seeds = [CoordinatorInstance::SEED, coordinator_instance.run_id.as_bytes()],
        bump = coordinator_instance.bump,
        has_one = coordinator_account,
    )]
    pub coordinator_instance: Account<'info, CoordinatorInstance>,
    #[account(mut)]
    pub coordinator_account: AccountLoader<'info, CoordinatorAccount>,
    /// CHECK: the runtime's list of the transaction's instructions.
    #[account(address = INSTRUCTIONS)]
    pub instructions: UncheckedAccount<'info>,
}

pub(crate) fn process(context: Context<ReportEquivocation>, body: &[u8]) -> Result<()> {
    let accounts = context.accounts;
    let account = accounts.coordinator_account.key();
    let mut state = CoordinatorAccount::load(&accounts.coordinator_account)?;
    let (epoch, height, member) = read(body).ok_or(CoordinatorError::Malformed)?;
    evidence::check(&state, &accounts.instructions, epoch, height, member)?;
    apply(&mut state, &account, accounts.user.key, kind::REPORT_EQUIVOCATION, body)?;
    let signer = Pubkey::from(state.clients[member as usize].signer);
    emit!(Ejected { coordinator_account: account, signer, height, epoch, member });
    Ok(())
}

/// Epoch, height and member.
fn read(body: &[u8]) -> Option<(u16, u32, u16)> {
    let body: &[u8; 8] = body.try_into().ok()?;
    let number = |at: usize| u16::from_le_bytes([body[at], body[at + 1]]);
    Some((number(0), u32::from(number(2)) | u32::from(number(4)) << 16, number(6)))
}
