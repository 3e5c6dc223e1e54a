import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.core.state.bits import BitCounter, compute_bits, get_members, to_bytes32

BITMAPS = st.integers(0, (1 << 256) - 1)


@given(BITMAPS)
def test_members_and_bits_are_inverse(bits: int) -> None:
    members = get_members(bits)
    assert members == sorted(members)
    assert members == [i for i in range(256) if bits >> i & 1]
    assert compute_bits(members) == bits


@given(BITMAPS)
def test_bytes_and_bits_are_inverse(bits: int) -> None:
    assert int.from_bytes(to_bytes32(bits), "little") == bits


def test_bit_i_is_bit_i_mod_8_of_byte_i_div_8() -> None:
    assert to_bytes32(1 << 0 | 1 << 9 | 1 << 255) == b"\x01\x02" + bytes(29) + b"\x80"


@pytest.mark.parametrize("bits", [-1, 1 << 256])
def test_a_bit_beyond_the_last_member_is_our_own_error(bits: int) -> None:
    with pytest.raises(AssertionError):
        to_bytes32(bits)


@given(st.lists(BITMAPS, max_size=20), st.integers(1, 40))
def test_a_counter_knows_who_is_in_so_many_bitmaps(bitmaps: list[int], threshold: int) -> None:
    counter = BitCounter()
    for bits in bitmaps:
        counter.add(bits)
    counts = {m: sum(bits >> m & 1 for bits in bitmaps) for m in range(256)}
    assert counter.get_at_least(threshold) == compute_bits(m for m, count in counts.items() if count >= threshold)
