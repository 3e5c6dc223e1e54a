//! The formation of an epoch, its first round, and the failure of Warmup (T8, M3, P5).

use crate::bits::Bitmap;
use crate::enums::{client_flag, ClientState, RunState, SlotState};
use crate::hash::Hash;
use crate::limits::{GOOD_STREAK_ROUNDS, WARMUP_FAILURE_LIMIT, WARMUP_FAILURE_LIMIT_OLD_CHECKPOINT};
use crate::membership::process_vacancies;
use crate::probation::{get_founders, is_led_by_proven};
use crate::readiness::{is_certified, process_certification, process_unready, Starters};
use crate::roster::is_expired;
use crate::rounds::process_first_round;
use crate::state::{Client, Epoch, Round, State};
use crate::timing::process_state_change;

/// The slots that a formation would take now (M3, M10).
///
/// Slots that still have to wait count only if there are too few others; otherwise strikes on two of three members
/// would end the run.
pub fn get_joined(state: &State, now: u64) -> Bitmap {
    let next_active = state.registry.next_active;
    let joined = Bitmap::collect(state.slots(), |slot| {
        slot.state == SlotState::JOINED && slot.active >= next_active && !is_expired(slot, now)
    });
    get_founders(state, joined)
}

/// Make the slots the members of an epoch, in slot order, and begin Warmup (M3).
pub fn process_formation(state: &mut State, now: u64, slots: Bitmap) {
    let proven = Bitmap::collect(state.slots(), |slot| slot.proven != 0);
    let is_led = is_led_by_proven(state) && !(slots & proven).is_empty();
    state.epoch = Epoch {
        start_step: state.progress.step,
        start_timestamp: now,
        first_round: 1,
        warmup_failures: state.epoch.warmup_failures,
        cold_start: state.epoch.cold_start,
        clients_len: slots.count() as u16,
        ..Epoch::ZERO
    };
    state.rounds.iter_mut().for_each(|round| *round = Round::ZERO);
    state.clients.iter_mut().for_each(|client| *client = Client::ZERO);
    process_founders(state, slots, is_led);
    let registry = &mut state.registry;
    registry.current_earning_rate = registry.future_earning_rate;
    registry.current_slashing_rate = registry.future_slashing_rate;
    process_state_change(state, now, RunState::WARMUP);
}

/// Write the members, one after another.
#[inline(never)]
fn process_founders(state: &mut State, slots: Bitmap, is_led: bool) {
    let (next_active, epoch) = (state.registry.next_active, state.progress.epoch);
    let mut places = state.clients.iter_mut();
    slots.visit_mut(&mut state.registry.slots, |number, slot| {
        let Some(client) = places.next() else {
            return; // there are as many places as slots
        };
        (slot.active, slot.last_epoch) = (next_active, epoch);
        (client.signer, client.p2p, client.slot) = (slot.signer, slot.p2p, number as u16);
        client.good_streak = GOOD_STREAK_ROUNDS; // A1
        if is_led && slot.proven == 0 {
            client.flags = client_flag::PROBATION; // M10
        }
    });
}

/// Begin round 0 with the members that can start; all others leave (T8, S8, M3).
///
/// Starters that have left since the start was armed are members of the round: they were drawn (E1).
pub fn process_epoch_start(state: &mut State, now: u64, entropy: &Hash, starters: Starters) {
    process_certification(state, starters);
    process_leftovers(state, starters);
    state.epoch.warmup_failures = 0; // P5
    process_joins_closed(state);
    let members = Bitmap::collect(state.clients(), |client| starters.has(client));
    process_first_round(state, now, entropy, members);
}

/// Let the Healthy members leave that are not among the starters, without a strike (M4, T8).
#[inline(never)]
fn process_leftovers(state: &mut State, starters: Starters) {
    let State { clients, registry, epoch, .. } = state;
    for client in &mut clients[..usize::from(epoch.clients_len)] {
        if client.state != ClientState::HEALTHY || starters.has(client) {
            continue;
        }
        client.state = ClientState::DROPPED;
        registry.slots[usize::from(client.slot)].active = 0;
        process_unready(epoch, client);
    }
}

/// Use up all joins made so far: everybody must join again (M3).
pub fn process_joins_closed(state: &mut State) {
    state.registry.next_active = state.registry.next_active.saturating_add(1);
}

