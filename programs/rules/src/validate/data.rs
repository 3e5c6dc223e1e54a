//! Locations of the training data.

use super::fields::Fields;
use crate::limits::*;

const HTTP_BYTES: usize = 260;

/// Whether these bytes are a location from which a run can train.
pub fn is_location(bytes: &[u8]) -> bool {
    read_location(bytes).is_some()
}

fn read_location(bytes: &[u8]) -> Option<()> {
    let mut fields = Fields::new(bytes);
    match fields.u32()? {
        0 => {}                                            // Dummy
        1 => read_needed(&mut fields, STRING_BYTES)?,      // Server
        2 | 4 | 5 => read_needed(&mut fields, URL_BYTES)?, // Local, WeightedHttp, Preprocessed
        3 => read_http(&mut fields)?,
        _ => return None,
    }
    fields.end()
}

fn read_needed(fields: &mut Fields, size: usize) -> Option<()> {
    (!fields.text(size)?.is_empty()).then_some(())
}

fn read_http(fields: &mut Fields) -> Option<()> {
    read_http_location(fields.bytes(HTTP_BYTES)?)?;
    let token_size = fields.u32()?;
    if token_size > 1 {
        return None;
    }
    let is_shuffled = fields.wide_boolean()?;
    fields.optional_hash(is_shuffled)
}

fn read_http_location(bytes: &[u8]) -> Option<()> {
    let mut fields = Fields::new(bytes);
    match fields.u32()? {
        0 => read_needed(&mut fields, URL_BYTES)?, // SingleUrl
        1 => read_numbered_files(&mut fields)?,
        2 => {
            read_needed(&mut fields, STRING_BYTES)?; // Gcp: bucket and folder
            fields.text(URL_BYTES)?;
        }
        _ => return None,
    }
    fields.end()
}

fn read_numbered_files(fields: &mut Fields) -> Option<()> {
    read_needed(fields, STRING_BYTES)?;
    let _start_index = fields.u32()?;
    let num_files = fields.u32()?;
    let _n_left_pad_zeros = fields.u8()?;
    fields.pad(3)?;
    (num_files > 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(at: &[(usize, u8)]) -> bool {
        let mut bytes = [0; 304];
        for &(byte, value) in at {
            bytes[byte] = value;
        }
        is_location(&bytes)
    }

    #[test]
    fn only_dummy_data_needs_no_address() {
        assert!(accepts(&[]));
        for kind in [1, 2, 4, 5] {
            assert!(!accepts(&[(0, kind)]));
            assert!(accepts(&[(0, kind), (4, b'a')]));
        }
        assert!(!accepts(&[(0, 6)]) && !accepts(&[(303, 1)]));
        assert!(!accepts(&[(0, 1), (4, b'a'), (68, 1)]), "a server's address has 64 bytes");
    }

    #[test]
    fn http_data_has_a_url_a_token_size_and_perhaps_a_shuffle() {
        let single = [(0, 3), (8, b'u')];
        assert!(accepts(&single) && !accepts(&single[..1]));
        assert!(accepts(&[single[0], single[1], (264, 1)]) && !accepts(&[single[0], single[1], (264, 2)]));
        assert!(accepts(&[single[0], single[1], (268, 1), (272, 9)]));
        assert!(!accepts(&[single[0], single[1], (272, 9)]), "a seed without its marker");
        assert!(!accepts(&[single[0], single[1], (269, 1)]), "a marker of 256");
        assert!(!accepts(&[single[0], single[1], (200, 1)]), "after the URL");
    }

    #[test]
    fn numbered_files_are_counted() {
        let files = [(0, 3), (4, 1), (8, b'u'), (76, 1)];
        assert!(accepts(&files) && !accepts(&files[..3]));
        assert!(!accepts(&[files[0], files[1], files[2], files[3], (81, 1)]), "a pad");
    }

    #[test]
    fn a_bucket_may_have_a_folder() {
        assert!(accepts(&[(0, 3), (4, 2), (8, b'b')]));
        assert!(accepts(&[(0, 3), (4, 2), (8, b'b'), (72, b'f')]));
        assert!(!accepts(&[(0, 3), (4, 2), (72, b'f')]) && !accepts(&[(0, 3), (4, 3), (8, b'b')]));
    }
}
