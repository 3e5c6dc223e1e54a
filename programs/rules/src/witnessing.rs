//! Witness messages: the checks of W4 in their order, and the effect of an accepted message (W5).

use crate::bits::{count_bits, Bitmap};
use crate::elections::is_witness;
use crate::enums::{witness_flag, ClientState, RunState};
use crate::errors::Refusal;
use crate::hash::is_zero;
use crate::limits::{BLOOM_BIT_CAP, BLOOM_HASHES};
use crate::message::WitnessMessage;
use crate::roster::check_member;
use crate::seeds::compute_mix;
use crate::state::State;
use crate::tally::process_agreement;
use crate::timeline::{check_round, get_attested_round};
use crate::Context;

/// Record a witness's report (W4, W5).
pub fn process_witness(state: &mut State, context: &Context, message: &WitnessMessage) -> Result<bool, Refusal> {
    check_witness(state, context, message)?;
    let is_mixed = state.run_state == RunState::ROUND_TRAIN; // frozen from RoundWitness on (E1)
    let round = state.current_mut();
    let record = &mut round.witnesses[usize::from(round.witnesses_len)];
    (record.member, record.flags, record.at_s) = (message.member, message.flags, message.at_s);
    (record.held, record.heard, record.missing) = (message.held, message.heard, message.missing);
    record.broadcast_bloom = *message.broadcast_bloom;
    record.results_root = *message.results_root;
    record.state_digest = *message.state_digest;
    round.witnesses_len += 1;
    if is_mixed {
        round.mix = compute_mix(&round.mix, message.member, message.results_root, message.state_digest);
    }
    round.complete_len += u16::from(message.flags & witness_flag::COMPLETE != 0);
    process_agreement(round);
    Ok(true)
}

/// Check a witness message by the rules of W4, in their order.
fn check_witness(state: &State, context: &Context, message: &WitnessMessage) -> Result<(), Refusal> {
    check_round(state, message.epoch, message.height)?;
    let member = usize::from(message.member);
    check_member(state, context.now, &context.sender, member)?;
    check_election(state, member)?;
    check_bitmaps(state, message)?;
    check_fields(message)
}

fn check_election(state: &State, member: usize) -> Result<(), Refusal> {
    let round = state.current();
    if state.clients[member].state != ClientState::HEALTHY || !is_witness(round, member) {
        return Err(Refusal::InvalidWitness);
    }
    if round.witnesses().iter().any(|record| usize::from(record.member) == member) {
        return Err(Refusal::DuplicateWitness); // K3
    }
    if round.witnesses_len >= round.witnesses_expected {
        return Err(Refusal::WitnessesFull);
    }
    Ok(())
}

/// A report marks only members of the rounds it reports on.
fn check_bitmaps(state: &State, message: &WitnessMessage) -> Result<(), Refusal> {
    let attested = get_attested_round(state).map_or(Bitmap::EMPTY, |index| state.rounds[index].members);
    let everybody = Bitmap::below(usize::from(state.epoch.clients_len));
    let strangers = message.held.without(attested)
        | message.heard.without(state.current().members)
        | message.missing.without(everybody);
    if strangers.is_empty() {
        Ok(())
    } else {
        Err(Refusal::InvalidWitness)
    }
}

