"""The operations that the linker of programs rewrites give what Python's integers and numpy's floats give."""

import math
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata

BUILT = Path(__file__).parents[3] / "programs" / "built"
FORMATS = ["psyche_arithmetic.so", "v3/psyche_arithmetic.so"]
CASES = 60  # of each operation
EDGES = [0, 1, 2, *(bound + more for bits in (31, 32, 63, 64, 127) for bound in [1 << bits] for more in (-1, 0)), -1]
SPECIAL_FLOATS = [0.0, -0.0, 1.5, -2.75, 1e300, -1e-300, 5e-324, math.inf, -math.inf, math.nan, 2.0**63, 2.0**64]
Numbers = tuple[int, int]
PIECE = 1_000


def mask(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def sign(value: int, bits: int) -> int:
    value = mask(value, bits)
    return value - (1 << bits) if value >> (bits - 1) else value


def divide(a: int, b: int) -> Numbers:
    """Quotient and remainder, rounded towards zero."""
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient, a - quotient * b


def fits(value: int, bits: int) -> bool:
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def nonzero(value: int, instead: int) -> int:
    return instead if value in (0, -1) else value


def rotate(value: int, by: int, bits: int) -> int:
    return mask(value << by | value >> (bits - by), bits)


def swap(value: int, size: int) -> int:
    return int.from_bytes(mask(value, 8 * size).to_bytes(size, "little"), "big")


def compare_integers(a: int, b: int) -> int:
    widths = [(a, b), *((sign(a, bits), sign(b, bits)) for bits in (128, 64, 32, 8))]
    return sum((left < right) << bit for bit, (left, right) in enumerate(widths))


def operate_on_integers(number: int, a: int, b: int) -> Numbers:
    x, y = mask(a, 64), mask(b, 64)
    i, j, p, q = sign(x, 64), sign(y, 64), sign(x, 32), sign(y, 32)
    divisor, shift = nonzero(j, 3), b & 127
    signed, unsigned_narrow, signed_narrow = i * j, mask(x, 32) * mask(y, 32), p * q
    results: dict[int, Callable[[], Numbers]] = {
        0: lambda: (a * b, 0),
        1: lambda: divmod(a, b or 1),
        2: lambda: (a << shift, a >> shift),
        3: lambda: (sign(a, 128) >> shift, 0),
        4: lambda: (mask(x * y, 64), x * y >= 1 << 64),
        5: lambda: (mask(signed, 64), not fits(signed, 64)),
        6: lambda: (mask(divide(i, divisor)[0], 64), mask(divide(i, divisor)[1], 64)),
        7: lambda: (mask(divide(p, nonzero(q, 7))[0], 32), mask(divide(p, nonzero(q, 7))[1], 32)),
        8: lambda: (rotate(x, y & 63, 64), rotate(mask(x, 32), (32 - (y & 31)) % 32, 32)),
        9: lambda: (64 - x.bit_length() << 64 | (64 if x == 0 else (x & -x).bit_length() - 1), x.bit_count()),
        10: lambda: (swap(x, 8), swap(x, 4) | swap(x, 2) << 64),
        11: lambda: (min(x * y, mask(-1, 64)), mask(max(-(1 << 63), min((1 << 63) - 1, i + j)), 64)),
        12: lambda: (a + b, a + b >= 1 << 128),
        13: lambda: (mask(x * y, 32), mask(x - y, 16)),
        14: lambda: (compare_integers(a, b), x // (y or 1)),
        15: lambda: (mask(unsigned_narrow, 32), unsigned_narrow >= 1 << 32),
        16: lambda: (mask(signed_narrow, 32), not fits(signed_narrow, 32)),
        17: lambda: (mask(sign(x, 8), 64), mask(p >> (y & 31), 32)),
        18: lambda: (mask(sign(signed, 64) >> (y & 63), 64), mask(x + y, 32)),
        19: lambda: (x % (y or 1), mask(x, 32) // (mask(y, 32) | 1)),
        20: lambda: (i % abs(divisor), mask((i - i % abs(divisor)) // divisor, 64)),
        21: lambda: (x * y // ((b or 1) >> 1 | 1), math.isqrt(x)),
    }
    return results[number]()


def get_bits(value: np.floating) -> int:
    """All that is not a number is one value."""
    if np.isnan(value):
        return 0x7FC00000 if isinstance(value, np.float32) else 0x7FF8 << 48
    return int.from_bytes(value.tobytes(), "little")


def compare_floats(x: np.floating, y: np.floating) -> int:
    answers = [x < y, x <= y, x > y, x >= y, x == y, x != y, not x < y, not x >= y]
    return sum(bool(one) << bit for bit, one in enumerate(answers))


def saturate(value: np.floating, low: int, high: int) -> int:
    if np.isnan(value):
        return 0
    if np.isinf(value):
        return mask(high if value > 0 else low, 64)
    return mask(max(low, min(high, int(value))), 64)


def operate_on_floats(number: int, a: int, b: int) -> Numbers:
    x, y = (np.float64(struct.unpack("<d", mask(one, 64).to_bytes(8, "little"))[0]) for one in (a, b))
    u, v = (np.frombuffer(mask(one, 32).to_bytes(4, "little"), "<f4")[0] for one in (a, b))
    whole, signed = mask(a, 64), sign(a, 64)
    unsigned_range, signed_range = (0, (1 << 64) - 1), (-(1 << 63), (1 << 63) - 1)
    results: dict[int, Callable[[], Numbers]] = {
        32: lambda: (get_bits(x + y), get_bits(u + v)),
        33: lambda: (get_bits(x - y), get_bits(u - v)),
        34: lambda: (get_bits(x * y), get_bits(u * v)),
        35: lambda: (get_bits(x / y), get_bits(u / v)),
        36: lambda: (compare_floats(x, y), compare_floats(u, v)),
        37: lambda: (get_bits(np.float64(u)), get_bits(x.astype(np.float32))),
        38: lambda: (get_bits(np.uint64(whole).astype(np.float64)), get_bits(np.int64(signed).astype(np.float64))),
        39: lambda: (get_bits(np.uint64(whole).astype(np.float32)), get_bits(np.int64(signed).astype(np.float32))),
        40: lambda: (saturate(x, *unsigned_range), saturate(x, *signed_range)),
        41: lambda: (saturate(u, *unsigned_range), saturate(u, *signed_range)),
    }
    with np.errstate(all="ignore"):
        return results[number]()


def move_bytes(x: int, y: int) -> Numbers:
    piece = bytearray([mask(x, 8)]) * PIECE
    start, size = y % 300, x % 600
    piece[start : start + 8] = y.to_bytes(8, "little")
    piece[250 : 250 + size] = piece[start : start + size]
    same = piece[:size] + bytes(PIECE - size) == piece
    total = 0
    for byte in piece:
        total = mask(total * 31 + byte, 64)
    return total, same


def operate_by_calls(number: int, a: int, b: int) -> Numbers:
    x, y = mask(a, 64), mask(b, 64)
    if number == 48:
        seven = [x, y, 1, 2, x ^ y, 3, mask(y * 5, 64)]
        return mask(sum(mask(one << at, 64) for at, one in enumerate(seven)), 64), 0
    if number == 49:
        return (b + x, a - y) if y & 1 else (a ^ y, b ^ x)
    if number == 50:
        return move_bytes(x, y)
    size = 1 + (x ^ y) % 8
    left, right = x.to_bytes(8, "little")[:size], y.to_bytes(8, "little")[:size]
    return (left < right) | (right < left) << 1, 0


OPERATIONS = {
    **dict.fromkeys(range(22), operate_on_integers),
    **dict.fromkeys(range(32, 42), operate_on_floats),
    **dict.fromkeys(range(48, 52), operate_by_calls),
}


class Machine:
    def __init__(self, file: str) -> None:
        self.svm = LiteSVM().with_sigverify(False).with_blockhash_check(False)
        self.program, self.payer = Pubkey.new_unique(), Keypair()
        self.svm.add_program(self.program, (BUILT / file).read_bytes())
        self.svm.airdrop(self.payer.pubkey(), 10**12)

    def run(self, number: int, a: int, b: int) -> Numbers:
        data = bytes([number]) + a.to_bytes(16, "little") + b.to_bytes(16, "little")
        message = Message([Instruction(self.program, data, [])], self.payer.pubkey())
        result = self.svm.send_transaction(Transaction([self.payer], message, self.svm.latest_blockhash()))
        assert not isinstance(result, FailedTransactionMetadata), f"operation {number} of {a:#x}, {b:#x}: {result}"
        returned = bytes(result.return_data().data).ljust(32, b"\0")  # zeros at the end are left out
        return int.from_bytes(returned[:16], "little"), int.from_bytes(returned[16:], "little")


def draw_integer(rng: random.Random) -> int:
    match rng.randrange(4):
        case 0:
            return mask(rng.choice(EDGES), 128)
        case 1:
            return mask(-rng.getrandbits(rng.randrange(1, 64)), 128)
        case _:
            return rng.getrandbits(rng.randrange(1, 129))


def draw_float(rng: random.Random) -> int:
    if rng.random() < 0.5:
        return draw_integer(rng)
    value = rng.choice([*SPECIAL_FLOATS, rng.uniform(-10, 10), rng.uniform(-1e19, 1e19)])
    if rng.random() < 0.5:
        with np.errstate(all="ignore"):
            return int.from_bytes(np.float32(value).tobytes(), "little")
    return int.from_bytes(struct.pack("<d", value), "little")


@pytest.mark.parametrize("file", FORMATS)
@pytest.mark.parametrize("number", sorted(OPERATIONS))
def test_an_operation_gives_what_python_gives(number: int, file: str) -> None:
    machine, rng = Machine(file), random.Random(number)
    draw = draw_float if OPERATIONS[number] is operate_on_floats else draw_integer
    for _ in range(CASES):
        a, b = draw(rng), draw(rng)
        expected = tuple(mask(int(one), 128) for one in OPERATIONS[number](number, a, b))
        assert machine.run(number, a, b) == expected, f"operation {number} of {a:#x} and {b:#x}"


def test_an_unknown_operation_is_refused() -> None:
    machine = Machine(FORMATS[0])
    with pytest.raises(AssertionError, match="102"):
        machine.run(60, 1, 2)
