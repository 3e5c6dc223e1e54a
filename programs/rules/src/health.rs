//! Health: which members are absent, late or good, and the consequences (H1 to H5); credits and earnings (H2, M7).

use crate::bits::Bitmap;
use crate::elections::is_witness;
use crate::enums::{round_flag, ClientState};
use crate::errors::Refusal;
use crate::limits::{LONGEST_STRIKE_EPOCHS, WITNESS_SILENCE_LIMIT};
use crate::membership::process_vacancies;
use crate::message::HealthCheck;
use crate::probation::{process_fruitless_epoch, process_proof, process_wait};
use crate::roster::{compute_exit_height, find_slot};
use crate::state::{Client, Config, Registry, Round, Slot, State};
use crate::tally::Records;
use crate::timeline::{check_round, get_round};
use crate::Context;

/// The verdict of a round's records on its Healthy members (H1).
struct Judgement {
    absent: Bitmap,
    late: Bitmap,
    good: Bitmap,
    heard: Bitmap,
}

/// Judge the members of the closing round by its records (H1).
///
/// Fewer than q lying witnesses cannot accuse a member; more than n - q honest ones protect it.
fn compute_judgement(state: &State, attested: Option<usize>, judged: Bitmap, records: &Records) -> Judgement {
    let q = u32::from(state.current().quorum);
    let absent = records.heard.missing_at_least(q) & judged;
    let present = judged.without(absent);
    let heard = records.heard.at_least(q) & present;
    let Some(attested) = attested else {
        return Judgement { absent, late: Bitmap::EMPTY, good: Bitmap::EMPTY, heard };
    };
    let due = present & state.rounds[attested].members; // W1: everybody owes something, a verifier its report
    let late = records.held.missing_at_least(q) & due;
    let good = records.held.at_least(q) & due.without(late);
    Judgement { absent, late, good, heard }
}

/// Count absences and late results and drop members with too many; return whether H3 prevented the drops.
///
/// H3: if more than half of the electors were to be dropped at one close, nobody is and the epoch stops.
pub fn process_health(state: &mut State, attested: Option<usize>, records: &Records, healthy: &mut Bitmap) -> bool {
    let judged = state.current().members & *healthy;
    let judgement = compute_judgement(state, attested, judged, records);
    process_reports(state, judged);
    let doomed = process_counts(&mut state.clients, &state.config, &judgement);
    let electors = judged & state.current().electors;
    if 2 * (doomed & electors).count() > electors.count() {
        return true;
    }
    let height = compute_exit_height(state);
    let State { clients, registry, .. } = state;
    doomed.visit_mut(clients, |member, client| process_drop(registry, client, height, judgement.late.get(member)));
    *healthy = healthy.without(doomed);
    false
}

/// H4: whoever reported is no longer silent. The count is reset here and not when the record arrives; accusations
/// from the round before may come until the close.
fn process_reports(state: &mut State, judged: Bitmap) {
    let index = state.current_index();
    for record in state.rounds[index].witnesses() {
        let member = usize::from(record.member);
        if judged.get(member) {
            state.clients[member].witness_missed = 0;
        }
    }
}

/// Update the counts of H2 and the streak of A1; return the members to be dropped. Core asks every member for its
/// verdicts; here every verdict visits its members.
#[inline(never)] // with few values at hand, the loops keep them all in registers
fn process_counts(clients: &mut [Client], config: &Config, judgement: &Judgement) -> Bitmap {
    let mut doomed = Bitmap::EMPTY;
    judgement.absent.visit_mut(clients, |member, client| {
        (client.missed, client.good_streak) = (client.missed.saturating_add(1), 0);
        if client.missed >= config.evict_after {
            doomed.set(member);
        }
    });
    judgement.heard.visit_mut(clients, |_, client| client.good_streak = client.good_streak.saturating_add(1));
    judgement.late.visit_mut(clients, |member, client| {
        (client.missed, client.late) = (0, client.late.saturating_add(1));
        if client.late >= config.late_limit {
            doomed.set(member);
        }
    });
    judgement.good.visit_mut(clients, |_, client| (client.missed, client.late) = (0, 0));
    doomed
}

/// Drop a member in the running round; `strike` is set unless it was merely absent (H5).
pub fn process_drop(registry: &mut Registry, client: &mut Client, height: u32, strike: bool) {
    (client.state, client.exited_height) = (ClientState::DROPPED, height);
    if strike {
        process_strike(&mut registry.slots[usize::from(client.slot)], registry.next_active);
    }
}

