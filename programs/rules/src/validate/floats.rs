//! Numbers as the bits of floats. Of numbers from zero up, the greater one has the greater bits.

/// The bits of 1 as float32.
pub const ONE_F32: u32 = 0x3f80_0000;
/// The bits of 16 as float32.
pub const SIXTEEN_F32: u32 = 0x4180_0000;
const INFINITY_F32: u32 = 0x7f80_0000;
const NEGATIVE_ZERO_F32: u32 = 1 << 31;
const NEGATIVE_ZERO_F64: u64 = 1 << 63;
/// The bits, as float64, of the least number that rounds to infinity as float32: 2^128 - 2^103.
const TOO_LARGE_F64: u64 = 0x47ef_ffff_f000_0000;

/// The bits of a finite float32 that is at least 0, where those of -0 are those of 0; None for any other.
pub fn get_natural_f32(bits: u32) -> Option<u32> {
    match bits {
        NEGATIVE_ZERO_F32 => Some(0),
        _ => (bits < INFINITY_F32).then_some(bits),
    }
}

/// The bits of a float64 that is at least 0 and finite as float32, where those of -0 are those of 0; None for any other.
pub fn get_natural_f64(bits: u64) -> Option<u64> {
    match bits {
        NEGATIVE_ZERO_F64 => Some(0),
        _ => (bits < TOO_LARGE_F64).then_some(bits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn bits_of_float32_say_what_comparisons_do() {
        let mut random = Random::new("float32");
        let edges =
            [0.0, -0.0, 1.0, 16.0, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, -1.0, f32::NEG_INFINITY, f32::NAN];
        let drawn = (0..10_000).map(|_| f32::from_bits(random.word() as u32));
        for number in edges.into_iter().chain(drawn) {
            let natural = get_natural_f32(number.to_bits());
            assert_eq!(natural.is_some(), number.is_finite() && number >= 0.0, "{number}");
            if let Some(bits) = natural {
                assert_eq!(f32::from_bits(bits), number);
                assert_eq!(bits < ONE_F32, number < 1.0);
                assert_eq!(bits <= SIXTEEN_F32, number <= 16.0);
            }
        }
    }

    #[test]
    fn bits_of_float64_say_what_comparisons_do() {
        let mut random = Random::new("float64");
        let last = f64::from_bits(TOO_LARGE_F64 - 1);
        let edges = [0.0, -0.0, 1.0, f64::from(f32::MAX), last, f64::from_bits(TOO_LARGE_F64), f64::MAX, f64::NAN];
        let drawn = (0..10_000).map(|_| f64::from_bits(random.word()));
        for number in edges.into_iter().flat_map(|edge| [edge, -edge]).chain(drawn) {
            let natural = get_natural_f64(number.to_bits());
            assert_eq!(natural.is_some(), (number as f32).is_finite() && number >= 0.0, "{number}");
            assert!(natural.is_none_or(|bits| f64::from_bits(bits) == number));
        }
    }
}
