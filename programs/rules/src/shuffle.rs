//! The pseudorandom permutation behind elections: the swap-or-not shuffle of up to 256 ranks.
//!
//! Each of its 90 rounds pairs every position with a flip position and swaps the pair if the round's bit of the
//! greater one says so. One hash gives the pivot of a round, another the bits of all 256 positions.

use crate::hash::{read_u64, sha256, Hash};
use crate::limits::SHUFFLE_ROUNDS;

/// The hashes of one seed: one buffer serves all of them.
struct Turns {
    pivot: [u8; 33],  // seed | turn
    source: [u8; 37], // seed | turn | block 0, the only one for up to 256 positions
}

impl Turns {
    fn new(seed: &Hash) -> Turns {
        let mut turns = Turns { pivot: [0; 33], source: [0; 37] };
        turns.pivot[..32].copy_from_slice(seed);
        turns.source[..32].copy_from_slice(seed);
        turns
    }

    /// The pivot of a round over `n` positions, and the round's 256 bits.
    #[inline(always)]
    fn draw(&mut self, turn: u8, n: usize) -> (usize, Hash) {
        (self.pivot[32], self.source[32]) = (turn, turn);
        let pivot = read_u64(&sha256(&[&self.pivot])) % n as u64;
        (pivot as usize, sha256(&[&self.source]))
    }
}

/// The positions of some indexes in the permutation of `n` under a seed; each is below `n`, and `n` at most 256. They
/// share the hashes, which are most of the cost.
#[inline(never)]
pub fn permute<const N: usize>(indexes: [usize; N], n: usize, seed: &Hash) -> [usize; N] {
    let mut turns = Turns::new(seed);
    let mut positions = indexes;
    for turn in 0..SHUFFLE_ROUNDS {
        let (pivot, source) = turns.draw(turn, n);
        for current in &mut positions {
            let flip = if pivot >= *current { pivot - *current } else { pivot + n - *current };
            let position = flip.max(*current);
            if source[position / 8 % 32] >> (position % 8) & 1 == 1 {
                *current = flip;
            }
        }
    }
    positions
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::testing::Random;

    /// The whole permutation as core computes it, by swapping pairs: element p is the index at position p.
    fn compute_order(n: usize, seed: &Hash) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for turn in 0..SHUFFLE_ROUNDS {
            let (pivot, source) = Turns::new(seed).draw(turn, n);
            for position in 0..n {
                let flip = (pivot + n - position) % n;
                if flip < position && source[position / 8] >> (position % 8) & 1 == 1 {
                    order.swap(position, flip);
                }
            }
        }
        order
    }

    #[test]
    fn the_order_is_that_of_core() {
        let seed = sha256(&[b"order"]);
        assert_eq!(compute_order(12, &seed), [4, 11, 0, 9, 1, 10, 8, 6, 7, 2, 5, 3]);
    }

    #[test]
    fn indexes_have_their_places_in_the_order() {
        let mut random = Random::new("permute");
        for n in [1, 2, 3, 4, 7, 32, 33, 64, 65, 100, 255, 256] {
            let seed = random.hash();
            for (position, &index) in compute_order(n, &seed).iter().enumerate().step_by(1 + n / 9) {
                assert_eq!(permute([index], n, &seed), [position]);
                let all = permute([index, n - 1, 0], n, &seed);
                assert_eq!(all.map(|place| compute_order(n, &seed)[place]), [index, n - 1, 0]);
            }
        }
    }
}
