extern crate std;
use std::boxed::Box;
use std::vec::Vec;

use super::*;
use crate::limits::MAX_CLAIMS;
use crate::message::{read, Message};
use crate::testing::build_state;

fn key(number: usize, kind: u8) -> Hash {
    let mut key = [kind; 32];
    key[..2].copy_from_slice(&(number as u16).to_le_bytes());
    key
}

/// A run that waits for members, with this many joined slots.
fn build_registry(len: usize) -> Box<State> {
    let mut state = build_state();
    state.run_state = RunState::WAITING_FOR_MEMBERS;
    state.registry.next_active = 5;
    state.registry.slots_len = len as u16;
    for (number, slot) in state.slots_mut().iter_mut().enumerate() {
        (slot.signer, slot.p2p, slot.state) = (key(number, 1), key(number, 2), SlotState::JOINED);
    }
    state
}

fn build_context(sender: Hash) -> Context {
    Context { now: 100, slot: 0, sender }
}

fn join(state: &mut State, signer: Hash, p2p: Hash) -> Result<bool, Refusal> {
    process_join(state, &build_context(signer), &Join { p2p: &p2p, expires_unix: 0 })
}

#[test]
fn a_repeated_join_changes_nothing_until_the_epoch_does() {
    let mut state = build_registry(0);
    assert_eq!(join(&mut state, key(7, 1), key(7, 2)), Ok(true));
    assert_eq!(join(&mut state, key(7, 1), key(7, 2)), Ok(false));
    state.progress.epoch = 1;
    assert_eq!(join(&mut state, key(7, 1), key(7, 2)), Ok(true));
    assert_eq!((state.registry.slots_len, state.registry.slots[0].last_epoch), (1, 1));
}

#[test]
fn the_slot_whose_wait_ends_first_makes_room_in_a_full_registry() {
    let mut state = build_registry(MAX_CLIENTS);
    assert_eq!(join(&mut state, key(300, 1), key(300, 2)), Err(Refusal::ClientsFull));
    for (number, until) in [(9, 8), (40, 7), (200, 7)] {
        let slot = &mut state.registry.slots[number];
        *slot = Slot { signer: slot.signer, state: SlotState::LEFT, strikes: 1, until, ..Slot::ZERO };
    }
    assert_eq!(join(&mut state, key(300, 1), key(300, 2)), Ok(true));
    let slot = &state.registry.slots[40];
    assert!(is_same(&slot.signer, &key(300, 1)));
    assert_eq!((slot.strikes, slot.until, slot.active, slot.joined_unix), (0, 0, 5, 100));
}

#[test]
fn a_signer_that_left_joins_with_its_strikes_and_waits() {
    let mut state = build_registry(3);
    (state.registry.slots[1].strikes, state.registry.slots[1].until) = (2, 9);
    assert_eq!(process_leave(&mut state, &build_context(key(1, 1))), Ok(true));
    assert_eq!(state.registry.slots[1].state, SlotState::LEFT);
    assert_eq!(process_leave(&mut state, &build_context(key(1, 1))), Err(Refusal::UnknownMember));
    assert_eq!(join(&mut state, key(1, 1), key(1, 2)), Ok(true));
    let slot = &state.registry.slots[1];
    assert_eq!((slot.state, slot.strikes, slot.active), (SlotState::JOINED, 2, 9));
    assert_eq!((state.registry.slots_len, slot.joined_unix), (3, 0));
}

#[test]
fn a_p2p_key_belongs_to_one_slot() {
    let mut state = build_registry(3);
    assert_eq!(join(&mut state, key(1, 1), key(2, 2)), Err(Refusal::InvalidJoin));
    assert_eq!(join(&mut state, key(2, 1), key(2, 2)), Ok(true));
    state.registry.slots[2] = Slot::ZERO;
    assert_eq!(join(&mut state, key(1, 1), key(2, 2)), Ok(true));
    assert_eq!(join(&mut state, key(1, 1), [0; 32]), Err(Refusal::InvalidJoin));
    assert_eq!(join(&mut state, [0; 32], key(9, 2)), Err(Refusal::InvalidJoin));
}

#[test]
fn only_the_stake_in_the_slot_counts() {
    let mut state = build_registry(1);
    state.config.min_stake = 10;
    assert_eq!(join(&mut state, key(5, 1), key(5, 2)), Err(Refusal::StakeTooLow));
    assert_eq!(join(&mut state, key(0, 1), key(0, 2)), Err(Refusal::StakeTooLow));
    state.registry.slots[0].stake = 10;
    assert_eq!(join(&mut state, key(0, 1), key(0, 2)), Ok(true));
}