/// Add a strike; the slot waits 1, 2, then 4 epochs (H5).
pub fn process_strike(slot: &mut Slot, next_active: u16) {
    slot.strikes = slot.strikes.saturating_add(1);
    process_wait(slot, next_active, slot.strikes, LONGEST_STRIKE_EPOCHS);
}

/// Clear the strikes after a good epoch (H5): a member to the end, credited, with no open misses or late results.
fn process_strike_clearing(slot: &mut Slot, client: &Client) {
    let whole = client.state == ClientState::HEALTHY && client.joined_height == 0;
    if whole && client.credits > 0 && client.missed == 0 && client.late == 0 {
        (slot.strikes, slot.until) = (0, 0);
    }
}

/// Count a silent witness of the previous round; at the second count with no record between, drop it (H4).
///
/// `message.height` is the height of the running round, as in every message (T7).
pub fn process_health_check(state: &mut State, context: &Context, message: &HealthCheck) -> Result<bool, Refusal> {
    let previous = check_accusation(state, context, message)?;
    let (checked, height) = (state.rounds[previous].height + 1, compute_exit_height(state));
    let State { clients, registry, .. } = state;
    let client = &mut clients[usize::from(message.member)];
    client.witness_missed = client.witness_missed.saturating_add(1);
    client.witness_checked_height = checked; // never 0, so that 0 stays "never checked"
    if client.witness_missed >= WITNESS_SILENCE_LIMIT {
        process_drop(registry, client, height, true);
    }
    Ok(true)
}

/// Check an accusation against the record; return the round in which the witness was silent (H4).
fn check_accusation(state: &State, context: &Context, message: &HealthCheck) -> Result<usize, Refusal> {
    check_round(state, message.epoch, message.height)?;
    find_slot(state, &context.sender).ok_or(Refusal::UnknownMember)?;
    let member = usize::from(message.member);
    let client = state.clients().get(member).ok_or(Refusal::UnknownMember)?;
    let before = message.height.checked_sub(1).ok_or(Refusal::NoActiveRound)?;
    let previous = get_round(state, before).ok_or(Refusal::NoActiveRound)?;
    if has_alibi(client, &state.rounds[previous], member) {
        return Err(Refusal::InvalidHealthCheck);
    }
    Ok(previous)
}

/// Whether the member cannot be accused.
fn has_alibi(client: &Client, previous: &Round, member: usize) -> bool {
    let heard = previous.witnesses().iter().filter(|record| record.heard.get(member)).count();
    client.state != ClientState::HEALTHY
        || client.witness_checked_height == previous.height + 1 // counted in this round already
        // a round closed early may have cut off honest witnesses
        || previous.flags & round_flag::BY_TIMEOUT == 0
        || previous.witnesses().iter().any(|record| usize::from(record.member) == member)
        // a member that nobody heard has crashed, and H2 covers that
        || heard + usize::from(previous.quorum) <= usize::from(previous.witnesses_expected)
        || !is_witness(previous, member)
}

/// At close: give one credit to each member of agreed_held, even if it has left since (H2).
///
/// A round closes once, so a batch is credited once. Ejected members get no credit (R7).
#[inline(never)]
pub fn process_credits(state: &mut State) {
    let credited = state.current().agreed_held;
    let State { clients, registry, epoch, .. } = state;
    credited.visit_mut(clients, |_, client| {
        if client.state != ClientState::EJECTED {
            client.credits += 1;
            epoch.credit_total += 1;
            process_proof(&mut registry.slots[usize::from(client.slot)], client);
        }
    });
}

/// At the end of Cooldown: pay credits, clear strikes, let fruitless newcomers wait, free the slots of leavers.
///
/// Every member that is not ejected earns (pool div credit_total) per credit; the remainder carries over (M7). A good
/// epoch clears a member's strikes (H5). A newcomer whose epoch was fruitless waits (M10).
pub fn process_settlement(state: &mut State) {
    let (registry, total) = (&mut state.registry, state.epoch.credit_total);
    let pool = registry.current_earning_rate.saturating_add(registry.carry);
    let share = pool / total.max(1);
    registry.carry = pool - share * total;
    process_earnings(state, share);
    process_vacancies(state);
}

