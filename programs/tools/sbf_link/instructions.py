"""What a program may consist of: instructions of SBPF, and the system calls of the runtime."""

# Anything else that a program wants to import is an error here, not a failure at run time.
_SYSCALLS = """abort sol_panic_ sol_log_ sol_log_64_ sol_log_compute_units_ sol_log_pubkey sol_log_data
    sol_create_program_address sol_try_find_program_address sol_sha256 sol_keccak256 sol_blake3 sol_secp256k1_recover
    sol_get_clock_sysvar sol_get_epoch_schedule_sysvar sol_get_rent_sysvar sol_get_fees_sysvar
    sol_get_last_restart_slot sol_get_epoch_rewards_sysvar sol_get_sysvar sol_get_epoch_stake
    sol_memcpy_ sol_memmove_ sol_memcmp_ sol_memset_ sol_invoke_signed_c sol_invoke_signed_rust
    sol_set_return_data sol_get_return_data sol_get_stack_height sol_get_processed_sibling_instruction
    sol_curve_validate_point sol_curve_group_op sol_curve_multiscalar_mul sol_curve_pairing_map
    sol_alt_bn128_group_op sol_alt_bn128_compression sol_big_mod_exp sol_poseidon"""
SYSCALLS = frozenset(_SYSCALLS.split())

LDDW, CALL, CALLX = 0x18, 0x85, 0x8D
_ARITHMETIC_64 = "07 0f 17 1f 27 2f 37 3f 47 4f 57 5f 67 6f 77 7f 87 97 9f a7 af b7 bf c7 cf"
_LOADS_AND_STORES = "18 61 69 71 79 62 6a 72 7a 63 6b 73 7b"
_JUMPS = "05 15 1d 25 2d 35 3d 45 4d 55 5d 65 6d 75 7d a5 ad b5 bd c5 cd d5 dd 85 8d 95"
_BYTE_SWAPS = "d4 dc"
# eBPF has more: 32-bit add, sub and mul, which extend the sign on SBPF, and atomics, which do not exist there.
# Code that has them must not be loaded silently.
OPCODES = frozenset(bytes.fromhex(_ARITHMETIC_64 + _LOADS_AND_STORES + _JUMPS + _BYTE_SWAPS))

_MASK = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _mix(word: int) -> int:
    return _rotate(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def get_syscall_number(name: str) -> int:
    """The 32-bit murmur3 hash, seed 0, of a system call's name: how SBPFv3 names it in a call."""
    data = name.encode()
    hashed, whole = 0, len(data) // 4 * 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little")
        hashed = (_rotate(hashed ^ _mix(word), 13) * 5 + 0xE6546B64) & _MASK
    if data[whole:]:
        hashed ^= _mix(int.from_bytes(data[whole:], "little"))
    hashed ^= len(data)
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _MASK
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _MASK
    return hashed ^ hashed >> 16
