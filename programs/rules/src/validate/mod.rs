//! Strict readers of what an owner writes: nothing may end up on record that `decode_state` refuses.
//!
//! They accept exactly what `psyche.core.encoding` decodes and `psyche.core.state.config_checks` finds no problem in.
//! Floats are compared by their bits, since programs have no floating-point arithmetic.

mod config;
mod data;
mod fields;
mod floats;
mod model;
mod schedule;
mod sources;

pub use config::{check_config, check_progress};
pub use sources::{read_source, Source};

use crate::errors::Refusal;
use crate::limits::*;
use fields::is_text;

fn demand(holds: bool) -> Result<(), Refusal> {
    if holds {
        Ok(())
    } else {
        Err(Refusal::ConfigRefused)
    }
}

/// Refuse what cannot stand on record as what people see of a run; its numbers may be any.
pub fn check_metadata(metadata: &[u8; RUN_METADATA_BYTES]) -> Result<(), Refusal> {
    let (name, rest) = metadata.split_at(NAME_BYTES);
    demand(is_text(name) && is_text(&rest[..DESCRIPTION_BYTES]))
}

/// Refuse what cannot stand on record as the version of the client that the run asks for.
pub fn check_version(version: &[u8; CLIENT_VERSION_BYTES]) -> Result<(), Refusal> {
    demand(is_text(version))
}

/// Refuse what cannot stand on record as the addresses where a run's nodes are found: multiaddrs of 128 bytes each.
pub fn check_bootstrap(addresses: &[u8]) -> Result<(), Refusal> {
    demand(addresses.chunks(BOOTSTRAP_BYTES).all(|address| address[0] == b'/' && is_text(address)))
}

/// A text as a field of fixed size holds it: padded with zeros.
pub fn pad_text<const N: usize>(text: &[u8]) -> Result<[u8; N], Refusal> {
    demand(text.len() <= N && !text.contains(&0) && is_text(text))?;
    let mut field = [0; N];
    field[..text.len()].copy_from_slice(text);
    Ok(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pad<const N: usize>(text: &[u8]) -> [u8; N] {
        core::array::from_fn(|byte| text.get(byte).copied().unwrap_or(0))
    }

    #[test]
    fn texts_of_metadata_are_checked_and_its_numbers_are_not() {
        let mut metadata = [0; RUN_METADATA_BYTES];
        metadata[344..].fill(0xff);
        assert!(check_metadata(&metadata).is_ok());
        for byte in [63, 343] {
            let mut broken = metadata;
            broken[byte] = b'x'; // after zeros
            assert_eq!(check_metadata(&broken), Err(Refusal::ConfigRefused));
        }
    }

    #[test]
    fn addresses_begin_with_a_slash() {
        let (good, bad) = (pad::<128>(b"/dns/a/tcp/1"), pad::<128>(b"a"));
        assert!(check_bootstrap(&[]).is_ok() && check_bootstrap(&good).is_ok());
        assert!(check_bootstrap(&bad).is_err() && check_bootstrap(&[0; 128]).is_err());
        assert!(check_bootstrap([good, bad].as_flattened()).is_err());
        assert!(check_bootstrap(&pad::<128>(b"/\xff")).is_err());
    }

    #[test]
    fn a_text_is_padded_with_zeros() {
        assert_eq!(pad_text(b"ab"), Ok(*b"ab\0"));
        assert_eq!(pad_text(b"abc"), Ok(*b"abc"));
        assert!(pad_text::<3>(b"abcd").is_err() && pad_text::<3>(b"a\0").is_err() && pad_text::<3>(b"\xff").is_err());
    }

    #[test]
    fn a_version_is_a_text() {
        assert!(check_version(&[0; 96]).is_ok() && check_version(&pad(b"1.0")).is_ok());
        assert!(check_version(&pad(b"\xc3")).is_err());
    }
}
