//! Floating point, which programs do by library calls.

use crate::Pair;

/// Operations 32 to 41: on doubles, and the same on the low halves as singles.
#[inline(never)]
pub fn run(number: u8, a: u128, b: u128) -> Option<Pair> {
    let (x, y) = (f64::from_bits(a as u64), f64::from_bits(b as u64));
    let (u, v) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
    Some(match number {
        32 => (bits(x + y), narrow_bits(u + v)),
        33 => (bits(x - y), narrow_bits(u - v)),
        34 => (bits(x * y), narrow_bits(u * v)),
        35 => (bits(x / y), narrow_bits(u / v)),
        36 => (compare(x, y), compare_narrow(u, v)),
        37 => (bits(u.into()), narrow_bits(x as f32)),
        38 => (bits(a as u64 as f64), bits(a as i64 as f64)),
        39 => (narrow_bits(a as u64 as f32), narrow_bits(a as i64 as f32)),
        40 => ((x as u64).into(), (x as i64 as u64).into()),
        41 => ((u as u64).into(), (u as i64 as u64).into()),
        _ => return None,
    })
}

/// All that is not a number is one value: which one is not defined.
fn bits(value: f64) -> u128 {
    if value.is_nan() { f64::NAN } else { value }.to_bits().into()
}

fn narrow_bits(value: f32) -> u128 {
    if value.is_nan() { f32::NAN } else { value }.to_bits().into()
}

fn compare(x: f64, y: f64) -> u128 {
    let answers = [x < y, x <= y, x > y, x >= y, x == y, x != y, !(x < y), !(x >= y)];
    answers.iter().rev().fold(0, |sum, &one| sum << 1 | u128::from(one))
}

fn compare_narrow(x: f32, y: f32) -> u128 {
    let answers = [x < y, x <= y, x > y, x >= y, x == y, x != y, !(x < y), !(x >= y)];
    answers.iter().rev().fold(0, |sum, &one| sum << 1 | u128::from(one))
}
