//! What an authorization allows, read from the account's bytes without a heap: for the programs that ask.

use anchor_lang::prelude::Pubkey;
use anchor_lang::Discriminator;

use crate::state::Authorization;

type Key = [u8; 32];

/// Whether the bytes of an account of this program authorize `key` in the name of `grantor` for `scope`.
///
/// The caller has checked that this program owns the account. Bytes that are no authorization authorize nobody.
pub fn is_valid(data: &[u8], grantor: &Pubkey, key: &Pubkey, scope: &[u8]) -> bool {
    read(data).is_some_and(|view| view.allows(grantor.as_array(), key.as_array(), scope))
}

/// The parts of an authorization that decide, borrowed from the account.
struct View<'a> {
    grantor: &'a Key,
    grantee: &'a Key,
    scope: &'a [u8],
    active: bool,
    delegates: &'a [u8],
}

impl View<'_> {
    fn allows(&self, grantor: &Key, key: &Key, scope: &[u8]) -> bool {
        self.active
            && is_same(self.grantor, grantor)
            && self.scope == scope
            && (*self.grantee == [0; 32] || is_same(self.grantee, key) || self.has_delegate(key))
    }

    fn has_delegate(&self, key: &Key) -> bool {
        self.delegates.chunks_exact(32).any(|delegate| delegate.try_into().is_ok_and(|d| is_same(d, key)))
    }
}

/// The fields of `Authorization` in their order, or None if the bytes are not one.
fn read(data: &[u8]) -> Option<View<'_>> {
    let data = data.strip_prefix(Authorization::DISCRIMINATOR)?;
    let (_bump, data) = data.split_first()?;
    let (grantor, data) = data.split_first_chunk()?;
    let (grantee, data) = data.split_first_chunk()?;
    let (scope, data) = read_list(data, 1)?;
    let (active, data) = data.split_first()?;
    let (delegates, _) = read_list(data, 32)?;
    Some(View { grantor, grantee, scope, active: *active == 1, delegates })
}

/// A Borsh list: its length as a u32, then its entries of `size` bytes each.
fn read_list(data: &[u8], size: usize) -> Option<(&[u8], &[u8])> {
    let (length, data) = data.split_first_chunk()?;
    let bytes = usize::try_from(u32::from_le_bytes(*length)).ok()?.checked_mul(size)?;
    data.split_at_checked(bytes)
}

/// Whether two keys are equal. Nearly all that differ do so in their first word, and a comparison of whole keys is a
/// system call, which costs more.
pub(crate) fn is_same(left: &Key, right: &Key) -> bool {
    left.first_chunk::<8>() == right.first_chunk::<8>() && left == right
}

#[cfg(test)]
mod tests {
    use super::*;
    use anchor_lang::AccountSerialize;

    const GRANTOR: Pubkey = Pubkey::new_from_array([1; 32]);
    const GRANTEE: Pubkey = Pubkey::new_from_array([2; 32]);
    const MACHINE: Pubkey = Pubkey::new_from_array([3; 32]);
    const STRANGER: Pubkey = Pubkey::new_from_array([9; 32]);

    fn encode(grantee: Pubkey, active: bool, delegates: Vec<Pubkey>) -> Vec<u8> {
        let mut data = Vec::new();
        let scope = b"Join".to_vec();
        let account = Authorization {
            bump: 255,
            grantor: GRANTOR,
            grantee,
            scope,
            active,
            delegates,
            grantor_update_unix_timestamp: 7,
        };
        account.try_serialize(&mut data).unwrap();
        data
    }

    fn allows(data: &[u8], key: Pubkey) -> bool {
        is_valid(data, &GRANTOR, &key, b"Join")
    }

    #[test]
    fn grantee_and_delegates_are_authorized_and_nobody_else() {
        let data = encode(GRANTEE, true, vec![Pubkey::new_from_array([4; 32]), MACHINE]);
        assert!(allows(&data, GRANTEE) && allows(&data, MACHINE));
        assert!(!allows(&data, STRANGER) && !allows(&data, GRANTOR));
        assert!(allows(&encode(Pubkey::default(), true, vec![]), STRANGER));
    }

    #[test]
    fn inactive_authorizations_and_foreign_grantors_and_scopes_authorize_nobody() {
        let data = encode(GRANTEE, true, vec![]);
        assert!(!allows(&encode(GRANTEE, false, vec![MACHINE]), MACHINE));
        assert!(!allows(&encode(Pubkey::default(), false, vec![]), STRANGER));
        assert!(!is_valid(&data, &STRANGER, &GRANTEE, b"Join"));
        assert!(!is_valid(&data, &GRANTOR, &GRANTEE, b"Joi"));
    }

    #[test]
    fn no_part_of_an_authorization_authorizes_anybody() {
        let data = encode(GRANTEE, true, vec![MACHINE]);
        for end in 0..data.len() - 8 {
            assert!(!allows(&data[..end], MACHINE), "{end} bytes");
        }
        let mut other = data;
        other[0] ^= 1;
        assert!(!allows(&other, MACHINE));
    }

    #[test]
    fn lengths_that_lie_authorize_nobody() {
        let mut data = encode(GRANTEE, true, vec![MACHINE]);
        data[73..77].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(!allows(&data, GRANTEE));
        let mut data = encode(GRANTEE, true, vec![MACHINE]);
        data[82..86].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(!allows(&data, GRANTEE));
    }
}
