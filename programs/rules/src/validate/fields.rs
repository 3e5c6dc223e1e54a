//! The kinds of fields that records of several kinds consist of (`psyche.core.encoding.fields`).
//!
//! Every method takes its field from the front and is None if the bytes hold no valid value.

use crate::hash::Hash;

/// The rest of a record's bytes.
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        if len > self.rest.len() {
            return None;
        }
        let (found, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some(found)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (found, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*found)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// A byte that is 0 or 1.
    pub fn boolean(&mut self) -> Option<bool> {
        read_boolean(u32::from(self.u8()?))
    }

    /// A presence marker of 4 bytes.
    pub fn wide_boolean(&mut self) -> Option<bool> {
        read_boolean(self.u32()?)
    }

    /// A text of at most `size` bytes, padded with zeros.
    pub fn text(&mut self, size: usize) -> Option<&'a [u8]> {
        get_text(self.bytes(size)?)
    }

    /// A text that is all zero if it is absent.
    pub fn optional_text(&mut self, size: usize, is_present: bool) -> Option<Option<&'a [u8]>> {
        if is_present {
            return self.text(size).map(Some);
        }
        self.pad(size).map(|()| None)
    }

    /// A float32's bits; all zero if it is absent.
    pub fn optional_f32(&mut self, is_present: bool) -> Option<Option<u32>> {
        let bits = self.u32()?;
        match is_present {
            true => Some(Some(bits)),
            false => (bits == 0).then_some(None),
        }
    }

    /// A hash that is all zero if it is absent.
    pub fn optional_hash(&mut self, is_present: bool) -> Option<()> {
        match is_present {
            true => self.array().map(|_: Hash| ()),
            false => self.pad(size_of::<Hash>()),
        }
    }

    /// Zero bytes.
    pub fn pad(&mut self, len: usize) -> Option<()> {
        is_zero(self.bytes(len)?).then_some(())
    }

    /// The end of the record's last field; what follows it is zero.
    pub fn end(self) -> Option<()> {
        is_zero(self.rest).then_some(())
    }
}

fn read_boolean(value: u32) -> Option<bool> {
    (value < 2).then_some(value == 1)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// The text in a field of fixed size: UTF-8 without zero bytes, then zeros. None: the field holds none.
pub fn get_text(field: &[u8]) -> Option<&[u8]> {
    let len = field.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let text = &field[..len];
    (!text.contains(&0) && core::str::from_utf8(text).is_ok()).then_some(text)
}

/// Whether a field of fixed size holds a text.
pub fn is_text(field: &[u8]) -> bool {
    get_text(field).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_utf8_and_padded_with_zeros() {
        assert_eq!(get_text(&[0; 4]), Some(&[][..]));
        assert_eq!(get_text(b"ab\0\0"), Some(&b"ab"[..]));
        assert_eq!(get_text(b"abcd"), Some(&b"abcd"[..]));
        assert_eq!(get_text("ü\0".as_bytes()), Some("ü".as_bytes()));
        for bad in [&b"a\0b\0"[..], b"\0a", b"\xc3\0", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xff"] {
            assert!(!is_text(bad), "{bad:?}");
        }
    }

    #[test]
    fn an_absent_value_is_zero() {
        assert_eq!(Fields::new(&[0; 4]).optional_f32(false), Some(None));
        assert_eq!(Fields::new(&[1, 0, 0, 0]).optional_f32(false), None);
        assert_eq!(Fields::new(&[1, 0, 0, 0]).optional_f32(true), Some(Some(1)));
        assert_eq!(Fields::new(b"ab").optional_text(2, false), None);
        assert_eq!(Fields::new(b"ab").optional_text(2, true), Some(Some(&b"ab"[..])));
        assert_eq!(Fields::new(&[0; 2]).optional_text(2, false), Some(None));
        assert!(Fields::new(&[9; 32]).optional_hash(true).is_some());
        assert!(Fields::new(&[9; 32]).optional_hash(false).is_none());
        assert!(Fields::new(&[0; 32]).optional_hash(false).is_some());
    }

    #[test]
    fn booleans_are_0_or_1() {
        assert_eq!([0, 1, 2].map(|value| Fields::new(&[value]).boolean()), [Some(false), Some(true), None]);
        assert_eq!(Fields::new(&[1, 1, 0, 0]).wide_boolean(), None);
        assert_eq!(Fields::new(&[1, 0, 0, 0]).wide_boolean(), Some(true));
    }

    #[test]
    fn nothing_follows_the_last_field() {
        let read = |bytes: &[u8]| {
            let mut fields = Fields::new(bytes);
            fields.u16().and_then(|value| fields.end().map(|()| value))
        };
        assert_eq!(read(&[1, 2, 0, 0]), Some(0x201));
        assert_eq!(read(&[1, 2, 0, 1]), None);
        assert_eq!(read(&[1]), None);
    }
}
