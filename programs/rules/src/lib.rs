//! The rules of a run, on the bytes of a coordinator account: what `psyche.core` is in Python.
//!
//! `apply` is the only way to change a state; modules, names and the order of checks are those of `psyche.core`.
//! Neither heap nor Anchor: host tests call it as the programs do.
#![no_std]

pub mod apply;
pub mod audits;
pub mod bits;
pub mod checkpoints;
pub mod elections;
pub mod enums;
pub mod errors;
pub mod formation;
pub mod genesis;
pub mod hash;
pub mod health;
pub mod limits;
pub mod membership;
pub mod message;
pub mod owner;
pub mod phases;
pub mod probation;
pub mod readiness;
pub mod roster;
pub mod rounds;
pub mod schedule;
pub mod seeds;
pub mod shuffle;
pub mod state;
pub mod stopping;
pub mod tally;
#[cfg(test)]
mod testing;
pub mod timeline;
pub mod timing;
pub mod validate;
pub mod witnessing;

pub use apply::apply;
pub use errors::Refusal;
pub use message::{Entropy, Message};
pub use state::State;

use hash::Hash;

/// The time and the sender of a message that reached the coordinator.
#[derive(Clone, Copy)]
pub struct Context {
    /// Unix seconds.
    pub now: u64,
    /// The chain's slot.
    pub slot: u64,
    /// A signer or p2p key whose signature the caller has checked; zeros for unsigned messages.
    pub sender: Hash,
}
