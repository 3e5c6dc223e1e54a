//! The program around the operations: it has no accounts.

use core::panic::PanicInfo;
use core::slice;

use crate::run;

extern "C" {
    fn sol_set_return_data(bytes: *const u8, len: u64);
    fn abort() -> !;
}

const DATA_BYTES: usize = 33;
const UNREADABLE: u64 = 102;

/// The loader calls this.
///
/// # Safety
/// `input` is the loader's description of accounts and data.
#[no_mangle]
pub unsafe extern "C" fn entrypoint(input: *mut u8) -> u64 {
    let numbers = input.cast::<u64>();
    if *numbers != 0 || *numbers.add(1) != DATA_BYTES as u64 {
        return UNREADABLE;
    }
    let data = slice::from_raw_parts(input.add(16), DATA_BYTES);
    let Some((first, second)) = run(data[0], read(&data[1..]), read(&data[17..])) else {
        return UNREADABLE;
    };
    let mut result = [0; 32];
    result[..16].copy_from_slice(&first.to_le_bytes());
    result[16..].copy_from_slice(&second.to_le_bytes());
    sol_set_return_data(result.as_ptr(), result.len() as u64);
    0
}

fn read(data: &[u8]) -> u128 {
    data.iter().take(16).rev().fold(0, |number, &byte| number << 8 | u128::from(byte))
}

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    // SAFETY: it takes nothing.
    unsafe { abort() }
}
