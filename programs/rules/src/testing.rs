//! Numbers for tests that try many cases: random, but the same in every run.

extern crate std;

use std::boxed::Box;

use crate::bits::Bitmap;
use crate::enums::{RunState, SlotState};
use crate::hash::{read_u64, sha256, Hash};
use crate::message::{Entropy, WarmupWitness};
use crate::phases::process_tick;
use crate::readiness::process_ready;
use crate::state::{Config, Model, State};
use crate::Context;

/// A generator of numbers, drawn from its name.
pub struct Random {
    name: Hash,
    drawn: u64,
}

impl Random {
    pub fn new(name: &str) -> Random {
        Random { name: sha256(&[name.as_bytes()]), drawn: 0 }
    }

    pub fn hash(&mut self) -> Hash {
        self.drawn += 1;
        sha256(&[&self.name, &self.drawn.to_le_bytes()])
    }

    pub fn word(&mut self) -> u64 {
        read_u64(&self.hash())
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.word() % (high - low + 1) as u64) as usize
    }

    pub fn bitmap(&mut self) -> Bitmap {
        Bitmap::from_bytes(&self.hash())
    }
}

/// An account of zero bytes.
pub fn build_state() -> Box<State> {
    // SAFETY: zero bytes are a valid state, and the pointer comes from the allocator with the layout of one.
    unsafe { Box::from_raw(std::alloc::alloc_zeroed(core::alloc::Layout::new::<State>()).cast()) }
}

/// Where the clock of a test's run stands when its first round begins.
pub const STARTED: u64 = 1_000;

/// The digest of the weights that the members of a test's run start from.
pub const WEIGHTS: Hash = [7; 32];

/// The entropy of all rounds of a test's run.
pub const ENTROPY: Hash = [9; 32];

/// The p2p key of a member; its signer is the same with a first byte of 1.
pub fn build_key(member: usize) -> Hash {
    sha256(&[&member.to_le_bytes()])
}

/// A run that waits for members; this many slots have joined.
pub fn build_waiting(slots: usize) -> Box<State> {
    let mut state = build_state();
    let config = &mut state.config;
    (config.min_clients, config.init_min_clients, config.total_steps) = (1, 1, 1_000);
    (config.warmup_time, config.max_round_train_time, config.round_witness_time) = (60, 60, 5);
    (config.global_batch_size_start, config.global_batch_size_end) = (256, 256);
    (config.evict_after, config.late_limit) = (2, 3);
    (state.run_state, state.progress.step) = (RunState::WAITING_FOR_MEMBERS, 1);
    (state.registry.slots_len, state.registry.next_active) = (slots as u16, 1);
    for (number, slot) in state.slots_mut().iter_mut().enumerate() {
        (slot.p2p, slot.signer, slot.state) = (build_key(number), build_key(number), SlotState::JOINED);
        (slot.signer[0], slot.active) = (1, 1);
    }
    state
}

/// A message of a member.
pub fn build_context(now: u64, member: usize) -> Context {
    Context { now, slot: now, sender: build_key(member) }
}

/// A run whose first round has just begun, with all its members.
pub fn build_run(members: usize) -> Box<State> {
    let mut state = build_waiting(members);
    process_tick(&mut state, STARTED, STARTED, &Entropy::None).unwrap();
    for member in 0..members {
        let ready = WarmupWitness { epoch: 0, member: member as u16, digest: &WEIGHTS };
        process_ready(&mut state, &build_context(STARTED, member), &ready).unwrap();
    }
    for _ in 0..2 {
        process_tick(&mut state, STARTED, STARTED, &Entropy::Hash(&ENTROPY)).unwrap();
    }
    assert!(state.run_state == RunState::ROUND_TRAIN);
    state
}

/// Settings with which a run can begin.
pub fn build_config() -> Config {
    Config {
        cooldown_time: 1,
        max_round_train_time: 1,
        round_witness_time: 1,
        rounds_per_epoch: 4,
        total_steps: 10,
        init_min_clients: 1,
        min_clients: 1,
        global_batch_size_start: 8,
        global_batch_size_end: 8,
        waiting_for_members_extra_time: 1,
        evict_after: 2,
        late_limit: 3,
        ..Config::ZERO
    }
}

/// A model that trains from dummy weights and data.
pub fn build_model() -> Model {
    let mut model = Model { max_seq_len: 16, ..Model::ZERO };
    model.checkpoint[0] = 1;
    model
}
