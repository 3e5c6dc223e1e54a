//! Sources of weights: the checkpoints of a model (S10).

use super::fields::Fields;
use crate::enums::checkpoint_kind::{DUMMY, EPHEMERAL, GCS, HUB, LOCAL, P2P, P2P_GCS};
use crate::limits::*;

/// A source of weights.
pub struct Source<'a> {
    pub kind: u32,
    pub name: &'a [u8],
}

/// The source in these bytes; None if they hold none.
pub fn read_source(bytes: &[u8; CHECKPOINT_BYTES]) -> Option<Source<'_>> {
    let mut fields = Fields::new(bytes);
    let kind = fields.u32()?;
    let name = match kind {
        EPHEMERAL => &[],
        LOCAL => fields.text(LOCAL_PATH_BYTES)?,
        DUMMY | HUB | P2P | GCS | P2P_GCS => read_hub(&mut fields)?,
        _ => return None,
    };
    fields.end()?;
    Some(Source { kind, name })
}

fn read_hub<'a>(fields: &mut Fields<'a>) -> Option<&'a [u8]> {
    let name = fields.text(STRING_BYTES)?;
    let has_revision = fields.boolean()?;
    fields.optional_text(STRING_BYTES, has_revision)?;
    Some(name)
}

impl Source<'_> {
    /// Whether a run can begin with these weights: peers cannot be the source, for it must outlive them (S10).
    pub fn is_lasting(&self) -> bool {
        match self.kind {
            EPHEMERAL | P2P | P2P_GCS => false,
            DUMMY => true,
            _ => !self.name.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(kind: u8, at: &[(usize, u8)]) -> [u8; CHECKPOINT_BYTES] {
        let mut bytes = [0; CHECKPOINT_BYTES];
        bytes[0] = kind;
        for &(byte, value) in at {
            bytes[byte] = value;
        }
        bytes
    }

    #[test]
    fn kinds_have_their_own_fields_and_zeros_after_them() {
        for kind in 0..=6 {
            assert!(read_source(&build(kind, &[])).is_some());
            assert!(read_source(&build(kind, &[(1, 1)])).is_none(), "kind {kind} + 256");
            let last = [3, 132, 132, 132, 132, 132, 131][kind as usize];
            for byte in last + 1..CHECKPOINT_BYTES {
                assert!(read_source(&build(kind, &[(byte, 1)])).is_none(), "byte {byte} of kind {kind}");
            }
        }
        assert!(read_source(&build(7, &[])).is_none());
    }

    #[test]
    fn a_revision_is_marked() {
        assert!(read_source(&build(2, &[(68, 1), (69, b'r')])).is_some());
        assert!(read_source(&build(2, &[(69, b'r')])).is_none());
        assert!(read_source(&build(2, &[(68, 2)])).is_none());
    }

    #[test]
    fn lasting_sources_have_a_name_and_need_no_peer() {
        let named = |kind| read_source(&build(kind, &[(4, b'n')])).is_some_and(|source| source.is_lasting());
        let nameless = |kind| read_source(&build(kind, &[])).is_some_and(|source| source.is_lasting());
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(named), [false, true, true, false, true, false, true]);
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(nameless), [false, true, false, false, false, false, false]);
    }
}
