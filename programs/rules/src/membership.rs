//! Joining and leaving: slots, departures and ejection (M1 to M6, R7).

use crate::bits::Bitmap;
use crate::enums::{ChallengeState, ClientState, RunState, SlotState};
use crate::errors::Refusal;
use crate::hash::{is_same, is_zero, Hash};
use crate::limits::MAX_CLIENTS;
use crate::message::{Claim, Claims, Collect, Join, ReportEquivocation, Withdraw};
use crate::readiness::{is_armed, process_ready_quorum, process_unready};
use crate::roster::{check_member, compute_exit_height, find_member, find_slot, get_slot_mut, is_held};
use crate::state::{Challenge, Slot, State};
use crate::Context;

const IDLE_EPOCHS: u32 = 2; // `last_epoch` and one whole epoch after it

/// Give the sender a place in the next formation; return whether anything changed (M1 to M3, M5).
///
/// The stake that counts is the one in the sender's slot; the message does not state it.
pub fn process_join(state: &mut State, context: &Context, message: &Join) -> Result<bool, Refusal> {
    let number = check_join(state, &context.sender, message)?;
    let (next_active, epoch) = (state.registry.next_active, state.progress.epoch);
    let is_new = number >= state.slots().len();
    state.registry.slots_len += u16::from(is_new);
    let slot = &mut state.registry.slots[number];
    let before = Changeable::of(slot);
    if !is_same(&slot.signer, &context.sender) {
        *slot = Slot { signer: context.sender, joined_unix: context.now, ..Slot::ZERO };
    }
    slot.p2p = *message.p2p;
    slot.expires_unix = message.expires_unix;
    slot.state = SlotState::JOINED;
    slot.active = next_active.max(slot.until); // H5: a slot with a strike waits
    slot.last_epoch = epoch;
    Ok(Changeable::of(slot) != before)
}

/// What a join can change in the slot of its signer.
#[derive(PartialEq)]
struct Changeable {
    p2p: Hash,
    expires_unix: u64,
    active: u16,
    state: SlotState,
    last_epoch: u16,
}

impl Changeable {
    fn of(slot: &Slot) -> Changeable {
        let Slot { p2p, expires_unix, active, state, last_epoch, .. } = *slot;
        Changeable { p2p, expires_unix, active, state, last_epoch }
    }
}

/// The number of the slot for a join: the signer's own, a free or new one, or one that its signer left (H5).
fn check_join(state: &State, signer: &Hash, join: &Join) -> Result<usize, Refusal> {
    if matches!(state.run_state, RunState::UNINITIALIZED | RunState::FINISHED) {
        return Err(Refusal::Halted);
    }
    if is_zero(signer) || is_zero(join.p2p) {
        return Err(Refusal::InvalidJoin); // M1
    }
    let slots = state.slots();
    let own = slots.iter().position(|s| s.state != SlotState::FREE && is_same(&s.signer, signer));
    if own.is_some_and(|number| slots[number].state == SlotState::BANNED) {
        return Err(Refusal::Banned); // M6
    }
    let holds = |slot: &Slot| slot.state != SlotState::FREE && is_same(&slot.p2p, join.p2p);
    if slots.iter().enumerate().any(|(number, slot)| holds(slot) && own != Some(number)) {
        return Err(Refusal::InvalidJoin); // M1
    }
    if own.map_or(0, |number| slots[number].stake) < state.config.min_stake {
        return Err(Refusal::StakeTooLow); // M5
    }
    own.or_else(|| find_room(slots)).ok_or(Refusal::ClientsFull)
}

/// The slot for a new signer: a free one, or the LEFT one whose wait ends first, even if it is not over (H5).
fn find_room(slots: &[Slot]) -> Option<usize> {
    let free = slots.iter().position(|slot| slot.state == SlotState::FREE).unwrap_or(slots.len());
    if free < MAX_CLIENTS {
        return Some(free);
    }
    let left = slots.iter().enumerate().filter(|(_, slot)| slot.state == SlotState::LEFT);
    left.min_by_key(|(_, slot)| slot.until).map(|(number, _)| number)
}

/// Leave the running epoch, or take a join back (M4).
///
/// In WaitingForMembers the sender's key identifies the slot and `member` is ignored.
pub fn process_withdrawal(state: &mut State, context: &Context, message: &Withdraw) -> Result<bool, Refusal> {
    if state.halted() {
        return Err(Refusal::Halted);
    }
    if message.epoch != state.progress.epoch {
        return Err(Refusal::WrongRound); // T7
    }
    if state.run_state == RunState::WAITING_FOR_MEMBERS {
        return process_join_taken_back(state, &context.sender);
    }
    let member = message.member as usize;
    check_member(state, context.now, &context.sender, member)?;
    if state.clients[member].state != ClientState::HEALTHY {
        return Err(Refusal::InvalidWithdraw);
    }
    process_departure(state, context.now, member, ClientState::WITHDRAWN);
    Ok(true)
}

