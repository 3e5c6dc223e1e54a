from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from psyche.core.committee.bloom import compute_bloom, compute_positions, get_bit_count, is_in_bloom
from psyche.core.state.limits import BLOOM_BIT_CAP

SEED = bytes(range(32))
HASHES = st.binary(min_size=32, max_size=32)


def item(i: int) -> bytes:
    return sha256(i.to_bytes(4, "little")).digest()


def test_positions_follow_the_formula_of_w3() -> None:
    h = sha256(b"psyche/bloom/1" + SEED + (300).to_bytes(2, "little") + bytes(32)).digest()
    expected = tuple((int.from_bytes(h[4 * j : 4 * j + 4], "little") * 2560) >> 32 for j in range(7))
    assert compute_positions(SEED, 300, bytes(32)) == expected
    assert expected == (1047, 2220, 1135, 173, 2034, 1829, 665)


def test_bits_lie_where_the_layout_says() -> None:
    bloom = compute_bloom(SEED, 300, [bytes(32)])
    set_bits = [p for p in range(2560) if bloom[p // 8] >> p % 8 & 1]
    assert set_bits == sorted(set(compute_positions(SEED, 300, bytes(32))))
    assert get_bit_count(bloom) == len(set_bits)


@given(st.lists(HASHES, max_size=30), st.integers(0, 255), HASHES)
def test_what_was_put_in_is_always_found(commitments: list[bytes], witness: int, seed: bytes) -> None:
    bloom = compute_bloom(seed, witness, commitments)
    assert len(bloom) == 320
    assert all(is_in_bloom(bloom, seed, witness, c) for c in commitments)
    assert get_bit_count(bloom) <= 7 * len(commitments)


def test_an_empty_filter_holds_nothing() -> None:
    assert compute_bloom(SEED, 1, []) == bytes(320)
    assert not is_in_bloom(bytes(320), SEED, 1, item(0))


def test_keys_differ_per_witness_and_seed() -> None:
    blooms = {compute_bloom(seed, witness, [item(0)]) for seed in (SEED, bytes(32)) for witness in (0, 1, 2)}
    assert len(blooms) == 6


def test_a_full_filter_stays_below_the_cap_and_rarely_errs() -> None:
    n = 256
    bloom = compute_bloom(SEED, 4, [item(i) for i in range(n)])
    false = sum(is_in_bloom(bloom, SEED, 4, item(n + i)) for i in range(4000))
    assert get_bit_count(bloom) <= BLOOM_BIT_CAP
    assert false / 4000 < 0.014  # 0.8 % expected
