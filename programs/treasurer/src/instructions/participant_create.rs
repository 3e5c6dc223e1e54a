use anchor_lang::prelude::*;

use crate::state::{Participant, Run};

/// The member need not sign: its run's owner may make the record in order to pay it.
#[derive(Accounts)]
pub struct ParticipantCreate<'info> {
    #[account(mut)]
    pub payer: Signer<'info>,
    /// CHECK: any key can be a member's.
    pub user: UncheckedAccount<'info>,
    pub run: Box<Account<'info, Run>>,
    #[account(
        init,
        payer = payer,
        space = Participant::SPACE,
        seeds = [Participant::SEED, run.key().as_ref(), user.key.as_ref()],
        bump,
    )]
    pub participant: Account<'info, Participant>,
    pub system_program: Program<'info, System>,
}

pub(crate) fn process(context: Context<ParticipantCreate>) -> Result<()> {
    let accounts = context.accounts;
    accounts.participant.set_inner(Participant {
        bump: context.bumps.participant,
        run: accounts.run.key(),
        run_uid: accounts.run.run_uid,
        user: accounts.user.key(),
        payer: accounts.payer.key(),
        claimed_earned_points: 0,
    });
    Ok(())
}