fn process_join_taken_back(state: &mut State, sender: &Hash) -> Result<bool, Refusal> {
    let number = find_slot(state, sender).ok_or(Refusal::UnknownMember)?;
    let next_active = state.registry.next_active;
    let slot = &mut state.registry.slots[number];
    if slot.state != SlotState::JOINED || slot.active < next_active {
        return Err(Refusal::InvalidWithdraw);
    }
    slot.active = 0;
    Ok(true)
}

/// Let a Healthy member leave; in Warmup this also takes back its join and its ready message (M4, T8).
///
/// Once the start is armed, the ready message stays: the member is drawn like one that leaves after the start (E1).
pub fn process_departure(state: &mut State, now: u64, member: usize, how: ClientState) {
    let height = compute_exit_height(state);
    let client = &mut state.clients[member];
    client.state = how;
    if state.run_state != RunState::WARMUP {
        client.exited_height = height;
        return;
    }
    get_slot_mut(state, member).active = 0;
    if !is_armed(state) {
        process_unready(&mut state.epoch, &mut state.clients[member]);
        process_ready_quorum(state, now);
    }
}

/// Give up the sender's slot; it is freed at once if it holds no earnings and can earn none (M4).
///
/// Strikes stay on record (H5).
pub fn process_leave(state: &mut State, context: &Context) -> Result<bool, Refusal> {
    let number = find_held(state, &context.sender).ok_or(Refusal::UnknownMember)?;
    let slot = &mut state.registry.slots[number];
    match slot.state {
        SlotState::BANNED => return Err(Refusal::Banned), // M6
        SlotState::LEAVING => return Err(Refusal::InvalidWithdraw),
        _ => (slot.state, slot.active) = (SlotState::LEAVING, 0),
    }
    let is_kept = slot.earned != 0 || find_parties(&state.challenges).get(number);
    match find_member(state, number) {
        Some(member) if state.clients[member].state == ClientState::HEALTHY => {
            process_departure(state, context.now, member, ClientState::WITHDRAWN);
        }
        None if !is_kept => process_vacancy(&mut state.registry.slots[number]),
        _ => {}
    }
    Ok(true)
}

/// The number of the slot that this signer holds; it may be banned or leaving.
fn find_held(state: &State, signer: &Hash) -> Option<usize> {
    state.slots().iter().position(|slot| is_held(slot) && is_same(&slot.signer, signer))
}

/// Free a slot; if its signer has strikes or waits, keep them on record (H5, M10).
///
/// Otherwise a signer could leave and join again to escape its wait. Callers keep a slot that accuses or is accused until
/// the jury has judged (V12).
fn process_vacancy(slot: &mut Slot) {
    let Slot { signer, strikes, until, proven, fruitless, false_challenges, .. } = *slot;
    *slot = Slot::ZERO;
    if strikes != 0 || until != 0 || fruitless != 0 || false_challenges != 0 {
        (slot.signer, slot.state) = (signer, SlotState::LEFT);
        (slot.strikes, slot.until, slot.false_challenges) = (strikes, until, false_challenges);
        (slot.proven, slot.fruitless) = (proven, fruitless);
    }
}

/// Take the earnings of all claims out of the record, or none; return whether any were taken (M11).
///
/// This works in every state of the run and for banned slots too. A leaving slot without earnings is freed.
pub fn process_collection(state: &mut State, message: &Collect) -> Result<bool, Refusal> {
    if is_anybody_named_twice(message.claims.clone()) {
        return Err(Refusal::InvalidCollection);
    }
    for claim in message.claims.clone() {
        check_claim(state, claim)?; // all claims are checked before the first one takes effect
    }
    let mut has_taken = false;
    for claim in message.claims.clone() {
        has_taken |= process_claim(state, claim)?;
    }
    Ok(has_taken)
}

fn is_anybody_named_twice(mut claims: Claims) -> bool {
    while let Some((signer, _)) = claims.next() {
        if claims.clone().any(|(other, _)| is_same(signer, other)) {
            return true;
        }
    }
    false
}

fn process_claim(state: &mut State, claim: Claim) -> Result<bool, Refusal> {
    let number = check_claim(state, claim)?;
    let slot = &mut state.registry.slots[number];
    let taken = claim.1.unwrap_or(slot.earned);
    slot.earned -= taken;
    let is_empty = slot.earned == 0 && slot.state == SlotState::LEAVING;
    let is_kept = find_parties(&state.challenges).get(number);
    if taken > 0 && is_empty && !is_kept && find_member(state, number).is_none() {
        process_vacancy(&mut state.registry.slots[number]);
    }
    Ok(taken > 0)
}

