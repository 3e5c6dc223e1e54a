//! The rules as a library that Python loads.

use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::{process, ACCOUNT_BYTES};

const UNCHANGED: u32 = 0;
const CHANGED: u32 = 1;
/// The rules panicked, which they never do.
const PANICKED: u32 = 101;

/// Apply one event to an account: 0 nothing has changed, 1 something has, else the number of the error.
///
/// # Safety
/// `account` points to the bytes of an account, aligned to 8, and `data` to `len` bytes; nobody else uses them meanwhile.
#[no_mangle]
pub unsafe extern "C" fn psyche_apply(account: *mut u8, data: *const u8, len: usize) -> u32 {
    let (account, data) =
        (std::slice::from_raw_parts_mut(account, ACCOUNT_BYTES), std::slice::from_raw_parts(data, len));
    match catch_unwind(AssertUnwindSafe(|| process(account, data))) {
        Ok(Ok(false)) => UNCHANGED,
        Ok(Ok(true)) => CHANGED,
        Ok(Err(number)) => number,
        Err(_) => PANICKED,
    }
}
