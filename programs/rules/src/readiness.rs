//! Warmup: the weights that members show, and who may start the epoch (S8, T8).

use crate::elections::compute_quorum;
use crate::enums::{client_flag, ClientState, RunState};
use crate::errors::Refusal;
use crate::hash::{is_same, is_zero, Hash};
use crate::limits::{MAX_START_CANDIDATES, NO_UPLOADER};
use crate::message::WarmupWitness;
use crate::roster::{check_member, is_in_epoch};
use crate::state::{Client, Epoch, Mark, StartCandidate, State};
use crate::timing::{compute_elapsed, is_timed_out};
use crate::Context;

const CANDIDATE: u8 = client_flag::CANDIDATE_LOW | client_flag::CANDIDATE_HIGH;
const CANDIDATE_SHIFT: u32 = client_flag::CANDIDATE_LOW.trailing_zeros();
const FLAGS: usize = 2 * client_flag::CANDIDATE_HIGH as usize; // all combinations of a member's flags

/// Whether the record has certified weights, the ones that every epoch starts from (S8).
pub fn is_certified(state: &State) -> bool {
    !is_zero(&state.certified.digest)
}

/// In Warmup: whether the slot of round 0's entropy is fixed, and with it who starts (E1).
pub fn is_armed(state: &State) -> bool {
    state.current().entropy_slot != 0
}

/// Record that a member has loaded the weights with this full digest (S8).
///
/// The certified weights are there, so a rollback would lose them: the count of failed Warmups begins anew (P5).
pub fn process_ready(state: &mut State, context: &Context, message: &WarmupWitness) -> Result<bool, Refusal> {
    let member = check_ready(state, context, message)?;
    if is_certified(state) {
        if !is_same(message.digest, &state.certified.digest) {
            return Err(Refusal::DigestMismatch);
        }
        state.epoch.warmup_failures = 0; // P5
    } else {
        let number = find_candidate(&state.epoch, message.digest)?;
        process_vote(state, member, number, message.digest);
    }
    state.clients[member].flags |= client_flag::READY;
    state.epoch.ready_len += 1;
    process_ready_quorum(state, context.now);
    Ok(true)
}

fn check_ready(state: &State, context: &Context, message: &WarmupWitness) -> Result<usize, Refusal> {
    let member = message.member as usize;
    if state.halted() {
        return Err(Refusal::Halted);
    }
    if message.epoch != state.progress.epoch {
        return Err(Refusal::WrongRound); // T7
    }
    if !is_in_epoch(state) {
        return Err(Refusal::InvalidRunState);
    }
    check_member(state, context.now, &context.sender, member)?;
    let client = &state.clients[member];
    if is_ready(client) {
        return Err(Refusal::DuplicateWitness); // K3: a retry may land after the start
    }
    if state.run_state != RunState::WARMUP || is_armed(state) {
        return Err(Refusal::InvalidRunState); // E1
    }
    if client.state != ClientState::HEALTHY || is_zero(message.digest) {
        return Err(Refusal::InvalidWitness);
    }
    Ok(member)
}

fn is_ready(client: &Client) -> bool {
    client.flags & client_flag::READY != 0
}

/// The place of a digest among the candidates: its own, one that nobody shows any more, or a new one.
fn find_candidate(epoch: &Epoch, digest: &Hash) -> Result<usize, Refusal> {
    let candidates = get_candidates(epoch);
    let own = candidates.iter().position(|c| c.count > 0 && is_same(&c.digest, digest));
    let left = || candidates.iter().position(|c| c.count == 0);
    let number = own.or_else(left).unwrap_or(candidates.len());
    if number < MAX_START_CANDIDATES {
        Ok(number)
    } else {
        Err(Refusal::TooManyCandidates)
    }
}

fn get_candidates(epoch: &Epoch) -> &[StartCandidate] {
    &epoch.start_candidates[..epoch.start_candidates_len()]
}

fn process_vote(state: &mut State, member: usize, number: usize, digest: &Hash) {
    let candidate = &mut state.epoch.start_candidates[number];
    candidate.digest = *digest;
    candidate.count += 1;
    // the start drops members whose candidate lost, so the record must say which candidate each member showed
    let flags = &mut state.clients[member].flags;
    *flags = *flags & !CANDIDATE | (number as u8) << CANDIDATE_SHIFT;
}

