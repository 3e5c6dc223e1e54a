//! SHA-256 and the comparison of hashes. On SBF the hash is a syscall.

pub type Hash = [u8; 32];

/// All zero: unset.
pub const ZERO: Hash = [0; 32];

/// SHA-256 of the parts, one after another.
#[cfg(any(target_os = "solana", target_arch = "bpf"))]
#[inline]
pub fn sha256(parts: &[&[u8]]) -> Hash {
    extern "C" {
        fn sol_sha256(parts: *const u8, len: u64, result: *mut u8) -> u64;
    }
    let mut digest = ZERO;
    // SAFETY: the syscall reads `len` pairs of address and length, which is how SBF lays out slices, and writes 32 bytes.
    unsafe { sol_sha256(parts.as_ptr().cast(), parts.len() as u64, digest.as_mut_ptr()) };
    digest
}

/// SHA-256 of the parts, one after another.
#[cfg(not(any(target_os = "solana", target_arch = "bpf")))]
pub fn sha256(parts: &[&[u8]]) -> Hash {
    use sha2::{Digest, Sha256};
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// The first 8 bytes as a little-endian number; there must be as many.
#[inline(always)]
pub fn read_u64(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// Whether two hashes or keys are equal. Four words: a comparison of bytes would be a syscall on SBF.
#[inline(always)]
pub fn is_same(a: &Hash, b: &Hash) -> bool {
    (0..4).all(|i| read_u64(&a[8 * i..]) == read_u64(&b[8 * i..]))
}

/// Whether a hash is unset.
#[inline(always)]
pub fn is_zero(hash: &Hash) -> bool {
    (0..4).all(|i| read_u64(&hash[8 * i..]) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_hashed_one_after_another() {
        let whole = sha256(&[b"abc"]);
        assert_eq!(whole[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(sha256(&[b"a", b"", b"bc"]), whole);
    }

    #[test]
    fn a_difference_in_any_byte_is_noticed() {
        let hash = sha256(&[b"x"]);
        assert!(is_same(&hash, &hash.clone()) && is_zero(&ZERO));
        for byte in 0..32 {
            let (mut other, mut set) = (hash, ZERO);
            other[byte] ^= 1;
            set[byte] = 1;
            assert!(!is_same(&hash, &other) && !is_zero(&set));
        }
    }
}