#[inline(never)]
fn process_earnings(state: &mut State, share: u64) {
    let (registry, is_credited) = (&mut state.registry, state.epoch.credit_total > 0);
    let (slashing, next_active) = (registry.current_slashing_rate, registry.next_active);
    for client in &state.clients[..usize::from(state.epoch.clients_len)] {
        let slot = &mut registry.slots[usize::from(client.slot)];
        if client.state == ClientState::EJECTED {
            slot.slashed = slot.slashed.saturating_add(slashing);
            continue;
        }
        let earned = share.wrapping_mul(u64::from(client.credits)); // at most the pool: nobody has more than all credits
        slot.earned = slot.earned.saturating_add(earned);
        process_strike_clearing(slot, client);
        process_fruitless_epoch(slot, client, next_active, is_credited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enums::client_flag;
    use crate::roster::get_healthy;
    use crate::testing::{build_context, build_run, Random};

    /// The counts of one member as core takes them.
    fn count_plainly(client: &mut Client, config: &Config, verdicts: [bool; 4]) -> bool {
        let [absent, heard, late, good] = verdicts;
        if absent {
            (client.missed, client.good_streak) = (client.missed.saturating_add(1), 0);
            return client.missed >= config.evict_after;
        }
        if heard {
            client.good_streak = client.good_streak.saturating_add(1);
        }
        if late {
            (client.missed, client.late) = (0, client.late.saturating_add(1));
            return client.late >= config.late_limit;
        }
        if good {
            (client.missed, client.late) = (0, 0);
        }
        false
    }

    #[test]
    fn verdicts_that_visit_their_members_count_as_core_does() {
        let mut random = Random::new("counts");
        for _ in 0..50 {
            let mut state = build_run(1);
            for client in &mut state.clients {
                client.missed = random.between(0, 3) as u8;
                client.late = random.between(0, 3) as u8;
                client.good_streak = random.between(250, 255) as u8;
            }
            let absent = random.bitmap() & random.bitmap();
            let (heard, late) = (random.bitmap().without(absent), random.bitmap().without(absent));
            let good = random.bitmap().without(absent | late);
            let mut plain = state.clients;
            let judgement = Judgement { absent, late, good, heard };
            let doomed = process_counts(&mut state.clients, &state.config, &judgement);
            for member in 0..256 {
                let verdicts = [&absent, &heard, &late, &good].map(|bits| bits.get(member));
                assert_eq!(doomed.get(member), count_plainly(&mut plain[member], &state.config, verdicts));
                let (found, expected) = (&state.clients[member], &plain[member]);
                assert_eq!((found.missed, found.late), (expected.missed, expected.late));
                assert_eq!(found.good_streak, expected.good_streak);
            }
        }
    }

    /// A round of this many members, all of them witnesses, whose records say who was held and heard.
    fn report(state: &mut State, held: Bitmap, heard: Bitmap) {
        let round = state.current_mut();
        round.witnesses_len = round.witnesses_expected;
        for (member, record) in round.witnesses[..usize::from(round.witnesses_expected)].iter_mut().enumerate() {
            (record.member, record.held, record.heard) = (member as u16, held, heard);
        }
    }

    fn close(state: &mut State, attested: Option<usize>) -> (bool, Bitmap) {
        let (records, mut healthy) = (Records::count(state.current()), get_healthy(state.clients()));
        (process_health(state, attested, &records, &mut healthy), healthy)
    }

    #[test]
    fn members_go_after_too_many_misses_and_late_ones_with_a_strike() {
        let mut state = build_run(7);
        let (held, heard) = (Bitmap::below(6), Bitmap::below(7).without(Bitmap::below(1)));
        report(&mut state, held, heard);
        state.clients[6].late = 2;
        assert!(!close(&mut state, Some(0)).0);
        assert!(state.clients[6].state == ClientState::DROPPED && state.registry.slots[6].strikes == 1);
        assert_eq!((state.clients[0].missed, state.clients[0].good_streak), (1, 0));
        let (mass_drop, healthy) = close(&mut state, Some(0));
        assert!(!mass_drop && healthy == Bitmap::below(6).without(Bitmap::below(1)));
        assert!(state.clients[0].state == ClientState::DROPPED && state.registry.slots[0].strikes == 0);
    }

    #[test]
    fn nobody_is_dropped_if_most_electors_would_be() {
        let mut state = build_run(4);
        report(&mut state, Bitmap::below(1), Bitmap::below(4));
        state.clients.iter_mut().for_each(|client| client.late = 2);
        let (mass_drop, healthy) = close(&mut state, Some(0));
        assert!(mass_drop && healthy == Bitmap::below(4));
        state.current_mut().electors = Bitmap::below(1); // newcomers may go
        assert!(!close(&mut state, Some(0)).0);
        assert!(state.clients[3].state == ClientState::DROPPED);
    }

    #[test]
    fn credits_prove_members_and_the_ejected_get_none() {
        let mut state = build_run(3);
        state.current_mut().agreed_held = Bitmap::below(3);
        state.clients[0].flags |= client_flag::PROBATION;
        state.clients[1].state = ClientState::EJECTED;
        process_credits(&mut state);
        assert_eq!(state.epoch.credit_total, 2);
        assert_eq!(
            [0, 1, 2].map(|m| (state.clients[m].credits, state.registry.slots[m].proven)),
            [(1, 1), (0, 0), (1, 1)]
        );
        assert_eq!(state.clients[0].flags & client_flag::PROBATION, 0);
    }

    #[test]
    fn the_pool_is_shared_by_credits_and_the_rest_carries_over() {
        let mut state = build_run(4);
        (state.registry.current_earning_rate, state.registry.carry) = (100, 5);
        state.registry.current_slashing_rate = 9;
        for (member, credits) in [4, 5, 1, 0].into_iter().enumerate() {
            state.clients[member].credits = credits;
        }
        state.epoch.credit_total = 10;
        state.clients[3].state = ClientState::EJECTED;
        state.registry.slots[1].earned = u64::MAX - 3;
        process_settlement(&mut state);
        assert_eq!([0, 1, 2, 3].map(|n| state.registry.slots[n].earned), [40, u64::MAX, 10, 0]);
        assert_eq!((state.registry.carry, state.registry.slots[3].slashed), (5, 9));
    }

    #[test]
    fn an_epoch_without_credits_keeps_the_pool() {
        let mut state = build_run(2);
        (state.registry.current_earning_rate, state.registry.carry) = (u64::MAX, 5);
        process_settlement(&mut state);
        assert_eq!((state.registry.carry, state.registry.slots[0].earned), (u64::MAX, 0));
    }

    #[test]
    fn strikes_are_cleared_after_a_good_epoch_only() {
        let clear = |change: &dyn Fn(&mut Client)| {
            let (mut slot, mut client) = (Slot::ZERO, Client::ZERO);
            (slot.strikes, slot.until, client.credits) = (2, 7, 1);
            change(&mut client);
            process_strike_clearing(&mut slot, &client);
            slot.strikes == 0 && slot.until == 0
        };
        assert!(clear(&|_| ()));
        assert!(!clear(&|client| client.credits = 0));
        assert!(!clear(&|client| client.missed = 1));
        assert!(!clear(&|client| client.late = 1));
        assert!(!clear(&|client| client.joined_height = 1));
        assert!(!clear(&|client| client.state = ClientState::DROPPED));
    }

    #[test]
    fn a_silent_witness_is_dropped_at_the_second_count() {
        let mut state = build_run(5);
        report(&mut state, Bitmap::EMPTY, Bitmap::below(5));
        let round = state.current_mut();
        (round.witnesses_len, round.flags) = (4, round_flag::BY_TIMEOUT);
        state.rounds[1] = state.rounds[0];
        (state.rounds[1].height, state.epoch.rounds_head) = (1, 1);
        let accuse = |state: &mut State, height, member| {
            process_health_check(state, &build_context(9, 0), &HealthCheck { epoch: 0, height, member })
        };
        assert_eq!(accuse(&mut state, 0, 4), Err(Refusal::WrongRound));
        assert_eq!(accuse(&mut state, 1, 5), Err(Refusal::UnknownMember));
        assert_eq!(accuse(&mut state, 1, 3), Err(Refusal::InvalidHealthCheck), "its record is there");
        state.rounds[0].flags = 0;
        assert_eq!(accuse(&mut state, 1, 4), Err(Refusal::InvalidHealthCheck), "not by time-out");
        state.rounds[0].flags = round_flag::BY_TIMEOUT;
        state.rounds[0].witnesses[..3].iter_mut().for_each(|record| record.heard.clear(4));
        assert_eq!(accuse(&mut state, 1, 4), Err(Refusal::InvalidHealthCheck), "one of four heard it, two must");
        state.rounds[0].witnesses[0].heard.set(4);
        assert_eq!(accuse(&mut state, 1, 4), Ok(true));
        assert_eq!(accuse(&mut state, 1, 4), Err(Refusal::InvalidHealthCheck), "counted already");
        assert_eq!((state.clients[4].witness_missed, state.clients[4].witness_checked_height), (1, 1));
        state.clients[4].witness_checked_height = 0;
        assert_eq!(accuse(&mut state, 1, 4), Ok(true));
        assert!(state.clients[4].state == ClientState::DROPPED && state.registry.slots[4].strikes == 1);
        assert_eq!(state.clients[4].exited_height, 1);
    }
}
