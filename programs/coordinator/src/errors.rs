//! Why an instruction fails: first the refusals of the rules, with the numbers of `psyche.core.state.errors` from
//! 6,000 on, then the program's own from 6,100 on.

use anchor_lang::prelude::*;
use psyche_rules::errors::Refusal;

#[error_code]
pub enum CoordinatorError {
    #[msg("The run is new, finished or paused; wait until its owner resumes it")]
    Halted = 0,
    #[msg("The message is not allowed in the run's current state; read the account again")]
    InvalidRunState = 1,
    #[msg("The message names an epoch and round that are not running (T7); read the account again")]
    WrongRound = 2,
    #[msg("The round does not exist yet or no longer exists")]
    NoActiveRound = 3,
    #[msg("There is no such member, or none of its keys signed; sign with the wallet or p2p key that joined")]
    UnknownMember = 4,
    #[msg("The sender is not an elected witness of this round, or its report breaks a rule (W4)")]
    InvalidWitness = 5,
    #[msg("The bloom filter has more bits set than its items can set (W4)")]
    InvalidBloom = 6,
    #[msg("The member has already reported on this round, or is ready already (K3)")]
    DuplicateWitness = 7,
    #[msg("All witness records of the round are in")]
    WitnessesFull = 8,
    #[msg("The digest differs from the one on record (S8, S10); load the certified weights")]
    DigestMismatch = 9,
    #[msg("A fifth digest competes for the start of the run (S8); load the configured weights")]
    TooManyCandidates = 10,
    #[msg("The record does not support the accusation (H4)")]
    InvalidHealthCheck = 11,
    #[msg("The checkpoint cannot be recorded as a source: its kind, its name or a repetition (S10)")]
    InvalidCheckpoint = 12,
    #[msg("There is nothing to withdraw: the member is not Healthy, or has no join to take back (M4)")]
    InvalidWithdraw = 13,
    #[msg("The numbers of an election contradict each other")]
    InvalidCommitteeSelection = 14,
    #[msg("The run is neither paused nor new, so it cannot be resumed")]
    CannotResume = 15,
    #[msg("The join breaks a rule: its key is zero, or another slot holds the p2p key (M1, M2)")]
    InvalidJoin = 16,
    #[msg("No slot is free; free an idle one by reclaim_slot (M4)")]
    ClientsFull = 17,
    #[msg("The slot's stake is below the run's min_stake (M5)")]
    StakeTooLow = 18,
    #[msg("The signer was ejected from this run (M6)")]
    Banned = 19,
    #[msg("The member is ejected already (R7)")]
    InvalidEvidence = 20,
    #[msg("The setting cannot change while the run is going; pause it first (P9)")]
    CannotUpdate = 21,
    #[msg("The earnings cannot be collected (M11)")]
    InvalidCollection = 22,
    #[msg("The run's settings break a rule; psyche validate-config names key and rule")]
    ConfigRefused = 23,
    #[msg("The sender is no verifier of this round, or what it reports breaks a rule (V9)")]
    InvalidAudit = 24,
    #[msg("The challenge is not open for its jury now, or the sender is not in the jury (V12)")]
    InvalidJudgement = 25,

    #[msg("The instruction's data are not what its kind requires: length, option byte, text, flag or kind")]
    Malformed = 100,
    #[msg("A coordinator account has 165,192 bytes; create it with exactly that many")]
    CoordinatorAccountIncorrectSize = 101,
    #[msg("The account has another version of the layout; use the program that made it")]
    UnsupportedVersion = 102,
    #[msg("The account is not empty; create a fresh one in the same transaction")]
    CoordinatorAccountNotEmpty = 103,
    #[msg("A run id has 1 to 32 bytes and a client version at most 96, both without a zero byte")]
    InvalidTexts = 104,
    #[msg("Only the run's main authority may do this; sign with its key")]
    NotOwner = 105,
    #[msg("The run is going; pause it before freeing it")]
    CloseCoordinatorNotHalted = 106,
    #[msg("A slot still holds earnings; collect them before freeing the run")]
    UncollectedEarnings = 107,
    #[msg("The authorization does not allow this wallet to join; ask the run's join authority for an active one")]
    NotAuthorized = 108,
    #[msg("A slot is free, so none is reclaimed")]
    RegistryNotFull = 109,
    #[msg("The instruction before this one must be of the ed25519 program, with the two signed results (R7)")]
    MissingEvidence = 110,
    #[msg("The two results do not prove this member guilty in this round and run (R7)")]
    UnprovenEvidence = 111,
    #[msg("The chain's slot hashes cannot be read")]
    SlotHashesUnreadable = 112,
    #[msg("The run is not freed yet; its earned points may still grow")]
    RunNotFreed = 113,
}

impl From<Refusal> for CoordinatorError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Halted => Self::Halted,
            Refusal::InvalidRunState => Self::InvalidRunState,
            Refusal::WrongRound => Self::WrongRound,
            Refusal::NoActiveRound => Self::NoActiveRound,
            Refusal::UnknownMember => Self::UnknownMember,
            Refusal::InvalidWitness => Self::InvalidWitness,
            Refusal::InvalidBloom => Self::InvalidBloom,
            Refusal::DuplicateWitness => Self::DuplicateWitness,
            Refusal::WitnessesFull => Self::WitnessesFull,
            Refusal::DigestMismatch => Self::DigestMismatch,
            Refusal::TooManyCandidates => Self::TooManyCandidates,
            Refusal::InvalidHealthCheck => Self::InvalidHealthCheck,
            Refusal::InvalidCheckpoint => Self::InvalidCheckpoint,
            Refusal::InvalidWithdraw => Self::InvalidWithdraw,
            Refusal::InvalidCommitteeSelection => Self::InvalidCommitteeSelection,
            Refusal::CannotResume => Self::CannotResume,
            Refusal::InvalidJoin => Self::InvalidJoin,
            Refusal::ClientsFull => Self::ClientsFull,
            Refusal::StakeTooLow => Self::StakeTooLow,
            Refusal::Banned => Self::Banned,
            Refusal::InvalidEvidence => Self::InvalidEvidence,
            Refusal::CannotUpdate => Self::CannotUpdate,
            Refusal::InvalidCollection => Self::InvalidCollection,
            Refusal::ConfigRefused => Self::ConfigRefused,
            Refusal::InvalidAudit => Self::InvalidAudit,
            Refusal::InvalidJudgement => Self::InvalidJudgement,
        }
    }
}