/// The body of a collection; an amount of 0 stands for everything.
fn write_claims(claims: &[(Hash, u64)]) -> Vec<u8> {
    let mut body = (claims.len() as u32).to_le_bytes().to_vec();
    for (signer, amount) in claims {
        body.extend(signer);
        match amount {
            0 => body.push(0),
            _ => body.extend([&[1][..], &amount.to_le_bytes()].concat()),
        }
    }
    body
}

fn collect(state: &mut State, claims: &[(Hash, u64)]) -> Result<bool, Refusal> {
    let body = write_claims(claims);
    let Ok(Message::Collect(message)) = read(15, &body) else { panic!("the body is a collection") };
    process_collection(state, &message)
}

#[test]
fn a_collection_takes_all_of_its_claims_or_none() {
    let mut state = build_registry(4);
    for slot in state.slots_mut() {
        slot.earned = 50;
    }
    assert_eq!(collect(&mut state, &[(key(0, 1), 20), (key(1, 1), 51)]), Err(Refusal::InvalidCollection));
    assert_eq!(collect(&mut state, &[(key(0, 1), 20), (key(9, 1), 0)]), Err(Refusal::UnknownMember));
    assert!(state.slots().iter().all(|slot| slot.earned == 50));
    assert_eq!(collect(&mut state, &[(key(0, 1), 20), (key(1, 1), 0), (key(3, 1), 50)]), Ok(true));
    assert_eq!(state.slots().iter().map(|slot| slot.earned).collect::<Vec<_>>(), [30, 0, 50, 0]);
    assert_eq!(collect(&mut state, &[(key(1, 1), 0)]), Ok(false));
    let nothing = [&[1, 0, 0, 0][..], &key(0, 1), &[1], &[0; 8]].concat();
    let Ok(Message::Collect(message)) = read(15, &nothing) else { panic!("the body is a collection") };
    assert_eq!(process_collection(&mut state, &message), Err(Refusal::InvalidCollection));
}

#[test]
fn nobody_is_named_twice_in_a_collection() {
    let mut state = build_registry(MAX_CLIENTS);
    let mut claims: Vec<_> = (0..MAX_CLAIMS).map(|number| (key(number, 1), 0)).collect();
    assert_eq!(collect(&mut state, &claims), Ok(false));
    for (first, second) in [(0, 1), (0, 63), (30, 31), (5, 50), (62, 63)] {
        let kept = core::mem::replace(&mut claims[second], (key(first, 1), 0));
        assert_eq!(collect(&mut state, &claims), Err(Refusal::InvalidCollection), "{first} and {second}");
        claims[second] = kept;
    }
}

#[test]
fn a_leaving_slot_is_freed_with_its_last_earnings() {
    let mut state = build_registry(2);
    state.registry.slots[0].earned = 5;
    assert_eq!(process_leave(&mut state, &build_context(key(0, 1))), Ok(true));
    assert_eq!(process_leave(&mut state, &build_context(key(0, 1))), Err(Refusal::InvalidWithdraw));
    assert_eq!(collect(&mut state, &[(key(0, 1), 4)]), Ok(true));
    assert_eq!(state.registry.slots[0].state, SlotState::LEAVING);
    assert_eq!(collect(&mut state, &[(key(0, 1), 0)]), Ok(true));
    assert_eq!(state.registry.slots[0].as_bytes(), Slot::ZERO.as_bytes());
}

/// No run reaches such a slot, since it is freed when it could arise, but an account can hold one.
#[test]
fn a_leaving_slot_without_earnings_is_reclaimed_and_not_collected() {
    let mut state = build_registry(1);
    (state.registry.slots[0].state, state.progress.epoch) = (SlotState::LEAVING, 2);
    assert_eq!(collect(&mut state, &[(key(0, 1), 0)]), Ok(false));
    assert_eq!(state.registry.slots[0].state, SlotState::LEAVING);
    assert_eq!(process_reclaim(&mut state), Ok(true));
    assert_eq!(state.registry.slots[0].state, SlotState::FREE);
}

