//! A round's quorum, roles and witnesses.
//!
//! Elections run over ranks. A member's rank is the number of set bits below its own in the round's `members`, or in
//! its `electors` for the election of witnesses (M10).

use crate::bits::Bitmap;
use crate::hash::{sha256, Hash};
use crate::limits::MAX_WITNESSES;
use crate::shuffle::{find_elected, permute};
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
    if !round.electors.get(member) {
        return false;
    }
    let (electors, expected) = (round.electors.count() as usize, round.witnesses_expected as usize);
    if expected >= electors {
        return true; // everybody: saves the election's hashes
    }
    let seed = compute_election_seed(round.random_seed, WITNESS_SALT);
    permute(round.electors.rank(member), electors, &seed) < expected // one rank instead of the whole order
}

/// Verifiers and tie-breakers: they owe no payload yet and are good if they were heard.
///
/// The first `tie_breaker_tasks` positions break ties, the next floor((m - T) * percent / 100) verify, the rest train.
pub fn get_idle_roles(round: &Round, config: &Config) -> Bitmap {
    if config.verification_percent == 0 && round.tie_breaker_tasks == 0 {
        return Bitmap::EMPTY; // only trainers: saves the election's hashes
    }
    let members = round.members.count();
    let tie_breakers = u32::from(round.tie_breaker_tasks).min(members);
    let verifiers = (members - tie_breakers) * u32::from(config.verification_percent.min(100)) / 100;
    let seed = compute_election_seed(round.random_seed, COMMITTEE_SALT);
    spread(find_elected(members as usize, (tie_breakers + verifiers) as usize, &seed), round.members)
}

/// The members of these ranks.
fn spread(ranks: Bitmap, members: Bitmap) -> Bitmap {
    if ranks.is_empty() || members == Bitmap::below(members.count() as usize) {
        return ranks; // nobody has left: ranks are indexes
    }
    let mut chosen = Bitmap::EMPTY;
    for (rank, member) in members.members().enumerate() {
        if ranks.get(rank) {
            chosen.set(member);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
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
    fn ranks_are_spread_over_the_members() {
        let mut random = Random::new("spread");
        for _ in 0..100 {
            let (ranks, members) = (random.bitmap(), random.bitmap() | random.bitmap());
            let ranks = ranks & Bitmap::below(members.count() as usize);
            let chosen = spread(ranks, members);
            for member in 0..256 {
                assert_eq!(chosen.get(member), members.get(member) && ranks.get(members.rank(member)));
            }
        }
        assert_eq!(spread(Bitmap::below(3), Bitmap::below(9)), Bitmap::below(3));
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
    fn the_share_of_verifiers_is_rounded_down() {
        let mut random = Random::new("roles");
        for (tie_breakers, percent, idle) in
            [(0, 0, 0), (0, 30, 30), (4, 50, 52), (0, 255, 101), (200, 10, 101), (5, 0, 5)]
        {
            let mut state = build_state();
            state.config.verification_percent = percent;
            let round = &mut state.rounds[0];
            round.members = random.bitmap().first(101);
            round.random_seed = random.word();
            round.tie_breaker_tasks = tie_breakers;
            let elected = get_idle_roles(&state.rounds[0], &state.config);
            assert_eq!(elected.count(), idle);
            assert!(elected.without(state.rounds[0].members).is_empty());
        }
    }
}
