//! Integers: 128 bits, signed division, overflow, shifts, and the narrow types.

use crate::Pair;

/// Operations 0 to 21.
#[inline(never)]
pub fn run(number: u8, a: u128, b: u128) -> Option<Pair> {
    let (x, y) = (a as u64, b as u64);
    Some(match number {
        0..=3 | 12 => wide(number, a, b),
        4..=7 | 15 | 16 => checked(number, x as i64, y as i64),
        8 => (x.rotate_left(y as u32 & 63).into(), (x as u32).rotate_right(y as u32 & 31).into()),
        9 => (u128::from(x.leading_zeros()) << 64 | u128::from(x.trailing_zeros()), x.count_ones().into()),
        10 => (x.swap_bytes().into(), u128::from((x as u32).swap_bytes()) | u128::from((x as u16).swap_bytes()) << 64),
        11 => (x.saturating_mul(y).into(), ((x as i64).saturating_add(y as i64) as u64).into()),
        13 => (((x as i32).wrapping_mul(y as i32) as u32).into(), ((x as i16).wrapping_sub(y as i16) as u16).into()),
        14 => (compare(a, b), (x / y.max(1)).into()),
        17 => ((x as i8 as i64 as u64).into(), ((x as i32 >> (y & 31)) as u32).into()),
        18 => {
            (((x as i64).wrapping_mul(y as i64) >> (y & 63)) as u64 as u128, (x as u32).wrapping_add(y as u32).into())
        }
        19 => ((x % y.max(1)).into(), (x as u32 / (y as u32 | 1)).into()),
        20 => {
            let divisor = nonzero(y as i64);
            ((x as i64).rem_euclid(divisor) as u64 as u128, (x as i64).div_euclid(divisor) as u64 as u128)
        }
        21 => (u128::from(x) * u128::from(y) / (b.max(1) >> 1 | 1), x.isqrt().into()),
        _ => return None,
    })
}

fn wide(number: u8, a: u128, b: u128) -> Pair {
    let shift = b as u32 & 127;
    match number {
        0 => (a.wrapping_mul(b), 0),
        1 => (a / b.max(1), a % b.max(1)),
        2 => (a << shift, a >> shift),
        3 => ((a as i128 >> shift) as u128, 0),
        _ => {
            let (sum, has_overflow) = a.overflowing_add(b);
            (sum, has_overflow.into())
        }
    }
}

fn checked(number: u8, i: i64, j: i64) -> Pair {
    match number {
        4 => join((i as u64).overflowing_mul(j as u64)),
        5 => {
            let (product, has_overflow) = i.overflowing_mul(j);
            join((product as u64, has_overflow))
        }
        6 => ((i / nonzero(j)) as u64 as u128, (i % nonzero(j)) as u64 as u128),
        7 => {
            let (left, right) = (i as i32, nonzero_narrow(j as i32));
            ((left / right) as u32 as u128, (left % right) as u32 as u128)
        }
        15 => {
            let (product, has_overflow) = (i as u32).overflowing_mul(j as u32);
            join((product.into(), has_overflow))
        }
        _ => {
            let (product, has_overflow) = (i as i32).overflowing_mul(j as i32);
            join(((product as u32).into(), has_overflow))
        }
    }
}

fn join((result, has_overflow): (u64, bool)) -> Pair {
    (result.into(), has_overflow.into())
}

fn nonzero(divisor: i64) -> i64 {
    if matches!(divisor, 0 | -1) {
        3
    } else {
        divisor
    }
}

fn nonzero_narrow(divisor: i32) -> i32 {
    if matches!(divisor, 0 | -1) {
        7
    } else {
        divisor
    }
}

fn compare(a: u128, b: u128) -> u128 {
    let (i, j) = (a as i64, b as i64);
    u128::from(a < b)
        | u128::from((a as i128) < b as i128) << 1
        | u128::from(i < j) << 2
        | u128::from((i as i32) < j as i32) << 3
        | u128::from((i as i8) < j as i8) << 4
}
