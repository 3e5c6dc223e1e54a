//! Evidence of equivocation: two signed results of one member for one round, with different commitments (R7).
//!
//! The runtime's ed25519 program checks the signatures, in the instruction before the report. Its data name the keys
//! and messages that it checked.

use anchor_lang::prelude::*;
use psyche_rules::hash::Hash;
use psyche_rules::state::State;
use solana_instructions_sysvar::get_instruction_relative;

use crate::errors::CoordinatorError;

const ED25519_PROGRAM: Pubkey = pubkey!("Ed25519SigVerify111111111111111111111111111");
const HEAD_BYTES: usize = 2;
const ENTRY_BYTES: usize = 14;
/// In place of an instruction's index: the data lie in the ed25519 program's own instruction.
const HERE: u16 = u16::MAX;

const TAG: &[u8; 15] = b"psyche/result/1";
const NAMED_BYTES: usize = TAG.len() + 32 + 2 + 4 + 2;
const SIGNED_BYTES: usize = NAMED_BYTES + 32;

/// A result's signed bytes, and the key that signed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signed<'a> {
    key: &'a [u8],
    message: &'a [u8],
}

/// Refuse evidence that does not prove that this member signed two results for this round of this run.
pub fn check(state: &State, instructions: &AccountInfo, epoch: u16, height: u32, member: u16) -> Result<()> {
    let checked = get_instruction_relative(-1, instructions).map_err(|_| CoordinatorError::MissingEvidence)?;
    require_keys_eq!(checked.program_id, ED25519_PROGRAM, CoordinatorError::MissingEvidence);
    let [first, second] = read(&checked.data).ok_or(CoordinatorError::MissingEvidence)?;
    let client = state.clients().get(member as usize).ok_or(CoordinatorError::UnknownMember)?;
    let named = name(&state.run_uid, epoch, height, member);
    let is_proven = [first, second].iter().all(|signed| signed.key == client.p2p && signed.message.starts_with(&named))
        && first.message != second.message;
    require!(is_proven, CoordinatorError::UnprovenEvidence);
    Ok(())
}

/// The two results that the ed25519 program checked; none if it checked anything else.
fn read(data: &[u8]) -> Option<[Signed<'_>; 2]> {
    if data.first() != Some(&2) {
        return None;
    }
    Some([read_entry(data, 0)?, read_entry(data, 1)?])
}

fn read_entry(data: &[u8], number: usize) -> Option<Signed<'_>> {
    let entry = data.get(HEAD_BYTES + number * ENTRY_BYTES..)?.get(..ENTRY_BYTES)?;
    let field = |place: usize| u16::from_le_bytes([entry[2 * place], entry[2 * place + 1]]);
    let [_signature, signature_at, key, key_at, message, size, message_at] = core::array::from_fn(field);
    if [signature_at, key_at, message_at] != [HERE; 3] || size as usize != SIGNED_BYTES {
        return None;
    }
    Some(Signed { key: slice(data, key, 32)?, message: slice(data, message, SIGNED_BYTES)? })
}

fn slice(data: &[u8], start: u16, size: usize) -> Option<&[u8]> {
    data.get(start as usize..)?.get(..size)
}

/// The beginning of a result's signed bytes; the commitment follows.
fn name(run_uid: &Hash, epoch: u16, height: u32, member: u16) -> [u8; NAMED_BYTES] {
    let mut named = [0; NAMED_BYTES];
    named[..15].copy_from_slice(TAG);
    named[15..47].copy_from_slice(run_uid);
    named[47..49].copy_from_slice(&epoch.to_le_bytes());
    named[49..53].copy_from_slice(&height.to_le_bytes());
    named[53..].copy_from_slice(&member.to_le_bytes());
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: usize = HEAD_BYTES + 2 * ENTRY_BYTES;

    fn write(edit: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut data = vec![2, 0];
        for message in [FIRST + 32 + 128, FIRST + 32 + 128 + SIGNED_BYTES] {
            for field in [FIRST + 32, HERE as usize, FIRST, HERE as usize, message, SIGNED_BYTES, HERE as usize] {
                data.extend((field as u16).to_le_bytes());
            }
        }
        data.extend([7; 32]);
        data.extend([0; 128]);
        data.extend([1; SIGNED_BYTES]);
        data.extend([2; SIGNED_BYTES]);
        edit(&mut data);
        data
    }

    #[test]
    fn two_messages_under_one_key_are_read() {
        let data = write(|_| ());
        let read = read(&data).unwrap();
        assert_eq!(read.map(|signed| signed.key[0]), [7, 7]);
        assert_eq!(read.map(|signed| signed.message[86]), [1, 2]);
    }

    #[test]
    fn data_in_another_instruction_are_refused() {
        for entry in 0..2 {
            for place in [1, 3, 6] {
                let data = write(|data| data[HEAD_BYTES + entry * ENTRY_BYTES + 2 * place] = 0);
                assert_eq!(read(&data), None);
            }
        }
    }

    #[test]
    fn other_counts_sizes_and_places_are_refused() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&write(|data| data[0] = 1)), None);
        assert_eq!(read(&write(|data| data[0] = 3)), None);
        assert_eq!(read(&write(|data| data[HEAD_BYTES + 10] = 88)), None);
        assert_eq!(read(&write(|data| data[HEAD_BYTES + 9] = 9)), None);
        assert_eq!(read(&write(|_| ())[..FIRST - 1]), None);
    }
}
