//! The rules as a program on Solana, without Anchor: how the loader lays out its one account and the data.

use core::panic::PanicInfo;
use core::slice;

use crate::{process, ACCOUNT_BYTES, WRONG_ACCOUNTS};

extern "C" {
    fn sol_log_(text: *const u8, len: u64);
    fn sol_log_64_(first: u64, second: u64, third: u64, fourth: u64, fifth: u64);
    fn abort() -> !;
}

const SUCCESS: u64 = 0;
const NOT_A_DUPLICATE: u8 = 0xff;
// Offsets in the loader's input: the number of accounts, then the account.
const ACCOUNT: usize = 8;
const IS_WRITABLE: usize = ACCOUNT + 2;
const LEN: usize = ACCOUNT + 80;
const BYTES: usize = ACCOUNT + 88;
const ROOM_TO_GROW: usize = 10 * 1024;
const RENT_EPOCH_BYTES: usize = 8;
const DATA_LEN: usize = (BYTES + ACCOUNT_BYTES + ROOM_TO_GROW).next_multiple_of(8) + RENT_EPOCH_BYTES;
const DATA: usize = DATA_LEN + 8;

/// The loader calls this.
///
/// # Safety
/// `input` is the loader's description of accounts and data.
#[no_mangle]
pub unsafe extern "C" fn entrypoint(input: *mut u8) -> u64 {
    if !has_one_account(input) {
        return WRONG_ACCOUNTS.into();
    }
    let account = slice::from_raw_parts_mut(input.add(BYTES), ACCOUNT_BYTES);
    let data = slice::from_raw_parts(input.add(DATA), read_u64(input, DATA_LEN) as usize);
    match process(account, data) {
        Ok(_) => SUCCESS,
        Err(number) => number.into(),
    }
}

unsafe fn has_one_account(input: *mut u8) -> bool {
    read_u64(input, 0) == 1
        && *input.add(ACCOUNT) == NOT_A_DUPLICATE
        && *input.add(IS_WRITABLE) == 1
        && read_u64(input, LEN) == ACCOUNT_BYTES as u64
}

unsafe fn read_u64(input: *mut u8, offset: usize) -> u64 {
    input.add(offset).cast::<u64>().read()
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    // SAFETY: the text is as long as is said, and the numbers are values.
    unsafe {
        if let Some(place) = info.location() {
            sol_log_(place.file().as_ptr(), place.file().len() as u64);
            sol_log_64_(place.line().into(), place.column().into(), 0, 0, 0);
        }
        abort()
    }
}
