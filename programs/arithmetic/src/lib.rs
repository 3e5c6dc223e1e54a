//! The operations that the linker of `programs/tools` has to rewrite, as a program: tests compare them with Python's.
//!
//! Data: the number of the operation, a byte, and two numbers of 16 bytes. Return data: two numbers of 16 bytes.
#![cfg_attr(target_os = "solana", no_std)]
// Operations are tested as Rust writes them down, also those that have nicer names.
#![allow(clippy::manual_rotate)]

mod calls;
mod floats;
mod integers;
#[cfg(target_os = "solana")]
mod program;

/// What an operation makes of two numbers.
pub type Pair = (u128, u128);

/// The operation of this number; None where there is none.
pub fn run(number: u8, a: u128, b: u128) -> Option<Pair> {
    integers::run(number, a, b).or_else(|| floats::run(number, a, b)).or_else(|| calls::run(number, a, b))
}
