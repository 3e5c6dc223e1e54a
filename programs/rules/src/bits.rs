//! Bitmaps of members: 32 little-endian bytes on record; bit i stands for member i.

use core::ops::{BitAnd, BitOr, Not};

use crate::limits::{MAX_CLIENTS, MAX_WITNESSES};

const WORDS: usize = MAX_CLIENTS / 64;

/// A set of members.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Bitmap(pub [u64; WORDS]);

impl Bitmap {
    pub const EMPTY: Bitmap = Bitmap([0; WORDS]);

    /// The members below `n`: all of them for an `n` of 256 and above.
    #[inline]
    pub fn below(n: usize) -> Bitmap {
        let mut bits = Bitmap::EMPTY;
        for (word, into) in bits.0.iter_mut().enumerate() {
            let first = 64 * word;
            if n >= first + 64 {
                *into = u64::MAX;
            } else if n > first {
                *into = (1 << (n - first)) - 1;
            }
        }
        bits
    }

    /// Read a bitmap from its 32 bytes.
    #[inline]
    pub fn from_bytes(bytes: &[u8; 8 * WORDS]) -> Bitmap {
        let mut bits = Bitmap::EMPTY;
        for (into, from) in bits.0.iter_mut().zip(bytes.chunks_exact(8)) {
            *into = crate::hash::read_u64(from);
        }
        bits
    }

    /// Whether a member is in the set; false for numbers that no member has.
    #[inline(always)]
    pub fn get(&self, member: usize) -> bool {
        member < MAX_CLIENTS && self.0[member / 64] >> (member % 64) & 1 == 1
    }

    #[inline(always)]
    pub fn set(&mut self, member: usize) {
        self.0[member / 64] |= 1 << (member % 64);
    }

    #[inline(always)]
    pub fn clear(&mut self, member: usize) {
        self.0[member / 64] &= !(1 << (member % 64));
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0[0] | self.0[1] | self.0[2] | self.0[3] == 0
    }

    /// The number of members in the set.
    #[inline]
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The members of this set that are not in the other one.
    #[inline(always)]
    pub fn without(self, other: Bitmap) -> Bitmap {
        self & !other
    }

    /// The number of members in the set below this one: its rank, if it is in the set itself.
    #[inline]
    pub fn rank(&self, member: usize) -> usize {
        (*self & Bitmap::below(member)).count() as usize
    }

    /// The members in the set, ascending.
    #[inline(always)]
    pub fn members(self) -> Members {
        Members { bits: self, word: 0, rest: self.0[0], member: 0 }
    }

    /// The places of the items that a rule holds for; there are at most 256.
    #[inline(always)]
    pub fn collect<T>(items: &[T], holds: impl Fn(&T) -> bool) -> Bitmap {
        let mut bits = Bitmap::EMPTY;
        for (into, group) in bits.0.iter_mut().zip(items.chunks(64)) {
            for item in group.iter().rev() {
                *into = *into << 1 | u64::from(holds(item));
            }
        }
        bits
    }

    /// Visit the items whose places are in the set, ascending; there are at most 256.
    ///
    /// This is what loops over all members use: on SBF it costs half of looking up `items[member]` for each of them.
    #[inline(always)]
    pub fn visit<T>(self, items: &[T], mut visit: impl FnMut(usize, &T)) {
        for (word, group) in items.chunks(64).enumerate() {
            let mut rest = self.0[word];
            for (bit, item) in group.iter().enumerate() {
                if rest == 0 {
                    break;
                }
                if rest & 1 == 1 {
                    visit(64 * word + bit, item);
                }
                rest >>= 1;
            }
        }
    }

    /// Visit the items whose places are in the set, to change them.
    #[inline(always)]
    pub fn visit_mut<T>(self, items: &mut [T], mut visit: impl FnMut(usize, &mut T)) {
        for (word, group) in items.chunks_mut(64).enumerate() {
            let mut rest = self.0[word];
            for (bit, item) in group.iter_mut().enumerate() {
                if rest == 0 {
                    break;
                }
                if rest & 1 == 1 {
                    visit(64 * word + bit, item);
                }
                rest >>= 1;
            }
        }
    }

