//! The seed of a round, and the mix of its witness messages (E1 to E3, W5).

use crate::hash::{read_u64, sha256, Hash};

const SEED_TAG: &[u8] = b"psyche/seed/1";
const MIX_TAG: &[u8] = b"psyche/mix/1";

/// The seed of round `height` (E3).
///
/// `previous_seed` and `mix` are those of the round before. At height 0, `previous_seed` is the seed drawn last (zero in
/// a new run) and `mix` is zero. `entropy` is the hash of the armed slot.
pub fn compute_seed(run_uid: &Hash, epoch: u16, height: u32, previous_seed: &Hash, mix: &Hash, entropy: &Hash) -> Hash {
    sha256(&[SEED_TAG, run_uid, &epoch.to_le_bytes(), &height.to_le_bytes(), previous_seed, mix, entropy])
}

/// The random number for elections and slices: the first 8 bytes of the seed (E3).
pub fn get_random_seed(seed: &Hash) -> u64 {
    read_u64(seed)
}

/// The mix after one more accepted witness message (W5).
pub fn compute_mix(mix: &Hash, member: u16, results_root: &Hash, state_digest: &Hash) -> Hash {
    sha256(&[MIX_TAG, mix, &member.to_le_bytes(), results_root, state_digest])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_mixes_are_those_of_core() {
        let seed = compute_seed(&[1; 32], 2, 3, &[4; 32], &[5; 32], &[6; 32]);
        assert_eq!(get_random_seed(&seed), 0xa07044a2871b76fd);
        assert_eq!(read_u64(&compute_mix(&[1; 32], 2, &[3; 32], &[4; 32])), 0x4f10fcd41fbdcbe6);
    }
}