/// As above: the states of such slots say more than their waits do.
#[test]
fn only_a_join_is_taken_back() {
    let mut state = build_registry(3);
    let withdrawal = Withdraw { epoch: 0, member: 0 };
    (state.registry.slots[0].active, state.registry.slots[0].state) = (5, SlotState::LEAVING);
    state.registry.slots[1].active = 4;
    state.registry.slots[2].active = 6;
    let withdraw = |state: &mut State, slot| process_withdrawal(state, &build_context(key(slot, 2)), &withdrawal);
    assert_eq!(withdraw(&mut state, 0), Err(Refusal::InvalidWithdraw));
    assert_eq!(withdraw(&mut state, 1), Err(Refusal::InvalidWithdraw));
    assert_eq!((withdraw(&mut state, 2), withdraw(&mut state, 2)), (Ok(true), Err(Refusal::InvalidWithdraw)));
    assert_eq!(withdraw(&mut state, 3), Err(Refusal::UnknownMember));
}

#[test]
fn slots_are_reclaimed_in_their_order() {
    let mut state = build_registry(10);
    state.progress.epoch = 10;
    (state.registry.slots[8].active, state.registry.slots[9].active) = (5, 6);
    let idle = [(1, 0, 0, 3), (0, 2, 9, 1), (0, 2, 9, 0), (0, 2, 5, 4), (0, 0, 9, 7), (0, 0, 0, 7), (0, 0, 0, 9)];
    for (slot, (proven, strikes, until, last_epoch)) in state.slots_mut().iter_mut().zip(idle) {
        (slot.proven, slot.strikes, slot.until, slot.last_epoch) = (proven, strikes, until, last_epoch);
    }
    state.registry.slots[7].earned = 1;
    let mut order = Vec::new();
    while process_reclaim(&mut state) == Ok(true) {
        order.push((0..10).find(|n| state.registry.slots[*n].state == SlotState::FREE && !order.contains(n)).unwrap());
    }
    // only waits for strikes count, and none that is over; slot 6 was there in the last epoch, slot 7 holds earnings,
    // and the last two have a place in this formation or, after a wait, in the next one
    assert_eq!(order, [3, 4, 5, 2, 1, 0]);
}

#[test]
fn an_ejected_member_loses_credits_and_stake() {
    let mut state = build_registry(3);
    state.run_state = RunState::COOLDOWN;
    state.epoch.clients_len = 2;
    (state.clients[1].slot, state.clients[1].credits, state.epoch.credit_total) = (2, 4, 6);
    (state.registry.slots[2].stake, state.registry.slots[2].slashed) = (u64::MAX, 3);
    let report = |epoch, height, member| ReportEquivocation { epoch, height, member };
    assert_eq!(process_ejection(&mut state, &report(1, 0, 1)), Err(Refusal::WrongRound));
    assert_eq!(process_ejection(&mut state, &report(0, 1, 1)), Err(Refusal::WrongRound));
    assert_eq!(process_ejection(&mut state, &report(0, 0, 2)), Err(Refusal::UnknownMember));
    assert_eq!(process_ejection(&mut state, &report(0, 0, 1)), Ok(true));
    let slot = &state.registry.slots[2];
    assert_eq!((slot.state, slot.stake, slot.slashed), (SlotState::BANNED, 0, u64::MAX));
    assert_eq!((state.clients[1].credits, state.epoch.credit_total), (0, 2));
    assert_eq!(process_ejection(&mut state, &report(0, 0, 1)), Err(Refusal::InvalidEvidence));
}

#[test]
fn bans_are_reclaimed_after_newcomers_and_before_proven_members() {
    let mut state = build_registry(4);
    (state.registry.next_active, state.progress.epoch) = (9, 9);
    for slot in &mut state.registry.slots[..4] {
        (slot.proven, slot.last_epoch) = (1, 7);
    }
    state.registry.slots[1].proven = 0;
    for number in [2, 3] {
        (state.registry.slots[number].state, state.registry.slots[number].active) = (SlotState::BANNED, 0);
    }
    (state.registry.slots[2].earned, state.registry.slots[3].last_epoch) = (1, 8);
    assert_eq!(find_reclaimable(&state), Some(1));
    state.registry.slots[1].last_epoch = 8;
    assert_eq!(find_reclaimable(&state), Some(0), "a ban of the last epoch stays, and so does one with earnings");
    state.registry.slots[2].earned = 0;
    assert_eq!(find_reclaimable(&state), Some(2));
}