fn check_fields(message: &WitnessMessage) -> Result<(), Refusal> {
    let limit = (BLOOM_HASHES * message.held.count()).min(BLOOM_BIT_CAP);
    if count_bits(message.broadcast_bloom) > limit {
        return Err(Refusal::InvalidBloom);
    }
    // the root is zero if nothing is held, and only then; the digest is zero only if the flag says that there is none
    let is_rooted = is_zero(message.results_root) == message.held.is_empty();
    let is_digested = !is_zero(message.state_digest) || message.flags & witness_flag::NO_DIGEST != 0;
    if is_rooted && is_digested {
        Ok(())
    } else {
        Err(Refusal::InvalidWitness)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;

    use super::*;
    use crate::testing::{build_context, build_key, build_run, STARTED};

    const ROOT: [u8; 32] = [4; 32];
    const DIGEST: [u8; 32] = [5; 32];

    const NO_BITS: [u8; 320] = [0; 320];

    /// Send a report of a member, in a first round that attests itself; a test changes it.
    fn send_as<'a>(
        state: &mut State,
        key: usize,
        change: impl FnOnce(&mut WitnessMessage<'a>),
    ) -> Result<bool, Refusal> {
        let mut message = WitnessMessage {
            epoch: 0,
            height: 0,
            member: key as u16,
            flags: witness_flag::COMPLETE,
            at_s: 3,
            held: Bitmap::below(4),
            heard: Bitmap::below(3),
            missing: Bitmap::below(1),
            broadcast_bloom: &NO_BITS,
            results_root: &ROOT,
            state_digest: &DIGEST,
            metadata: &[],
        };
        change(&mut message);
        process_witness(state, &build_context(STARTED, key), &message)
    }

    fn send<'a>(change: impl FnOnce(&mut WitnessMessage<'a>)) -> Result<bool, Refusal> {
        send_as(&mut build_run(4), 0, change)
    }

    /// A filter with this many bits set.
    fn build_bloom(bits: usize) -> [u8; 320] {
        let mut bloom = [0; 320];
        (0..bits).for_each(|bit| bloom[bit / 8] |= 1 << (bit % 8));
        bloom
    }

    #[test]
    fn a_report_is_recorded_mixed_and_counted() {
        let mut state = build_run(4);
        let mix = compute_mix(&[0; 32], 2, &ROOT, &DIGEST);
        assert_eq!(send_as(&mut state, 2, |_| ()), Ok(true));
        let (round, record) = (state.current(), &state.current().witnesses[0]);
        assert_eq!((round.witnesses_len, round.complete_len, round.mix), (1, 1, mix));
        assert_eq!((record.member, record.flags, record.at_s), (2, witness_flag::COMPLETE, 3));
        assert_eq!([record.held, record.heard, record.missing], [4, 3, 1].map(Bitmap::below));
        assert_eq!((record.results_root, record.state_digest), (ROOT, DIGEST));
        state.run_state = RunState::ROUND_WITNESS;
        assert_eq!(send_as(&mut state, 3, |message| message.flags = 0), Ok(true));
        assert_eq!((state.current().complete_len, state.current().mix), (1, mix), "frozen");
    }

    #[test]
    fn every_rule_of_w4_refuses_its_violation() {
        assert_eq!(send(|message| message.epoch = 1), Err(Refusal::WrongRound));
        assert_eq!(send(|message| message.height = 1), Err(Refusal::WrongRound));
        assert_eq!(send(|message| message.member = 1), Err(Refusal::UnknownMember));
        assert_eq!(send(|message| message.member = 256), Err(Refusal::UnknownMember));
        assert_eq!(send(|message| message.held = Bitmap::below(5)), Err(Refusal::InvalidWitness));
        assert_eq!(send(|message| message.heard = Bitmap::below(5)), Err(Refusal::InvalidWitness));
        assert_eq!(send(|message| message.missing = Bitmap::below(5)), Err(Refusal::InvalidWitness));
        assert_eq!(send(|message| message.results_root = &[0; 32]), Err(Refusal::InvalidWitness));
        assert_eq!(send(|message| message.held = Bitmap::EMPTY), Err(Refusal::InvalidWitness));
        assert_eq!(send(|message| message.state_digest = &[0; 32]), Err(Refusal::InvalidWitness));
        assert_eq!(send(|message| (message.state_digest, message.flags) = (&[0; 32], 4)), Ok(true));
    }

    #[test]
    fn a_bloom_filter_has_no_more_bits_than_its_items_can_set() {
        let (most, more) = (build_bloom(28), build_bloom(29));
        assert_eq!(send(|message| message.broadcast_bloom = &most), Ok(true));
        assert_eq!(send(|message| message.broadcast_bloom = &more), Err(Refusal::InvalidBloom));
    }

    #[test]
    fn however_many_items_a_bloom_filter_is_capped() {
        let mut state = build_run(256);
        let witness = (0..256).find(|&member| is_witness(state.current(), member)).unwrap();
        let (most, more) = (build_bloom(1_400), build_bloom(1_401));
        for (bloom, result) in [(&more, Err(Refusal::InvalidBloom)), (&most, Ok(true))] {
            let sent = send_as(&mut state, witness, |message| {
                (message.held, message.broadcast_bloom) = (!Bitmap::EMPTY, bloom);
            });
            assert_eq!(sent, result);
        }
    }

    fn refuse(change: impl FnOnce(&mut State)) -> Refusal {
        let mut state: Box<State> = build_run(4);
        change(&mut state);
        send_as(&mut state, 0, |_| ()).unwrap_err()
    }

    #[test]
    fn reports_come_from_healthy_witnesses_once() {
        assert_eq!(refuse(|state| state.run_state = RunState::PAUSED), Refusal::Halted);
        assert_eq!(refuse(|state| state.run_state = RunState::COOLDOWN), Refusal::InvalidRunState);
        assert_eq!(refuse(|state| state.clients[0].state = ClientState::DROPPED), Refusal::InvalidWitness);
        assert_eq!(refuse(|state| state.current_mut().electors.clear(0)), Refusal::InvalidWitness);
        assert_eq!(refuse(|state| state.clients[0].p2p = build_key(9)), Refusal::UnknownMember);
        let again = |state: &mut State| assert_eq!(send_as(state, 0, |_| ()), Ok(true));
        assert_eq!(refuse(again), Refusal::DuplicateWitness);
        let full = |state: &mut State| {
            let round = state.current_mut();
            round.witnesses_len = 4;
            round.witnesses[..4].iter_mut().for_each(|record| record.member = 1);
        };
        assert_eq!(refuse(full), Refusal::WitnessesFull);
    }
}
