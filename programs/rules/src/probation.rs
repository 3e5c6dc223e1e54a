//! Newcomers: slots without a credit yet are on probation, and wait after fruitless epochs (M10).

use crate::bits::Bitmap;
use crate::enums::client_flag;
use crate::limits::{GOOD_STREAK_ROUNDS, LONGEST_PROBATION_EPOCHS};
use crate::readiness::is_certified;
use crate::state::{Client, Slot, State};

/// Whether only proven members are electors in the epoch that forms (M10).
///
/// After an epoch that certified nothing, everybody is an elector in the next one; the two modes alternate.
pub fn is_led_by_proven(state: &State) -> bool {
    // epochs are counted below 65,536, so an odd difference is an odd sum
    !is_certified(state) || (state.progress.epoch ^ state.certified.epoch) & 1 == 1
}

/// After a credit: the slot is proven and its probation's wait ends (M10); a wait for strikes remains.
pub fn process_proof(slot: &mut Slot, client: &mut Client) {
    if client.flags & client_flag::PROBATION != 0 {
        client.flags &= !client_flag::PROBATION;
        client.good_streak = GOOD_STREAK_ROUNDS; // A1: others wait for it as at the start, whatever it has missed
    }
    (slot.proven, slot.fruitless) = (1, 0);
    if slot.strikes == 0 {
        slot.until = 0;
    }
}

/// At the end of an epoch, let a newcomer wait if it was not ready, or got no credit although others did (M10).
///
/// `is_credited` says whether anybody got a credit in the epoch.
pub fn process_fruitless_epoch(slot: &mut Slot, client: &Client, next_active: u16, is_credited: bool) {
    if slot.proven != 0 || (client.flags & client_flag::READY != 0 && !is_credited) {
        return;
    }
    slot.fruitless = slot.fruitless.saturating_add(1);
    process_wait(slot, next_active, slot.fruitless, LONGEST_PROBATION_EPOCHS);
}

/// Let the slot wait 1, 2, 4, ... epochs the first, second, third time (H5, M10); never shorten a wait.
pub fn process_wait(slot: &mut Slot, next_active: u16, times: u8, longest_epochs: u32) {
    let wait_epochs = (1_u32 << u32::from(times.saturating_sub(1)).min(16)).min(longest_epochs);
    let until = (u32::from(next_active) + wait_epochs).min(u32::from(u16::MAX)) as u16;
    slot.until = slot.until.max(until);
}

/// Choose the joined slots that a formation takes (M3, M10).
///
/// Proven slots come first, with at most as many newcomers. If these are fewer than `init_min_clients`, more
/// newcomers are taken, then slots that still have to wait, proven ones first.
pub fn get_founders(state: &State, joined: Bitmap) -> Bitmap {
    let (slots, next_active) = (state.slots(), state.registry.next_active);
    let init_min = usize::from(state.config.init_min_clients);
    let waiting = joined & Bitmap::collect(slots, |slot| slot.active > next_active);
    let ever_proven = Bitmap::collect(slots, |slot| slot.proven != 0);
    let present = joined.without(waiting);
    let mut proven = present & ever_proven;
    if proven.is_empty() {
        proven = waiting & ever_proven; // a proven slot that still waits is better than newcomers alone
    }
    let mut chosen = present.without(ever_proven);
    if !proven.is_empty() {
        let count = proven.count() as usize;
        let most = count.max(init_min.saturating_sub(count));
        chosen = proven | take_lowest(slots, chosen, most, |slot| u16::from(slot.fruitless));
    }
    let others = waiting.without(chosen);
    for group in [others & ever_proven, others.without(ever_proven)] {
        let lacking = init_min.saturating_sub(chosen.count() as usize);
        chosen = chosen | take_lowest(slots, group, lacking, |slot| slot.until);
    }
    chosen
}

/// The `n` slots of a set with the lowest keys; among equal keys, those that come first. Core sorts; without a heap,
/// counting how often each byte of the keys occurs finds the same slots.
fn take_lowest(slots: &[Slot], among: Bitmap, n: usize, key: impl Fn(&Slot) -> u16) -> Bitmap {
    if n == 0 || n >= among.count() as usize {
        return if n == 0 { Bitmap::EMPTY } else { among };
    }
    let high = Split::at(slots, among, n, |slot| (key(slot) >> 8) as u8);
    let low = Split::at(slots, high.tied, n - high.below_len, |slot| key(slot) as u8);
    let ties = low.tied.first(n - high.below_len - low.below_len);
    high.below | low.below | ties
}

/// Slots below a key, and slots that have it: the first `n` in order of keys end among the latter.
struct Split {
    below: Bitmap,
    below_len: usize,
    tied: Bitmap,
}