    /// The first `n` members in the set.
    pub fn first(self, n: usize) -> Bitmap {
        let mut chosen = Bitmap::EMPTY;
        for member in self.members().take(n) {
            chosen.set(member);
        }
        chosen
    }
}

impl BitAnd for Bitmap {
    type Output = Bitmap;

    #[inline(always)]
    fn bitand(self, other: Bitmap) -> Bitmap {
        let (a, b) = (self.0, other.0);
        Bitmap([a[0] & b[0], a[1] & b[1], a[2] & b[2], a[3] & b[3]])
    }
}

impl BitOr for Bitmap {
    type Output = Bitmap;

    #[inline(always)]
    fn bitor(self, other: Bitmap) -> Bitmap {
        let (a, b) = (self.0, other.0);
        Bitmap([a[0] | b[0], a[1] | b[1], a[2] | b[2], a[3] | b[3]])
    }
}

impl Not for Bitmap {
    type Output = Bitmap;

    #[inline(always)]
    fn not(self) -> Bitmap {
        Bitmap([!self.0[0], !self.0[1], !self.0[2], !self.0[3]])
    }
}

/// The members of a set, ascending. Sets are mostly dense, so the iterator looks at one bit after another: finding
/// the lowest bit of a word costs a program on SBF more than ten such steps.
pub struct Members {
    bits: Bitmap,
    word: usize,
    rest: u64,
    member: usize,
}

impl Iterator for Members {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        loop {
            if self.rest == 0 {
                self.word += 1;
                if self.word >= WORDS {
                    self.word = WORDS; // stays at the end
                    return None;
                }
                self.rest = self.bits.0[self.word];
                self.member = 64 * self.word;
                continue;
            }
            let (is_set, member) = (self.rest & 1 == 1, self.member);
            self.rest >>= 1;
            self.member += 1;
            if is_set {
                return Some(member);
            }
        }
    }
}

const PLANES: usize = 6; // counts up to 32, the most records of a round, and then some
const _: () = assert!(MAX_WITNESSES < 1 << PLANES);

/// Counts, for every member, the bitmaps in which the member's bit is set.
///
/// The counts are bit-sliced: plane k holds bit k of every member's count. Adding a bitmap takes a few operations on
/// whole words, whatever the number of members, and one tally answers every question about its bitmaps.
#[derive(Default)]
pub struct Tally {
    planes: [Bitmap; PLANES],
    len: u32,
}

impl Tally {
    /// Count these bitmaps, at most 63.
    pub fn count<'a>(bitmaps: impl Iterator<Item = &'a Bitmap>) -> Tally {
        let mut tally = Tally::default();
        for bits in bitmaps {
            tally.add(bits);
        }
        tally
    }

    #[inline]
    fn add(&mut self, bits: &Bitmap) {
        for word in 0..WORDS {
            let mut carry = bits.0[word];
            for plane in &mut self.planes {
                if carry == 0 {
                    break;
                }
                let both = plane.0[word] & carry;
                plane.0[word] ^= carry;
                carry = both;
            }
        }
        self.len += 1;
    }

    /// The members that are set in at least `threshold` bitmaps.
    pub fn at_least(&self, threshold: u32) -> Bitmap {
        if threshold > self.len {
            return Bitmap::EMPTY;
        }
        let mut enough = Bitmap::EMPTY;
        for word in 0..WORDS {
            // count - threshold for all 64 members of the word at once; a borrow at the end says that it is negative
            let mut borrow = 0;
            for (k, plane) in self.planes.iter().enumerate() {
                let (a, b) = (plane.0[word], 0_u64.wrapping_sub(u64::from(threshold >> k & 1)));
                borrow = (!a & (b | borrow)) | (b & borrow);
            }
            enough.0[word] = !borrow;
        }
        enough
    }

    /// The members that are missing in at least `threshold` bitmaps.
    pub fn missing_at_least(&self, threshold: u32) -> Bitmap {
        if threshold > self.len {
            return Bitmap::EMPTY;
        }
        !self.at_least(self.len - threshold + 1) // else set in more than all others
    }
}

