//! Calls that need more registers than there are, results of several values, and memory in large pieces.

use core::hint::black_box;

use crate::Pair;

const BYTES: usize = 1_000;

/// Operations 48 to 51.
#[inline(never)]
pub fn run(number: u8, a: u128, b: u128) -> Option<Pair> {
    let (x, y) = (a as u64, b as u64);
    Some(match number {
        48 => (sum_of_seven(x, y, 1, 2, x ^ y, 3, y.wrapping_mul(5)).into(), 0),
        49 => black_box([mix as fn(u128, u128, u64, u64) -> Pair, swap])[y as usize & 1](a, b, x, y),
        50 => move_bytes(x, y),
        51 => (u128::from(is_less(x, y)) | u128::from(is_less(y, x)) << 1, 0),
        _ => return None,
    })
}

#[inline(never)]
fn sum_of_seven(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64) -> u64 {
    [a, b, c, d, e, f, g].iter().enumerate().fold(0, |sum: u64, (at, one)| sum.wrapping_add(one << at))
}

fn mix(a: u128, b: u128, x: u64, y: u64) -> Pair {
    (a ^ u128::from(y), b ^ u128::from(x))
}

fn swap(a: u128, b: u128, x: u64, y: u64) -> Pair {
    (b.wrapping_add(x.into()), a.wrapping_sub(y.into()))
}

/// Fill, copy within, copy out and compare: what becomes system calls for large pieces.
fn move_bytes(x: u64, y: u64) -> Pair {
    let mut bytes = [x as u8; BYTES];
    let (from, len) = (y as usize % 300, x as usize % 600);
    bytes[from..from + 8].copy_from_slice(&y.to_le_bytes());
    bytes.copy_within(from..from + len, 250);
    let mut copy = [0u8; BYTES];
    copy[..len].copy_from_slice(&bytes[..len]);
    let is_same = black_box(&copy)[..] == bytes[..];
    let sum = bytes.iter().fold(0u64, |sum, &one| sum.wrapping_mul(31).wrapping_add(one.into()));
    (sum.into(), is_same.into())
}

/// Bytes compared as text is.
fn is_less(x: u64, y: u64) -> bool {
    let size = 1 + (x ^ y) as usize % 8;
    black_box(x.to_le_bytes())[..size] < black_box(y.to_le_bytes())[..size]
}
