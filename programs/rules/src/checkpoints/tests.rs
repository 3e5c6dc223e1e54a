extern crate std;
use std::boxed::Box;

use super::*;
use crate::testing::build_state;

const MEMBER: Hash = [5; 32];

/// A run in Cooldown of epoch 2, which certified weights; its second member sits in slot 9.
fn build_cooldown() -> Box<State> {
    let mut state = build_state();
    state.run_state = RunState::COOLDOWN;
    (state.progress.epoch, state.epoch.clients_len) = (2, 2);
    (state.clients[1].p2p, state.clients[1].slot) = (MEMBER, 9);
    state.certified = Mark { digest: [3; 32], epoch: 2, step: 7, ..Mark::UNSET };
    state.checkpoint = Mark { digest: [1; 32], step: 1, ..Mark::UNSET };
    state.model.checkpoint[0] = 1;
    state.model.extra_checkpoints[1] = build_source(2, b'x');
    state
}

fn build_source(kind: u8, name: u8) -> [u8; CHECKPOINT_BYTES] {
    let mut source = [0; CHECKPOINT_BYTES];
    (source[0], source[4]) = (kind, name);
    source
}

fn name(state: &mut State, source: &[u8; CHECKPOINT_BYTES]) -> Result<bool, Refusal> {
    let message = NameCheckpoint { epoch: 2, digest: &[3; 32], source };
    process_checkpoint(state, &Context { now: 0, slot: 0, sender: MEMBER }, &message)
}

#[test]
fn the_first_source_replaces_the_old_ones_and_three_more_follow() {
    let mut state = build_cooldown();
    for (place, kind) in [2, 4, 6, 2].into_iter().enumerate() {
        let source = build_source(kind, b'a' + place as u8);
        assert_eq!(name(&mut state, &source), Ok(true));
        assert_eq!(name(&mut state, &source), Err(Refusal::InvalidCheckpoint), "it is on record");
        assert_eq!(usize::from(state.epoch.checkpoint_sources), place + 1);
    }
    assert_eq!((state.checkpoint.uploader, state.checkpoint.step, state.certified.uploader), (9, 7, 65_535));
    let kinds = state.model.extra_checkpoints.map(|source| source[0]);
    assert_eq!((state.model.checkpoint[0], kinds), (2, [4, 6, 2]));
    assert_eq!(name(&mut state, &build_source(2, b'z')), Err(Refusal::InvalidCheckpoint), "no room");
}

#[test]
fn sources_last_and_have_a_name() {
    let mut state = build_cooldown();
    for kind in [0, 1, 3, 5, 7] {
        assert_eq!(name(&mut state, &build_source(kind, b'a')), Err(Refusal::InvalidCheckpoint), "kind {kind}");
    }
    for bad in [build_source(2, 0), build_source(2, 0xff)] {
        assert_eq!(name(&mut state, &bad), Err(Refusal::InvalidCheckpoint));
    }
    assert_eq!(state.checkpoint.digest, [1; 32]);
}

#[test]
fn sources_of_an_earlier_epoch_do_not_count_for_this_cooldown() {
    let mut state = build_cooldown();
    state.progress.epoch = 3;
    assert_eq!((name(&mut state, &build_source(2, b'a')), state.epoch.checkpoint_sources), (Ok(true), 0));
    (state.progress.epoch, state.run_state) = (2, RunState::ROUND_TRAIN);
    assert_eq!(name(&mut state, &build_source(2, b'b')), Err(Refusal::InvalidRunState));
    state.run_state = RunState::WAITING_FOR_MEMBERS;
    assert_eq!((name(&mut state, &build_source(2, b'b')), state.epoch.checkpoint_sources), (Ok(true), 0));
    state.certified.epoch = 1;
    assert_eq!(name(&mut state, &build_source(2, b'c')), Err(Refusal::WrongRound));
    state.run_state = RunState::UNINITIALIZED;
    assert_eq!(name(&mut state, &build_source(2, b'c')), Err(Refusal::Halted));
}

#[test]
fn members_name_sources_of_the_certified_weights() {
    let mut state = build_cooldown();
    state.certified.digest = [4; 32];
    assert_eq!(name(&mut state, &build_source(2, b'a')), Err(Refusal::DigestMismatch));
    state.clients[1].state = ClientState::EJECTED;
    assert_eq!(name(&mut state, &build_source(2, b'a')), Err(Refusal::UnknownMember));
}