/// The bits set in these bytes, whose number is a multiple of 8.
pub fn count_bits(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(8).map(|word| crate::hash::read_u64(word).count_ones()).sum()
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::testing::Random;

    #[test]
    fn members_are_listed_in_order() {
        let mut random = Random::new("members");
        for _ in 0..200 {
            let bits = random.bitmap() & random.bitmap();
            let plain: Vec<usize> = (0..MAX_CLIENTS).filter(|&m| bits.get(m)).collect();
            assert_eq!(bits.members().collect::<Vec<_>>(), plain);
            assert_eq!(bits.count() as usize, plain.len());
            for (rank, &member) in plain.iter().enumerate() {
                assert_eq!(bits.rank(member), rank);
            }
        }
        let mut none = Bitmap::EMPTY.members();
        assert_eq!((none.next(), none.next()), (None, None));
        assert_eq!((!Bitmap::EMPTY).members().count(), MAX_CLIENTS);
    }

    #[test]
    fn below_holds_the_first_members() {
        for n in 0..300 {
            let bits = Bitmap::below(n);
            assert!((0..MAX_CLIENTS).all(|m| bits.get(m) == (m < n)));
        }
        assert!(!Bitmap::below(256).get(256));
    }

    #[test]
    fn the_first_members_of_a_set_are_its_lowest_ones() {
        let mut random = Random::new("first");
        for n in 0..40 {
            let bits = random.bitmap();
            assert_eq!(bits.first(n).members().collect::<Vec<_>>(), bits.members().take(n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn items_are_collected_and_visited_by_their_places() {
        let mut random = Random::new("visit");
        for len in [0, 1, 63, 64, 65, 200, 256] {
            let (bits, within) = (random.bitmap() & random.bitmap(), Bitmap::below(len));
            let mut items: Vec<usize> = (0..len).collect();
            assert_eq!(Bitmap::collect(&items, |&item| bits.get(item)), bits & within);
            let mut visited = Vec::new();
            bits.visit(&items, |place, &item| visited.push((place, item)));
            assert_eq!(visited, (bits & within).members().map(|member| (member, member)).collect::<Vec<_>>());
            bits.visit_mut(&mut items, |place, item| *item += 1_000 + place);
            assert!((0..len).all(|place| items[place] == if bits.get(place) { 1_000 + 2 * place } else { place }));
        }
    }

    #[test]
    fn a_tally_answers_as_plain_counts_do() {
        let mut random = Random::new("tally");
        for len in 0..=MAX_WITNESSES {
            let maps: Vec<Bitmap> = (0..len).map(|_| random.bitmap() | random.bitmap()).collect();
            let tally = Tally::count(maps.iter());
            for threshold in 1..=MAX_WITNESSES + 2 {
                let (set, missing) = (tally.at_least(threshold as u32), tally.missing_at_least(threshold as u32));
                for m in 0..MAX_CLIENTS {
                    let count = maps.iter().filter(|bits| bits.get(m)).count();
                    assert_eq!(set.get(m), count >= threshold, "{len} {threshold} {m}");
                    assert_eq!(missing.get(m), len - count >= threshold, "{len} {threshold} {m}");
                }
            }
        }
    }

    #[test]
    fn set_bits_of_bytes_are_counted() {
        let mut bytes = [0_u8; 320];
        assert_eq!(count_bits(&bytes), 0);
        (bytes[0], bytes[7], bytes[319]) = (3, 0x80, 0xff);
        assert_eq!(count_bits(&bytes), 11);
    }
}