/// End Warmup without a start: members that cannot start leave, and the run waits for members again (T8, S8, P5).
pub fn process_warmup_failure(state: &mut State, now: u64, starters: Starters) {
    let nobody_ready = state.epoch.ready_len == 0;
    process_leftovers(state, starters);
    process_abandonment(state, now);
    if nobody_ready && is_certified(state) {
        state.epoch.warmup_failures = state.epoch.warmup_failures.saturating_add(1);
        process_rollback(state);
    }
}

/// Return to WaitingForMembers; the epoch keeps its number (T8).
pub fn process_abandonment(state: &mut State, now: u64) {
    state.current_mut().entropy_slot = 0; // E1
    process_vacancies(state);
    process_state_change(state, now, RunState::WAITING_FOR_MEMBERS);
}

/// Roll back to the checkpoint if nobody could show the certified weights in several Warmups in a row (P5).
fn process_rollback(state: &mut State) {
    let mark = state.checkpoint;
    let is_old = u32::from(mark.epoch) + 1 < u32::from(state.certified.epoch);
    let limit = if is_old { WARMUP_FAILURE_LIMIT_OLD_CHECKPOINT } else { WARMUP_FAILURE_LIMIT };
    if state.epoch.warmup_failures < limit {
        return;
    }
    (state.progress.step, state.progress.epoch_start_data_index) = (mark.step, mark.data_index);
    state.certified = mark;
    state.epoch.warmup_failures = 0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build_run, build_waiting, ENTROPY, STARTED};

    #[test]
    fn members_are_the_founders_in_slot_order() {
        let mut state = build_waiting(6);
        state.registry.slots[1].state = SlotState::LEAVING;
        state.registry.slots[2].expires_unix = STARTED;
        state.registry.slots[3].expires_unix = STARTED + 1;
        state.registry.slots[4].proven = 1;
        (state.registry.future_earning_rate, state.registry.future_slashing_rate) = (7, 8);
        (state.epoch.warmup_failures, state.epoch.cold_start, state.clients[5].credits) = (1, 1, 9);
        state.rounds[3].height = 9;
        state.config.init_min_clients = 4;
        let joined = get_joined(&state, STARTED);
        assert!(joined.members().eq([0, 3, 4, 5]));
        process_formation(&mut state, STARTED, joined);
        let slots = state.clients().iter().map(|client| client.slot);
        assert!(slots.eq([0, 3, 4, 5]) && state.clients[1].p2p == state.registry.slots[3].p2p);
        let flags = state.clients().iter().map(|client| client.flags);
        assert!(flags.eq([8, 8, 0, 8]), "newcomers are on probation where somebody is proven");
        assert_eq!((state.clients[5].credits, state.rounds[3].height), (0, 0));
        assert_eq!((state.epoch.warmup_failures, state.epoch.cold_start, state.epoch.first_round), (1, 1, 1));
        assert_eq!((state.registry.current_earning_rate, state.registry.current_slashing_rate), (7, 8));
    }

    #[test]
    fn the_second_warmup_that_nobody_can_start_rolls_back() {
        let mut state = build_run(3);
        (state.certified.step, state.certified.epoch, state.progress.step) = (30, 1, 30);
        (state.checkpoint.step, state.checkpoint.data_index) = (12, 34);
        for (failures, step) in [(1, 30), (0, 12)] {
            state.run_state = RunState::WARMUP;
            state.epoch.ready_len = 0;
            for client in &mut state.clients[..3] {
                (client.state, client.flags) = (ClientState::HEALTHY, 0);
            }
            process_warmup_failure(&mut state, STARTED, Starters::Ready);
            assert_eq!((state.epoch.warmup_failures, state.progress.step), (failures, step));
        }
        assert_eq!((state.certified.step, state.progress.epoch_start_data_index), (12, 34));
        (state.certified.epoch, state.epoch.warmup_failures) = (2, 8);
        process_rollback(&mut state);
        assert_eq!(state.epoch.warmup_failures, 8, "an old checkpoint costs more");
        state.epoch.warmup_failures = 10;
        process_rollback(&mut state);
        assert_eq!(state.epoch.warmup_failures, 0);
    }

    #[test]
    fn a_start_leaves_behind_who_is_not_ready() {
        let mut state = build_run(3);
        state.run_state = RunState::WARMUP;
        (state.clients[1].flags, state.epoch.ready_len, state.registry.slots[1].active) = (0, 2, 9);
        state.epoch.start_candidates[0].count = 2;
        process_epoch_start(&mut state, STARTED, &ENTROPY, Starters::Ready);
        assert!(state.clients[1].state == ClientState::DROPPED && state.registry.slots[1].active == 0);
        assert!(state.current().members.members().eq([0, 2]) && state.registry.next_active == 3);
    }
}
