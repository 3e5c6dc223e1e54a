//! The pseudorandom permutation behind elections: the swap-or-not shuffle of up to 256 ranks.
//!
//! Each of its 90 rounds pairs every position with a flip position and swaps the pair if the round's bit of the
//! greater one says so. One hash gives the pivot of a round, another the bits of all 256 positions.

use crate::bits::Bitmap;
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

/// The position of `index` in the permutation of `n` under a seed; `index` is below `n`, and `n` at most 256.
pub fn permute(index: usize, n: usize, seed: &Hash) -> usize {
    let mut turns = Turns::new(seed);
    let mut current = index;
    for turn in 0..SHUFFLE_ROUNDS {
        let (pivot, source) = turns.draw(turn, n);
        let flip = (pivot + n - current) % n;
        let position = current.max(flip);
        if source[position / 8 % 32] >> (position % 8) & 1 == 1 {
            current = flip;
        }
    }
    current
}

/// The indexes below `n` whose position in the permutation is below `k`, all at once; `n` is at most 256.
///
/// It asks for every position which index arrives there, so it takes the rounds backwards. A round is its own inverse,
/// and a set of positions goes through it like this: members of the set and their flip positions change places where
/// the round's bit is set. That is a handful of operations on whole bitmaps, whatever `n` is.
#[inline(never)]
pub fn find_elected(n: usize, k: usize, seed: &Hash) -> Bitmap {
    let all = Bitmap::below(n);
    if k == 0 || k >= n {
        return if k == 0 { Bitmap::EMPTY } else { all };
    }
    let mut turns = Turns::new(seed);
    let mut elected = Bitmap::below(k);
    for turn in (0..SHUFFLE_ROUNDS).rev() {
        let (pivot, source) = turns.draw(turn, n);
        let flip = Flip::new(pivot, n, all);
        // the bit of the greater position decides for both
        let decided = Bitmap::from_bytes(&source) & flip.get_greater();
        let swapped = decided | flip.apply(decided);
        elected = (swapped & flip.apply(elected)) | elected.without(swapped);
    }
    elected
}

/// The pairs of one round: position x flips to pivot - x, modulo n. These are two mirrors, one of the positions up to
/// the pivot and one of the positions above it.
struct Flip {
    pivot: usize,
    n: usize,
    up_to_pivot: Bitmap,
    above_pivot: Bitmap,
}

impl Flip {
    #[inline(always)]
    fn new(pivot: usize, n: usize, all: Bitmap) -> Flip {
        let up_to_pivot = Bitmap::below(pivot + 1);
        Flip { pivot, n, up_to_pivot, above_pivot: all.without(up_to_pivot) }
    }

    /// The greater positions of all pairs, and those that flip to themselves.
    #[inline(always)]
    fn get_greater(&self) -> Bitmap {
        let low = self.up_to_pivot.without(Bitmap::below(self.pivot.div_ceil(2)));
        low | self.above_pivot.without(Bitmap::below((self.n + self.pivot).div_ceil(2)))
    }

    /// The flip positions of a set of positions.
    #[inline(always)]
    fn apply(&self, positions: Bitmap) -> Bitmap {
        let mirrored = mirror(positions); // position x is now at 255 - x
        let low = shift_down(mirrored, 255 - self.pivot);
        let sum = self.n + self.pivot;
        let high = if sum > 255 { shift_up(mirrored, sum - 255) } else { shift_down(mirrored, 255 - sum) };
        (low & self.up_to_pivot) | (high & self.above_pivot)
    }
}

/// Bit x moves to bit 255 - x.
#[inline(always)]
fn mirror(bits: Bitmap) -> Bitmap {
    let [a, b, c, d] = bits.0;
    Bitmap([d.reverse_bits(), c.reverse_bits(), b.reverse_bits(), a.reverse_bits()])
}

/// Every bit moves down by `by` places, at most 255; the lowest ones fall out.
#[inline(always)]
fn shift_down(bits: Bitmap, by: usize) -> Bitmap {
    let (words, by) = (by / 64, by % 64);
    let mut shifted = Bitmap::EMPTY;
    for into in 0..4 {
        let from = into + words;
        let low = if from < 4 { bits.0[from] >> by } else { 0 };
        let high = if by > 0 && from + 1 < 4 { bits.0[from + 1] << (64 - by) } else { 0 };
        shifted.0[into] = low | high;
    }
    shifted
}

/// Every bit moves up by `by` places, at most 256; the highest ones fall out.
#[inline(always)]
fn shift_up(bits: Bitmap, by: usize) -> Bitmap {
    let (words, by) = (by / 64, by % 64);
    let mut shifted = Bitmap::EMPTY;
    for into in words..4 {
        let from = into - words;
        let low = if by > 0 && from > 0 { bits.0[from - 1] >> (64 - by) } else { 0 };
        shifted.0[into] = bits.0[from] << by | low;
    }
    shifted
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
    fn one_index_has_its_place_in_the_order() {
        let mut random = Random::new("permute");
        for n in [1, 2, 3, 4, 7, 32, 33, 64, 65, 100, 255, 256] {
            let seed = random.hash();
            for (position, &index) in compute_order(n, &seed).iter().enumerate().step_by(1 + n / 9) {
                assert_eq!(permute(index, n, &seed), position);
            }
        }
    }

    #[test]
    fn the_elected_are_the_first_of_the_order() {
        let mut random = Random::new("elected");
        let sizes = [1, 2, 3, 63, 64, 65, 127, 128, 129, 191, 192, 193, 254, 255, 256];
        let drawn: Vec<usize> = (0..150).map(|_| random.between(1, 256)).collect();
        for &n in sizes.iter().chain(drawn.iter()) {
            let seed = random.hash();
            let order = compute_order(n, &seed);
            for k in [0, 1, random.between(0, n), random.between(0, n), n - 1, n, n + 1] {
                let mut plain = Bitmap::EMPTY;
                order.iter().take(k).for_each(|&index| plain.set(index));
                assert_eq!(find_elected(n, k, &seed), plain, "{n} {k}");
            }
        }
    }

    #[test]
    fn shifts_move_every_bit() {
        let mut random = Random::new("shifts");
        for by in 0..256 {
            let bits = random.bitmap();
            let (down, up, turned) = (shift_down(bits, by), shift_up(bits, by), mirror(bits));
            for x in 0..256 {
                assert_eq!(down.get(x), bits.get(x + by));
                assert_eq!(up.get(x), x >= by && bits.get(x.wrapping_sub(by)));
                assert_eq!(turned.get(x), bits.get(255 - x));
            }
        }
        assert!(shift_up(!Bitmap::EMPTY, 256).is_empty());
    }
}
