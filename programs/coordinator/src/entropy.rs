//! The entropy of a seed: the hash of the first recorded slot from the armed one on (E1, E2, E4).

use anchor_lang::prelude::*;

use crate::errors::CoordinatorError;

/// The most slots that the sysvar records; from then on it forgets the oldest.
pub const MAX_RECORDED: u64 = 512;

const HEAD_BYTES: u64 = 8;
const ENTRY_BYTES: u64 = 40;
const SLOT_BYTES: usize = 8;

/// What the record says about an armed slot.
#[derive(Debug, PartialEq, Eq)]
pub enum Entropy {
    /// No slot from the armed one on has a hash yet.
    None,
    /// The record begins after the armed slot and has been cut (E2).
    Expired,
    Hash([u8; 32]),
}

impl Entropy {
    /// The body of a tick with this entropy, in `buffer`.
    pub fn write<'a>(&self, buffer: &'a mut [u8; 33]) -> &'a [u8] {
        match self {
            Entropy::None => &[0],
            Entropy::Expired => &[1],
            Entropy::Hash(hash) => {
                buffer[0] = 2;
                buffer[1..].copy_from_slice(hash);
                buffer
            }
        }
    }
}

/// Look up the armed slot in the record, newest slot first, that `read` reads at an offset.
pub fn find(armed: u64, read: impl Fn(u64, &mut [u8]) -> Result<()>) -> Result<Entropy> {
    let number = |offset| -> Result<u64> {
        let mut bytes = [0; SLOT_BYTES];
        read(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    };
    let slot = |entry: u64| number(HEAD_BYTES + ENTRY_BYTES * entry);
    let recorded = number(0)?;
    if recorded == 0 || slot(0)? < armed {
        return Ok(Entropy::None);
    }
    let oldest = recorded - 1;
    let entry = if slot(oldest)? <= armed {
        bisect(0, oldest, |entry| Ok(slot(entry)? >= armed))?
    } else if recorded >= MAX_RECORDED {
        return Ok(Entropy::Expired);
    } else {
        oldest
    };
    let mut hash = [0; 32];
    read(HEAD_BYTES + ENTRY_BYTES * entry + SLOT_BYTES as u64, &mut hash)?;
    Ok(Entropy::Hash(hash))
}

/// The last of the entries from `low` to `high` that `holds` accepts; it accepts `low`, and none after a refused one.
fn bisect(mut low: u64, mut high: u64, holds: impl Fn(u64) -> Result<bool>) -> Result<u64> {
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle)? {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(low)
}

/// Look up the armed slot in the chain's record.
pub fn find_recorded(armed: u64) -> Result<Entropy> {
    find(armed, read_slot_hashes)
}

#[cfg(target_os = "solana")]
fn read_slot_hashes(offset: u64, into: &mut [u8]) -> Result<()> {
    const SLOT_HASHES: Pubkey = pubkey!("SysvarS1otHashes111111111111111111111111111");
    extern "C" {
        fn sol_get_sysvar(id: *const u8, into: *mut u8, offset: u64, length: u64) -> u64;
    }
    // SAFETY: `into` is valid for its whole length.
    let failed = unsafe { sol_get_sysvar(SLOT_HASHES.as_ref().as_ptr(), into.as_mut_ptr(), offset, into.len() as u64) };
    require_eq!(failed, 0, CoordinatorError::SlotHashesUnreadable);
    Ok(())
}

#[cfg(not(target_os = "solana"))]
fn read_slot_hashes(_offset: u64, _into: &mut [u8]) -> Result<()> {
    err!(CoordinatorError::SlotHashesUnreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(slots: &[u64]) -> Vec<u8> {
        let mut bytes = (slots.len() as u64).to_le_bytes().to_vec();
        for slot in slots {
            bytes.extend(slot.to_le_bytes());
            bytes.extend([*slot as u8; 32]);
        }
        bytes
    }

    fn look_up(armed: u64, slots: &[u64]) -> Entropy {
        let bytes = record(slots);
        let found = find(armed, |offset, into| {
            let offset = offset as usize;
            into.copy_from_slice(&bytes[offset..offset + into.len()]);
            Ok(())
        });
        found.unwrap()
    }

    fn look_up_plainly(armed: u64, slots: &[u64]) -> Entropy {
        let is_cut = slots.len() as u64 == MAX_RECORDED && slots[slots.len() - 1] > armed;
        match slots.iter().rev().find(|slot| **slot >= armed) {
            None => Entropy::None,
            Some(_) if is_cut => Entropy::Expired,
            Some(slot) => Entropy::Hash([*slot as u8; 32]),
        }
    }

    #[test]
    fn finds_what_a_scan_finds() {
        for count in [0, 1, 2, 3, 100, 511, 512] {
            let slots: Vec<u64> = (0..count).rev().map(|i| 1_000 + 3 * i).collect();
            for armed in 990..1_000 + 3 * count + 5 {
                assert_eq!(look_up(armed, &slots), look_up_plainly(armed, &slots), "slot {armed} of {count}");
            }
        }
    }
}