/// Take back the ready message of a member that leaves in Warmup.
#[inline(always)]
pub fn process_unready(epoch: &mut Epoch, client: &mut Client) {
    if !is_ready(client) {
        return;
    }
    client.flags &= !client_flag::READY;
    let number = get_candidate(client.flags);
    epoch.ready_len -= 1;
    if number < epoch.start_candidates_len() {
        epoch.start_candidates[number].count -= 1;
    }
}

/// The place, among the start candidates, of the digest that a ready member showed (S8).
fn get_candidate(flags: u8) -> usize {
    usize::from((flags & CANDIDATE) >> CANDIDATE_SHIFT)
}

/// Record the time from which there are enough starters; reset it if there no longer are (T8).
pub fn process_ready_quorum(state: &mut State, now: u64) {
    let muster = Muster::count(state);
    state.epoch.ready_quorum_unix = muster.compute_quorum_since(state.epoch.ready_quorum_unix, now);
}

/// Whether Warmup may end and round 0 begin with the members that can start (T8).
pub fn is_start_due(state: &State, now: u64, muster: &Muster) -> bool {
    let (config, since) = (&state.config, state.state_start_unix);
    let starters = muster.starters();
    let (_, electors_starting) = muster.electors(starters);
    if starters.all < u32::from(config.min_clients) || electors_starting == 0 {
        return false;
    }
    if muster.ready.all == muster.healthy.all || is_timed_out(now, since, config.warmup_time) {
        return true;
    }
    if config.straggler_percent == 0 || !muster.is_enough(starters) {
        return false;
    }
    let quorum_after = u128::from(compute_elapsed(state.epoch.ready_quorum_unix, since));
    let pace = quorum_after * u128::from(config.straggler_percent);
    let elapsed = u128::from(compute_elapsed(now, since));
    elapsed * 100 >= pace && is_timed_out(now, since, config.warmup_time / 2)
}

/// Some members, and those of them who are not on probation (M10).
#[derive(Clone, Copy, Default)]
pub struct Group {
    pub all: u32,
    pub proven: u32,
}

impl Group {
    #[inline(always)]
    fn add(&mut self, flags: u8, count: u32) {
        self.all += count;
        self.proven += if flags & client_flag::PROBATION == 0 { count } else { 0 };
    }
}

/// The members in Warmup, as counts: everything that T8 asks of them.
///
/// Core counts them again at every question. Here one scan serves a whole message.
pub struct Muster {
    pub healthy: Group,
    pub ready: Group, // a ready member is Healthy (L6)
    pub chosen: Starters,
    shown: [Group; MAX_START_CANDIDATES],
    min_clients: u32,
}

impl Muster {
    #[inline(never)]
    pub fn count(state: &State) -> Muster {
        let mut muster = Muster {
            healthy: Group::default(),
            ready: Group::default(),
            chosen: find_starters(state),
            shown: Default::default(),
            min_clients: u32::from(state.config.min_clients),
        };
        let mut counts = [0_u32; FLAGS]; // few flags differ, so most members need only be counted
        for client in state.clients().iter().filter(|client| client.state == ClientState::HEALTHY) {
            counts[usize::from(client.flags) % FLAGS] += 1;
        }
        for (flags, &count) in counts.iter().enumerate() {
            if count > 0 {
                muster.add(flags as u8, count);
            }
        }
        muster
    }

    fn add(&mut self, flags: u8, count: u32) {
        self.healthy.add(flags, count);
        if flags & client_flag::READY != 0 {
            self.ready.add(flags, count);
            self.shown[get_candidate(flags)].add(flags, count);
        }
    }

    /// The members that can start.
    pub fn starters(&self) -> Group {
        match self.chosen {
            Starters::Ready => self.ready,
            Starters::Showing(number) => self.shown[number],
            Starters::Nobody => Group::default(),
        }
    }

    /// The electors, and those of them who are in this group of Healthy members (M10).
    pub fn electors(&self, group: Group) -> (u32, u32) {
        if self.healthy.proven > 0 {
            (self.healthy.proven, group.proven)
        } else {
            (self.healthy.all, group.all)
        }
    }

