//! A round's quorum, roles and witnesses.
//!
//! Elections run over ranks. A member's rank is the number of set bits below its own in the round's `members`, or in
//! its `electors` for the election of witnesses (M10).

use crate::hash::{sha256, Hash};
use crate::limits::{MAX_AUDITS, MAX_WITNESSES};
use crate::shuffle::permute;
use crate::state::{Config, Round};

const COMMITTEE_SALT: &[u8] = b"committee";
const WITNESS_SALT: &[u8] = b"witness";

/// q(n): the number of the `n` elected witnesses that must agree. 2q > n always holds, and q(0) is 1.
pub fn compute_quorum(n: u32) -> u32 {
    if 0 < n && n < 4 {
        n.min(2)
    } else {
        2 * n / 3 + 1
    }
}

/// n, the number of witnesses of a round with this many electors; `witness_nodes` 0 elects everybody, up to 32.
pub fn compute_witnesses_expected(witness_nodes: u16, electors: u32) -> u32 {
    let most = MAX_WITNESSES as u32;
    let wanted = if witness_nodes == 0 { most } else { u32::from(witness_nodes) };
    wanted.min(electors).min(most)
}

/// The seed of one election; `salt` names the election.
fn compute_election_seed(random_seed: u64, salt: &[u8]) -> Hash {
    let inner = sha256(&[&random_seed.to_le_bytes()]);
    sha256(&[&inner, salt])
}

/// Whether the member is an elected witness of the round; false for a member outside the round.
pub fn is_witness(round: &Round, member: usize) -> bool {
    find_elected_parties(round, [Some(member)])[0]
}

/// Whether each of these members is an elected witness of the round; one election serves all of them.
pub fn find_elected_parties<const N: usize>(round: &Round, members: [Option<usize>; N]) -> [bool; N] {
    let (electors, expected) = (round.electors.count() as usize, round.witnesses_expected as usize);
    let electable = members.map(|member| member.filter(|&member| round.electors.get(member)));
    if expected >= electors {
        return electable.map(|member| member.is_some()); // everybody: saves the election's hashes
    }
    let seed = compute_election_seed(round.random_seed, WITNESS_SALT);
    let places = permute(electable.map(|member| member.map_or(0, |one| round.electors.rank(one))), electors, &seed);
    let mut elected = [false; N];
    for (into, (member, place)) in elected.iter_mut().zip(electable.iter().zip(places)) {
        *into = member.is_some() && place < expected;
    }
    elected
}

/// Whether the member is an elected verifier of the round (V7).
pub fn is_verifier(round: &Round, config: &Config, member: usize) -> bool {
    let expected = compute_verifiers_expected(round, config) as usize;
    if expected == 0 || !round.members.get(member) {
        return false;
    }
    let seed = compute_election_seed(round.random_seed, COMMITTEE_SALT);
    permute([round.members.rank(member)], round.members.count() as usize, &seed)[0] < expected
}

/// floor((m * verification_percent + u) / 100), at most 32, and always a member fewer than the round has (V7); u is the
/// seed modulo 100.
fn compute_verifiers_expected(round: &Round, config: &Config) -> u32 {
    let (members, chance) = (round.members.count(), (round.random_seed % 100) as u32);
    let share = (members * u32::from(config.verification_percent) + chance) / 100;
    share.min(MAX_AUDITS as u32).min(members.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::bits::Bitmap;
    use crate::testing::{build_state, Random};

    #[test]
    fn quorums_are_those_of_core() {
        let quorums: Vec<u32> = (0..=33).map(compute_quorum).collect();
        assert_eq!(quorums[..12], [1, 1, 2, 2, 3, 4, 5, 5, 6, 7, 7, 8]);
        assert_eq!((quorums[31], quorums[32], quorums[33]), (21, 22, 23));
    }

    #[test]
    fn no_more_witnesses_are_expected_than_electors_or_records() {
        for (nodes, electors, expected) in [(0, 5, 5), (0, 40, 32), (3, 40, 3), (3, 2, 2), (500, 256, 32), (0, 0, 0)] {
            assert_eq!(compute_witnesses_expected(nodes, electors), expected);
        }
    }

    #[test]
    fn as_many_witnesses_are_elected_as_expected_and_only_electors() {
        let mut random = Random::new("witnesses");
        for expected in [0, 1, 4, 31, 32] {
            let mut state = build_state();
            let round = &mut state.rounds[0];
            round.electors = random.bitmap();
            round.members = round.electors | random.bitmap();
            round.random_seed = random.word();
            round.witnesses_expected = expected;
            let elected: Vec<usize> = (0..256).filter(|&m| is_witness(round, m)).collect();
            assert_eq!(elected.len(), expected as usize);
            assert!(elected.iter().all(|&m| round.electors.get(m)));
        }
        let mut state = build_state();
        state.rounds[0].electors = Bitmap::below(3);
        state.rounds[0].witnesses_expected = 32;
        assert!((0..256).all(|m| is_witness(&state.rounds[0], m) == (m < 3)));
    }

    #[test]
    fn the_share_of_verifiers_follows_the_seed_and_leaves_somebody_to_train() {
        for (members, percent, seed, expected) in [
            (101, 0, 99, 0),
            (101, 30, 99, 31),
            (101, 30, 69, 30),
            (101, 30, 170, 31),
            (6, 5, 69, 0),
            (6, 5, 70, 1),
            (1, 99, 99, 0),
            (2, 99, 1, 1),
            (0, 99, 99, 0),
            (256, 99, 0, 32),
            (256, 255, 0, 32),
            (10, 99, 99, 9),
        ] {
            let mut state = build_state();
            state.config.verification_percent = percent;
            (state.rounds[0].members, state.rounds[0].random_seed) = (Bitmap::below(members), seed);
            assert_eq!(compute_verifiers_expected(&state.rounds[0], &state.config), expected);
        }
    }
}
