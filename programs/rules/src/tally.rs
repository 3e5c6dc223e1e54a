//! The tally of a round's witness records: agreed root, digest and members (W5, C1, C2, C4, S3).

use crate::bits::{Bitmap, Tally};
use crate::enums::{round_flag, witness_flag};
use crate::hash::{is_same, is_zero};
use crate::state::{Round, State};
use crate::timeline::{get_attested_round, is_last_drain};

/// The tallies of a round's records at its close: they answer every question of C2, H1 and H2.
pub struct Records {
    pub heard: Tally,
    pub held: Tally,
}

impl Records {
    pub fn count(round: &Round) -> Records {
        let records = round.witnesses();
        Records {
            heard: Tally::count(records.iter().map(|record| &record.heard)),
            held: Tally::count(records.iter().map(|record| &record.held)),
        }
    }
}

/// Count the newest record and store what q records agree on, once (W5).
///
/// A zero root never wins, and a record without a digest does not count for one. Two sets cannot both win, since
/// 2q > n.
pub fn process_agreement(round: &mut Round) {
    let Some(record) = round.witnesses().last() else {
        return;
    };
    let (root, held, digest, flags) = (record.results_root, record.held, record.state_digest, record.flags);
    let quorum = round.quorum as usize;
    if !is_zero(&root) && round.flags & round_flag::ROOT == 0 {
        let same = round.witnesses().iter().filter(|r| is_same(&r.results_root, &root) && r.held == held);
        if same.count() >= quorum {
            (round.agreed_root, round.agreed_held) = (root, held);
            round.flags |= round_flag::ROOT;
        }
    }
    if flags & witness_flag::NO_DIGEST != 0 || round.flags & round_flag::DIGEST != 0 {
        return;
    }
    let vote = flags & (witness_flag::FULL_DIGEST | witness_flag::NO_DIGEST);
    let is_vote = |flags: u8| flags & (witness_flag::FULL_DIGEST | witness_flag::NO_DIGEST) == vote;
    let same = round.witnesses().iter().filter(|r| is_vote(r.flags) && is_same(&r.state_digest, &digest));
    if same.count() >= quorum {
        // S3
        round.agreed_digest = digest;
        round.flags |= round_flag::DIGEST;
        if vote & witness_flag::FULL_DIGEST != 0 {
            round.flags |= round_flag::FULL;
        }
    }
}

/// Whether the running round has an agreed digest; the last drain round needs a full one (P3).
pub fn is_digest_agreed(state: &State) -> bool {
    let round = state.current();
    let mut needed = round_flag::DIGEST;
    if is_last_drain(&state.config, &state.epoch, round.height) {
        needed |= round_flag::FULL;
    }
    round.flags & needed == needed
}

/// Whether the round can close early: all records are in, or root and digest are agreed (T5).
pub fn is_round_agreed(state: &State) -> bool {
    let round = state.current();
    if round.witnesses_len >= round.witnesses_expected {
        return true;
    }
    let has_root = round.flags & round_flag::ROOT != 0;
    is_digest_agreed(state) && (has_root || get_attested_round(state).is_none())
}

/// At close without an agreed root: take the attested members that q records hold; void if there is none (C2, C4).
pub fn process_slots(round: &mut Round, attested: Option<Bitmap>, records: &Records) {
    let Some(members) = attested else {
        return;
    };
    if round.flags & round_flag::ROOT != 0 {
        return;
    }
    round.agreed_held = records.held.at_least(u32::from(round.quorum)) & members;
    if round.agreed_held.is_empty() {
        round.flags |= round_flag::VOID; // C4: results were due, since an attested round always has data
    }
}