    /// Whether these starters suffice for a start before `warmup_time` is over (T8).
    ///
    /// The quorum counts electors only, so that newcomers who never get ready cannot delay the start (M10).
    pub fn is_enough(&self, starters: Group) -> bool {
        let (electors, among_starters) = self.electors(starters);
        among_starters >= compute_quorum(electors) && starters.all >= self.min_clients
    }

    /// The time from which there are enough starters: `since` if it is set, otherwise now; 0 if there are too few.
    pub fn compute_quorum_since(&self, since: u64, now: u64) -> u64 {
        match self.is_enough(self.starters()) {
            false => 0,
            true if since == 0 => now,
            true => since,
        }
    }
}

/// Which members can start: they are ready and show the winning weights (S8).
///
/// There are none while nothing is certified and no candidate has a quorum of the ready members.
pub fn find_starters(state: &State) -> Starters {
    if is_certified(state) {
        return Starters::Ready;
    }
    let quorum = compute_quorum(u32::from(state.epoch.ready_len));
    let candidates = get_candidates(&state.epoch);
    let winner = candidates.iter().position(|candidate| u32::from(candidate.count) >= quorum);
    winner.map_or(Starters::Nobody, Starters::Showing)
}

/// At the first start of a run, make the winning candidate `certified` and `checkpoint` (S8).
pub fn process_certification(state: &mut State, starters: Starters) {
    let Starters::Showing(winner) = starters else {
        return; // certified already; a round starts only with starters
    };
    state.certified = Mark {
        digest: state.epoch.start_candidates[winner].digest,
        epoch: state.progress.epoch,
        uploader: NO_UPLOADER,
        step: state.progress.step,
        data_index: state.progress.epoch_start_data_index,
    };
    state.checkpoint = state.certified;
}

/// Which ready members can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starters {
    Ready,
    Showing(usize),
    Nobody,
}

