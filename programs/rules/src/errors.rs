//! The refusals of the state machine: one per class of `psyche.core.state.errors`, with its number.
//!
//! A refused message leaves every byte of the state unchanged (T2).

/// Why a message is refused. Programs return 6,000 + the number.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The run is uninitialized, finished or paused.
    Halted = 0,
    /// The message is not allowed in the current run state.
    InvalidRunState = 1,
    /// The message names an (epoch, height) other than the running one (T7).
    WrongRound = 2,
    /// The requested round does not exist yet or no longer exists.
    NoActiveRound = 3,
    /// There is no such member, or the message is not signed by one of its keys.
    UnknownMember = 4,
    /// The sender is not an elected witness, or its record breaks a rule of W4.
    InvalidWitness = 5,
    /// The bloom filter has more bits set than its items can set (W4).
    InvalidBloom = 6,
    /// The member has already reported on this round, or is ready already (K3).
    DuplicateWitness = 7,
    /// All witness records of the round are in.
    WitnessesFull = 8,
    /// The digest differs from the one on record (S8, S10).
    DigestMismatch = 9,
    /// A fifth digest competes for the start of the run (S8).
    TooManyCandidates = 10,
    /// The record does not support the accusation (H4).
    InvalidHealthCheck = 11,
    /// The checkpoint cannot be recorded as a source (S10).
    InvalidCheckpoint = 12,
    /// The member is not Healthy, or there is no join to take back (M4).
    InvalidWithdraw = 13,
    /// The numbers of an election contradict each other.
    InvalidCommitteeSelection = 14,
    /// The run is neither paused nor new.
    CannotResume = 15,
    /// The join breaks a rule.
    InvalidJoin = 16,
    /// No slot of the registry is free.
    ClientsFull = 17,
    /// The slot's stake is below the run's `min_stake` (M5).
    StakeTooLow = 18,
    /// The signer's slot is banned for the run (M6).
    Banned = 19,
    /// The report of equivocation names a member that is ejected already.
    InvalidEvidence = 20,
    /// The setting cannot change while the run is going (P9).
    CannotUpdate = 21,
    /// The requested earnings cannot be collected (M11).
    InvalidCollection = 22,
    /// The run's configuration breaks a rule.
    ConfigRefused = 23,
    /// The sender is no verifier of this round, or what it reports breaks a rule of V9.
    InvalidAudit = 24,
    /// The challenge is not open for its jury now, or the sender is not in the jury (V12).
    InvalidJudgement = 25,
}
