extern crate std;
use std::boxed::Box;

use super::*;
use crate::genesis::create_run;
use crate::testing::{build_config, build_model, build_state};

const CONTEXT: Context = Context { now: 50, slot: 0, sender: [0; 32] };
const NOTHING: Update = Update {
    config: None,
    model: None,
    progress: None,
    metadata: None,
    bootstrap: None,
    first_weights: None,
    nonce: None,
};

/// A paused run with certified weights.
fn build_paused() -> Box<State> {
    let mut state = build_state();
    assert!(create_run(&mut state, b"run", &[1; 32], b"").is_ok());
    (state.config, state.model) = (build_config(), build_model());
    state.run_state = RunState::PAUSED;
    state.certified = Mark { digest: [3; 32], step: 1, ..Mark::UNSET };
    (state.checkpoint, state.epoch.warmup_failures) = (state.certified, 1);
    state
}

#[test]
fn an_update_of_what_is_on_record_changes_nothing() {
    let mut state = build_paused();
    let (config, model, progress, metadata) = (state.config, state.model, state.progress, state.metadata);
    let same = Update {
        config: Some(config.as_bytes()),
        model: Some(model.as_bytes()),
        progress: Some(progress.as_bytes()),
        metadata: Some(metadata.as_bytes()),
        bootstrap: Some(&[]),
        first_weights: Some(&[3; 32]),
        nonce: Some(0),
    };
    assert_eq!(process_update(&mut state, &NOTHING), Ok(false));
    assert_eq!(process_update(&mut state, &same), Ok(false));
    assert_eq!(state.certified.digest, [3; 32]);
}

#[test]
fn other_weights_steps_and_samples_forget_what_is_certified() {
    let mut other = build_model();
    other.extra_checkpoints[2][0] = 1;
    let progress = state_progress(0, 2, 0);
    let sample = state_progress(0, 1, 9);
    let changes = [
        Update { model: Some(other.as_bytes()), ..NOTHING },
        Update { progress: Some(progress.as_bytes()), ..NOTHING },
        Update { progress: Some(sample.as_bytes()), ..NOTHING },
    ];
    for change in changes {
        let mut state = build_paused();
        assert_eq!(process_update(&mut state, &change), Ok(true));
        assert_eq!(state.certified.as_bytes(), Mark::UNSET.as_bytes());
        assert_eq!((state.checkpoint.uploader, state.epoch.warmup_failures), (NO_UPLOADER, 0));
    }
    let mut longer = build_model();
    longer.max_seq_len = 32;
    let mut state = build_paused();
    assert_eq!(process_update(&mut state, &Update { model: Some(longer.as_bytes()), ..NOTHING }), Ok(true));
    assert_eq!((state.certified.digest, state.epoch.warmup_failures), ([3; 32], 1));
}

#[test]
fn first_weights_are_put_on_record_where_nothing_is_certified() {
    let given = Update { first_weights: Some(&[4; 32]), ..NOTHING };
    let mut state = build_paused();
    assert_eq!(process_update(&mut state, &given), Err(Refusal::ConfigRefused), "it goes on from what it has trained");
    assert_eq!(
        process_update(&mut state, &Update { first_weights: Some(&[0; 32]), ..NOTHING }),
        Err(Refusal::ConfigRefused)
    );
    let progress = state_progress(0, 2, 7);
    let moved = Update { progress: Some(progress.as_bytes()), ..given };
    assert_eq!(process_update(&mut state, &moved), Ok(true));
    let mark = Mark { digest: [4; 32], epoch: 0, uploader: NO_UPLOADER, step: 2, data_index: 7 };
    assert_eq!((state.certified.as_bytes(), state.checkpoint.as_bytes()), (mark.as_bytes(), mark.as_bytes()));
    state.run_state = RunState::UNINITIALIZED;
    let other = Update { first_weights: Some(&[5; 32]), ..NOTHING };
    assert_eq!(process_update(&mut state, &other), Ok(true));
    assert_eq!(process_update(&mut state, &other), Ok(false));
    state.run_state = RunState::WARMUP;
    assert_eq!(process_update(&mut state, &other), Err(Refusal::CannotUpdate));
}

#[test]
fn an_update_made_from_another_record_is_refused() {
    let mut state = build_paused();
    state.nonce = 5;
    assert_eq!(process_update(&mut state, &Update { nonce: Some(4), ..NOTHING }), Err(Refusal::CannotUpdate));
    assert_eq!(process_update(&mut state, &Update { nonce: Some(5), ..NOTHING }), Ok(false));
}

fn state_progress(epoch: u16, step: u32, epoch_start_data_index: u64) -> Progress {
    Progress { epoch, step, epoch_start_data_index, ..Progress::ZERO }
}