impl Starters {
    /// Whether a member is one of them; it may have left after the start was armed (E1).
    #[inline(always)]
    pub fn has(self, client: &Client) -> bool {
        is_ready(client)
            && match self {
                Starters::Ready => true,
                Starters::Showing(number) => get_candidate(client.flags) == number,
                Starters::Nobody => false,
            }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;
    use crate::testing::{build_context, build_waiting, Random, STARTED, WEIGHTS};

    /// A Warmup in which some are ready, some are on probation and some have left.
    fn build_warmup(random: &mut Random) -> Box<State> {
        let members = random.between(1, 60);
        let mut state = build_waiting(members);
        crate::phases::process_tick(&mut state, STARTED, 0, &crate::Entropy::None).unwrap();
        state.config.min_clients = random.between(1, members) as u16;
        let (odds, digests) = (random.between(1, 4), random.between(1, 4));
        for member in 0..members {
            if random.between(0, 4) < odds {
                let digest = [random.between(1, digests) as u8; 32];
                let ready = WarmupWitness { epoch: 0, member: member as u16, digest: &digest };
                process_ready(&mut state, &build_context(STARTED, member), &ready).unwrap();
            } else if random.between(0, 4) == 0 {
                state.clients[member].state = ClientState::WITHDRAWN;
            }
            if random.between(0, 3) == 0 {
                state.clients[member].flags |= client_flag::PROBATION;
            }
        }
        if random.between(0, 2) == 0 {
            state.certified.digest = WEIGHTS;
        }
        state
    }

    /// What core finds: electors, starters that are electors, and starters; each as a list of members.
    fn list_plainly(state: &State) -> (Vec<usize>, Vec<usize>, Vec<usize>) {
        let list = |rule: &dyn Fn(&Client) -> bool| -> Vec<usize> {
            let members = state.clients().iter().enumerate();
            members.filter(|(_, c)| c.state == ClientState::HEALTHY && rule(c)).map(|(m, _)| m).collect()
        };
        let mut electors = list(&|client| client.flags & client_flag::PROBATION == 0);
        if electors.is_empty() {
            electors = list(&|_| true);
        }
        let quorum = compute_quorum(u32::from(state.epoch.ready_len));
        let candidates = get_candidates(&state.epoch);
        let winner = candidates.iter().position(|candidate| u32::from(candidate.count) >= quorum);
        let starts = |c: &Client| is_certified(state) || Some(get_candidate(c.flags)) == winner;
        let starters = list(&|client| is_ready(client) && starts(client));
        let both = starters.iter().copied().filter(|member| electors.contains(member)).collect();
        (electors, both, starters)
    }

    #[test]
    fn counts_of_one_scan_are_those_of_core() {
        let mut random = Random::new("muster");
        for _ in 0..200 {
            let mut state = build_warmup(&mut random);
            loop {
                let muster = Muster::count(&state);
                let (electors, both, starters) = list_plainly(&state);
                let found = muster.starters();
                assert_eq!(found.all as usize, starters.len());
                let expected = (electors.len() as u32, both.len() as u32);
                assert_eq!(muster.electors(found), expected);
                let is_enough = expected.1 >= compute_quorum(expected.0) && found.all >= muster.min_clients;
                assert_eq!(muster.is_enough(found), is_enough);
                let chosen = muster.chosen;
                for (member, client) in state.clients().iter().enumerate() {
                    let is_starter = client.state == ClientState::HEALTHY && chosen.has(client);
                    assert_eq!(is_starter, starters.contains(&member));
                }
                let healthy: Vec<usize> = (0..state.clients().len())
                    .filter(|&member| state.clients[member].state == ClientState::HEALTHY)
                    .collect();
                if healthy.is_empty() {
                    break;
                }
                let leaver = healthy[random.between(0, healthy.len() - 1)];
                state.clients[leaver].state = ClientState::DROPPED;
                let State { epoch, clients, .. } = &mut *state;
                process_unready(epoch, &mut clients[leaver]);
            }
        }
    }

    fn show(state: &mut State, member: u16, digest: &Hash) -> Result<bool, Refusal> {
        let ready = WarmupWitness { epoch: 0, member, digest };
        process_ready(state, &build_context(STARTED, usize::from(member)), &ready)
    }

    #[test]
    fn four_digests_compete_and_one_that_nobody_shows_gives_its_place() {
        let mut state = build_waiting(6);
        crate::phases::process_tick(&mut state, STARTED, 0, &crate::Entropy::None).unwrap();
        for member in 0..4 {
            show(&mut state, member, &[1 + member as u8; 32]).unwrap();
        }
        assert_eq!(show(&mut state, 4, &[9; 32]), Err(Refusal::TooManyCandidates));
        assert_eq!(show(&mut state, 0, &[1; 32]), Err(Refusal::DuplicateWitness));
        let State { epoch, clients, .. } = &mut *state;
        process_unready(epoch, &mut clients[1]);
        assert_eq!(show(&mut state, 4, &[9; 32]), Ok(true));
        assert_eq!(show(&mut state, 5, &[9; 32]), Ok(true));
        assert_eq!(state.epoch.start_candidates.map(|c| (c.digest[0], c.count)), [(1, 1), (9, 2), (3, 1), (4, 1)]);
        assert_eq!(get_candidate(state.clients[5].flags), 1);
    }

    #[test]
    fn every_rule_of_a_ready_message_refuses_its_violation() {
        let mut state = build_waiting(3);
        assert_eq!(show(&mut state, 0, &WEIGHTS), Err(Refusal::InvalidRunState));
        crate::phases::process_tick(&mut state, STARTED, 0, &crate::Entropy::None).unwrap();
        assert_eq!(show(&mut state, 3, &WEIGHTS), Err(Refusal::UnknownMember));
        assert_eq!(show(&mut state, 0, &[0; 32]), Err(Refusal::InvalidWitness));
        state.clients[1].state = ClientState::WITHDRAWN;
        assert_eq!(show(&mut state, 1, &WEIGHTS), Err(Refusal::InvalidWitness));
        state.progress.epoch = 1;
        assert_eq!(show(&mut state, 0, &WEIGHTS), Err(Refusal::WrongRound));
        state.progress.epoch = 0;
        state.certified.digest = [8; 32];
        assert_eq!(show(&mut state, 0, &WEIGHTS), Err(Refusal::DigestMismatch));
        assert_eq!(show(&mut state, 0, &[8; 32]), Ok(true));
        state.run_state = RunState::ROUND_TRAIN;
        assert_eq!(show(&mut state, 0, &WEIGHTS), Err(Refusal::DuplicateWitness));
        assert_eq!(show(&mut state, 2, &WEIGHTS), Err(Refusal::InvalidRunState));
        state.run_state = RunState::PAUSED;
        assert_eq!(show(&mut state, 2, &WEIGHTS), Err(Refusal::Halted));
    }
}