/// Count consecutive void rounds and consecutive rounds without a digest (C4, S5).
pub fn process_streaks(state: &mut State, is_attested: bool) {
    let is_agreed = is_digest_agreed(state);
    let is_void = state.current().flags & round_flag::VOID != 0;
    let epoch = &mut state.epoch;
    if is_attested {
        // if nothing was due, void_streak stays as it is
        epoch.void_streak = if is_void { epoch.void_streak.saturating_add(1) } else { 0 };
    }
    epoch.digest_streak = if is_agreed { 0 } else { epoch.digest_streak.saturating_add(1) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::build_run;

    fn record(round: &mut Round, root: u8, held: usize, digest: u8, flags: u8) {
        let record = &mut round.witnesses[usize::from(round.witnesses_len)];
        (record.results_root, record.held) = ([root; 32], Bitmap::below(held));
        (record.state_digest, record.flags) = ([digest; 32], flags);
        round.witnesses_len += 1;
        process_agreement(round);
    }

    #[test]
    fn a_quorum_agrees_on_a_root_with_its_members() {
        let mut state = build_run(4); // 3 of 4 agree
        let round = state.current_mut();
        record(round, 1, 2, 0, witness_flag::NO_DIGEST);
        record(round, 1, 3, 0, witness_flag::NO_DIGEST);
        record(round, 1, 3, 0, witness_flag::NO_DIGEST);
        assert_eq!(round.flags & round_flag::ROOT, 0);
        record(round, 1, 3, 0, witness_flag::NO_DIGEST);
        assert_eq!((round.agreed_root[0], round.agreed_held), (1, Bitmap::below(3)));
        assert_eq!(round.flags, round_flag::ROOT, "records without a digest do not agree on one");
    }

    #[test]
    fn a_zero_root_never_wins() {
        let mut state = build_run(1);
        let round = state.current_mut();
        record(round, 0, 0, 5, 0);
        assert_eq!(round.flags, round_flag::DIGEST);
    }

    #[test]
    fn full_and_other_digests_are_counted_apart() {
        let mut state = build_run(4);
        let round = state.current_mut();
        record(round, 0, 0, 5, witness_flag::FULL_DIGEST);
        record(round, 0, 0, 5, 0);
        record(round, 0, 0, 5, witness_flag::FULL_DIGEST | witness_flag::COMPLETE);
        assert_eq!(round.flags, 0);
        record(round, 0, 0, 5, witness_flag::FULL_DIGEST);
        assert_eq!(round.flags, round_flag::DIGEST | round_flag::FULL);
        assert_eq!(round.agreed_digest, [5; 32]);
    }

    #[test]
    fn a_round_without_a_root_takes_what_a_quorum_holds_or_is_void() {
        let mut state = build_run(4);
        let round = state.current_mut();
        for held in [1, 2, 3] {
            record(round, held as u8, held, 0, witness_flag::NO_DIGEST);
        }
        let records = Records::count(round);
        process_slots(round, None, &records);
        assert!(round.agreed_held.is_empty() && round.flags == 0);
        process_slots(round, Some(Bitmap::below(4)), &records);
        assert_eq!((round.agreed_held, round.flags), (Bitmap::below(1), 0));
        process_slots(round, Some(Bitmap::below(4).without(Bitmap::below(1))), &records);
        assert_eq!((round.agreed_held, round.flags), (Bitmap::EMPTY, round_flag::VOID));
        process_streaks(&mut state, true);
        assert_eq!((state.epoch.void_streak, state.epoch.digest_streak), (1, 1));
        state.current_mut().flags = round_flag::DIGEST;
        process_streaks(&mut state, false);
        assert_eq!((state.epoch.void_streak, state.epoch.digest_streak), (1, 0));
        process_streaks(&mut state, true);
        assert_eq!(state.epoch.void_streak, 0);
    }

    #[test]
    fn a_round_is_agreed_by_all_records_or_by_root_and_digest() {
        let mut state = build_run(4);
        assert!(!is_round_agreed(&state));
        state.current_mut().flags = round_flag::DIGEST;
        assert!(!is_round_agreed(&state), "the root is missing");
        state.config.overlap = 1;
        assert!(is_round_agreed(&state), "nothing is attested in the first round");
        state.epoch.drain_from_height = u32::MAX; // no last drain yet
        assert!(is_digest_agreed(&state));
        (state.epoch.drain_from_height, state.current_mut().height) = (1, 2);
        assert!(!is_digest_agreed(&state) && !is_round_agreed(&state), "the last drain needs a full digest");
        state.current_mut().witnesses_len = 4;
        assert!(is_round_agreed(&state));
    }
}