impl Split {
    /// Split a set of at least `n` slots; `n` is not 0.
    #[inline(never)]
    fn at(slots: &[Slot], among: Bitmap, n: usize, key: impl Fn(&Slot) -> u8) -> Split {
        let mut counts = [0_u32; 256];
        among.visit(slots, |_, slot| counts[usize::from(key(slot))] += 1);
        let (mut below_len, mut limit) = (0, 0);
        while below_len + (counts[limit] as usize) < n {
            below_len += counts[limit] as usize;
            limit += 1;
        }
        let mut split = Split { below: Bitmap::EMPTY, below_len, tied: Bitmap::EMPTY };
        among.visit(slots, |number, slot| {
            let this = usize::from(key(slot));
            if this < limit {
                split.below.set(number);
            } else if this == limit {
                split.tied.set(number);
            }
        });
        split
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;
    use crate::testing::{build_waiting, Random};

    /// The choice as core makes it, by sorting.
    fn choose_by_sorting(state: &State, joined: Bitmap) -> Bitmap {
        let (slots, next_active) = (state.slots(), state.registry.next_active);
        let init_min = usize::from(state.config.init_min_clients);
        let select = |rule: &dyn Fn(&Slot) -> bool| -> Vec<usize> {
            joined.members().filter(|&number| rule(&slots[number])).collect()
        };
        let mut proven = select(&|slot| slot.active == next_active && slot.proven != 0);
        if proven.is_empty() {
            proven = select(&|slot| slot.active > next_active && slot.proven != 0);
        }
        let mut newcomers = select(&|slot| slot.active == next_active && slot.proven == 0);
        let mut chosen = proven.clone();
        if proven.is_empty() {
            chosen = newcomers;
        } else {
            newcomers.sort_by_key(|&number| slots[number].fruitless);
            chosen.extend(newcomers.iter().take(proven.len().max(init_min.saturating_sub(proven.len()))));
        }
        let mut others = select(&|slot| slot.active > next_active);
        others.retain(|number| !chosen.contains(number));
        others.sort_by_key(|&number| (slots[number].proven == 0, slots[number].until, number));
        let lacking = init_min.saturating_sub(chosen.len());
        chosen.extend(others.iter().take(lacking));
        let mut bits = Bitmap::EMPTY;
        chosen.into_iter().for_each(|number| bits.set(number));
        bits
    }

    fn build_registry(random: &mut Random) -> Box<State> {
        let slots = random.between(1, 256);
        let mut state = build_waiting(slots);
        state.registry.next_active = 300;
        state.config.init_min_clients = random.between(1, slots) as u16;
        let [waiting, proven, lasting] = [0; 3].map(|_: u8| random.between(0, 3));
        for number in 0..slots {
            let (waits, until) = (random.between(0, 3) < waiting, random.between(0, 70) as u16);
            let slot = &mut state.registry.slots[number];
            slot.active = if waits { 301 + until } else { 300 };
            slot.until = if random.between(0, 3) < lasting { 250 + until } else { until * 5 };
            slot.proven = u8::from(random.between(0, 3) < proven);
            slot.fruitless = random.between(0, 255).saturating_sub(200) as u8;
        }
        state
    }

    #[test]
    fn founders_are_those_that_sorting_finds() {
        let mut random = Random::new("founders");
        for _ in 0..300 {
            let state = build_registry(&mut random);
            let joined = random.bitmap() & Bitmap::below(state.slots().len());
            assert_eq!(get_founders(&state, joined), choose_by_sorting(&state, joined));
        }
    }

    #[test]
    fn waits_double_up_to_a_limit_and_are_never_shortened() {
        let mut slot = Slot::ZERO;
        let mut waits = Vec::new();
        for times in [1, 2, 3, 4, 7, 8, 255] {
            slot.until = 0;
            process_wait(&mut slot, 10, times, 64);
            waits.push(slot.until - 10);
        }
        assert_eq!(waits, [1, 2, 4, 8, 64, 64, 64]);
        process_wait(&mut slot, 10, 1, 64);
        assert_eq!(slot.until, 74);
        process_wait(&mut slot, 65_500, 9, 64);
        assert_eq!(slot.until, 65_535);
    }

    #[test]
    fn a_credit_proves_a_slot_but_a_strike_goes_on() {
        let (mut slot, mut client) = (Slot::ZERO, Client::ZERO);
        (slot.until, slot.fruitless, client.flags) = (9, 3, client_flag::PROBATION | client_flag::READY);
        process_proof(&mut slot, &mut client);
        assert_eq!((slot.proven, slot.fruitless, slot.until), (1, 0, 0));
        assert_eq!((client.flags, client.good_streak), (client_flag::READY, GOOD_STREAK_ROUNDS));
        (slot.until, slot.strikes, client.good_streak) = (9, 1, 2);
        process_proof(&mut slot, &mut client);
        assert_eq!((slot.until, client.good_streak), (9, 2));
    }

    #[test]
    fn only_newcomers_that_failed_wait_after_an_epoch() {
        let wait = |proven, flags, is_credited| {
            let (mut slot, mut client) = (Slot::ZERO, Client::ZERO);
            (slot.proven, client.flags) = (proven, flags);
            process_fruitless_epoch(&mut slot, &client, 5, is_credited);
            (slot.fruitless, slot.until)
        };
        assert_eq!(wait(1, 0, true), (0, 0));
        assert_eq!(wait(0, client_flag::READY, false), (0, 0));
        assert_eq!(wait(0, client_flag::READY, true), (1, 6));
        assert_eq!(wait(0, 0, false), (1, 6));
    }

    #[test]
    fn proven_members_lead_every_other_epoch_after_a_failure() {
        let mut state = build_waiting(1);
        state.progress.epoch = 4;
        assert!(is_led_by_proven(&state), "nothing is certified");
        state.certified.digest = [1; 32];
        for (certified, is_led) in [(3, true), (2, false), (1, true), (0, false)] {
            state.certified.epoch = certified;
            assert_eq!(is_led_by_proven(&state), is_led);
        }
    }
}