/// The number of the slot that holds this amount.
fn check_claim(state: &State, (signer, amount): Claim) -> Result<usize, Refusal> {
    let number = find_held(state, signer).ok_or(Refusal::UnknownMember)?;
    let earned = state.registry.slots[number].earned;
    if amount.is_some_and(|amount| !(1..=earned).contains(&amount)) {
        return Err(Refusal::InvalidCollection);
    }
    Ok(number)
}

/// Free the slot that has been idle longest, at least a whole epoch; return whether there was one (M4).
pub fn process_reclaim(state: &mut State) -> Result<bool, Refusal> {
    let number = find_reclaimable(state);
    if let Some(number) = number {
        state.registry.slots[number] = Slot::ZERO;
    }
    Ok(number.is_some())
}

/// The slot that has been idle longest, at least a whole epoch, and is not joined (M4).
///
/// Slots that never had a credit come first, then banned ones (M6), then proven ones (M10). Among each, slots that
/// wait because of strikes come last (H5).
fn find_reclaimable(state: &State) -> Option<usize> {
    let (next_active, epoch) = (state.registry.next_active, u32::from(state.progress.epoch));
    let is_idle = |slot: &Slot| {
        is_held(slot)
            && slot.active < next_active
            && u32::from(slot.last_epoch) + IDLE_EPOCHS <= epoch
            && slot.earned == 0 // M11
    };
    let order = |slot: &Slot| (get_worth(slot), slot.strikes > 0 && slot.until > next_active, slot.last_epoch);
    let kept = find_parties(&state.challenges);
    let idle = state.slots().iter().enumerate().filter(|&(number, slot)| is_idle(slot) && !kept.get(number));
    idle.min_by_key(|(_, slot)| order(slot)).map(|(number, _)| number)
}

/// How late a slot is reclaimed: bans neither keep newcomers out for good nor cost a proven member its slot (M6).
fn get_worth(slot: &Slot) -> u8 {
    match (slot.state, slot.proven) {
        (SlotState::BANNED, _) => 1,
        (_, 0) => 0,
        _ => 2,
    }
}

/// Eject a member for equivocation: its slot is banned, its stake slashed, its credits are lost (R7, M6).
///
/// Sets that are decided already do not change.
pub fn process_ejection(state: &mut State, message: &ReportEquivocation) -> Result<bool, Refusal> {
    check_evidence(state, message)?;
    process_expulsion(state, usize::from(state.clients[usize::from(message.member)].slot));
    Ok(true)
}

/// Ban a slot and slash its stake; its member of the running epoch is Ejected and loses its credits (M6).
pub fn process_expulsion(state: &mut State, number: usize) {
    if let Some(member) = find_member(state, number) {
        let height = compute_exit_height(state);
        let client = &mut state.clients[member];
        if client.state == ClientState::HEALTHY {
            client.exited_height = height;
        }
        client.state = ClientState::EJECTED;
        state.epoch.credit_total -= u64::from(client.credits);
        client.credits = 0;
    }
    let slot = &mut state.registry.slots[number];
    (slot.state, slot.active) = (SlotState::BANNED, 0);
    (slot.slashed, slot.stake) = (slot.slashed.saturating_add(slot.stake), 0);
}

/// The slots that an open challenge accuses, or that made the accusation (V12).
fn find_parties(challenges: &[Challenge]) -> Bitmap {
    let mut parties = Bitmap::EMPTY;
    for one in challenges.iter().filter(|one| one.state == ChallengeState::OPEN) {
        parties.set(usize::from(one.target) % MAX_CLIENTS);
        parties.set(usize::from(one.verifier) % MAX_CLIENTS);
    }
    parties
}

fn check_evidence(state: &State, message: &ReportEquivocation) -> Result<(), Refusal> {
    if state.halted() {
        return Err(Refusal::Halted);
    }
    if message.epoch != state.progress.epoch {
        return Err(Refusal::WrongRound); // T7
    }
    if !state.in_round() && state.run_state != RunState::COOLDOWN {
        return Err(Refusal::NoActiveRound);
    }
    if message.height > state.current().height {
        return Err(Refusal::WrongRound); // T7
    }
    match state.clients().get(message.member as usize) {
        None => Err(Refusal::UnknownMember),
        Some(client) if client.state == ClientState::EJECTED => Err(Refusal::InvalidEvidence),
        Some(_) => Ok(()),
    }
}

/// At the end of an epoch, free the leaving slots that hold no earnings (M4).
pub fn process_vacancies(state: &mut State) {
    let (kept, registry) = (find_parties(&state.challenges), &mut state.registry);
    for (number, slot) in registry.slots[..usize::from(registry.slots_len)].iter_mut().enumerate() {
        if slot.state == SlotState::LEAVING && slot.earned == 0 && !kept.get(number) {
            process_vacancy(slot);
        }
    }
}

#[cfg(test)]
mod tests;