#[test]
fn a_refused_part_keeps_the_others_off_the_record() {
    let mut state = build_paused();
    let config = Config { rounds_per_epoch: 9, ..build_config() };
    let mut metadata = Metadata::ZERO;
    metadata.name[0] = 0xff;
    let update = Update { config: Some(config.as_bytes()), metadata: Some(metadata.as_bytes()), ..NOTHING };
    assert_eq!(process_update(&mut state, &update), Err(Refusal::ConfigRefused));
    assert_eq!(state.config.rounds_per_epoch, 4);
    let mut pause = state_progress(1, 1, 0);
    let update = |progress: &Progress, state: &mut State| {
        process_update(state, &Update { progress: Some(progress.as_bytes()), ..NOTHING })
    };
    assert_eq!(update(&pause, &mut state), Err(Refusal::ConfigRefused), "signatures name the epoch");
    (pause.epoch, pause._pad) = (0, [1, 0]);
    assert_eq!(update(&pause, &mut state), Err(Refusal::ConfigRefused), "a pad");
    assert_eq!(update(&state_progress(0, 0, 0), &mut state), Err(Refusal::ConfigRefused), "steps begin at 1");
    let (last, beyond) = (state_progress(0, 1, MAX_DATA_INDEX - 72), state_progress(0, 1, MAX_DATA_INDEX - 71));
    assert_eq!((update(&last, &mut state), update(&beyond, &mut state)), (Ok(true), Err(Refusal::ConfigRefused)));
}

#[test]
fn metadata_and_addresses_change_while_the_run_goes_on() {
    let mut state = build_paused();
    state.run_state = RunState::ROUND_TRAIN;
    let config = state.config;
    let update = Update { config: Some(config.as_bytes()), ..NOTHING };
    assert_eq!(process_update(&mut state, &update), Err(Refusal::CannotUpdate));
    let mut addresses = [0; 2 * BOOTSTRAP_BYTES];
    (addresses[0], addresses[BOOTSTRAP_BYTES]) = (b'/', b'/');
    assert_eq!(process_update(&mut state, &Update { bootstrap: Some(&addresses), ..NOTHING }), Ok(true));
    assert_eq!(process_update(&mut state, &Update { bootstrap: Some(&addresses), ..NOTHING }), Ok(false));
    let update = Update { bootstrap: Some(&addresses[..BOOTSTRAP_BYTES]), ..NOTHING };
    assert_eq!((process_update(&mut state, &update), state.bootstrap[1][0]), (Ok(true), 0));
    let update = Update { metadata: Some(&[b'x'; RUN_METADATA_BYTES]), ..NOTHING };
    assert_eq!((process_update(&mut state, &update), state.metadata.name[0]), (Ok(true), b'x'));
}

#[test]
fn the_spare_checkpoints_stay_as_long_as_the_checkpoint_does() {
    let mut state = build_paused();
    state.model.extra_checkpoints[0][0] = 1;
    let whole = *state.model.as_bytes();
    let mut head = [0; MODEL_HEAD_BYTES];
    head.copy_from_slice(&whole[..MODEL_HEAD_BYTES]);
    assert_eq!(complete_model(&state, &head), whole);
    head[8] += 1; // max_seq_len
    assert_eq!(complete_model(&state, &head)[MODEL_HEAD_BYTES..], whole[MODEL_HEAD_BYTES..]);
    head[20] = 2; // the checkpoint's kind
    assert_eq!(complete_model(&state, &head)[MODEL_HEAD_BYTES..], [0; 3 * CHECKPOINT_BYTES]);
}

#[test]
fn a_resumed_run_needs_a_configuration_that_it_can_run_with() {
    let mut state = build_state();
    assert!(create_run(&mut state, b"run", &[1; 32], b"").is_ok());
    assert_eq!(process_resume(&mut state, &CONTEXT), Err(Refusal::ConfigRefused));
    let mut state = build_paused();
    assert_eq!(process_resume(&mut state, &CONTEXT), Ok(true));
    assert_eq!((state.run_state, state.state_start_unix), (RunState::WAITING_FOR_MEMBERS, 50));
    assert_eq!(state.registry.next_active, 1);
    assert_eq!(process_resume(&mut state, &CONTEXT), Err(Refusal::CannotResume));
}

#[test]
fn a_pause_in_warm_up_lets_members_go() {
    let mut state = build_paused();
    assert_eq!(process_pause(&mut state, &CONTEXT), Err(Refusal::Halted));
    state.run_state = RunState::WARMUP;
    state.epoch.clients_len = 2;
    state.clients[1].state = ClientState::DROPPED;
    assert_eq!(process_pause(&mut state, &CONTEXT), Ok(true));
    assert_eq!((state.clients[0].state, state.clients[1].state), (ClientState::WITHDRAWN, ClientState::DROPPED));
    assert_eq!((state.run_state, state.epoch.cold_start), (RunState::PAUSED, 1));
    state.run_state = RunState::ROUND_WITNESS;
    assert_eq!((process_pause(&mut state, &CONTEXT), process_pause(&mut state, &CONTEXT)), (Ok(true), Ok(false)));
    assert_eq!((state.run_state, state.pending_pause), (RunState::ROUND_WITNESS, 1));
}

#[test]
fn rates_of_coming_epochs_change_one_by_one() {
    let mut state = build_paused();
    let rates = |earning, slashing| SetRates { earning, slashing };
    assert_eq!(process_rates(&mut state, &rates(Some(5), None)), Ok(true));
    assert_eq!(process_rates(&mut state, &rates(Some(5), Some(0))), Ok(false));
    assert_eq!(process_rates(&mut state, &rates(None, Some(u64::MAX))), Ok(true));
    assert_eq!((state.registry.future_earning_rate, state.registry.future_slashing_rate), (5, u64::MAX));
    assert_eq!(state.registry.current_earning_rate, 0);
}
