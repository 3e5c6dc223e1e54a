from hashlib import sha256

from psyche.core.committee.seeds import EXPIRED, compute_mix, compute_seed, get_random_seed

UID, PREVIOUS, MIX, ENTROPY = (bytes([i]) * 32 for i in range(1, 5))


def test_the_seed_hashes_run_epoch_height_and_what_was_drawn_e3() -> None:
    preimage = b"psyche/seed/1" + UID + b"\x05\x00" + b"\x07\x00\x01\x00" + PREVIOUS + MIX + ENTROPY
    seed = compute_seed(UID, 5, 0x10007, PREVIOUS, MIX, ENTROPY)
    assert seed == sha256(preimage).digest()
    assert seed.hex() == "13cb33f75a19a8f7d43f13c1a00a322f5c9518e6171ddfe36885427358db3410"


def test_the_random_seed_is_the_first_eight_bytes() -> None:
    assert get_random_seed(bytes(range(1, 33))) == 0x0807060504030201


def test_the_mix_takes_each_record_in_w5() -> None:
    mixed = compute_mix(MIX, 258, UID, PREVIOUS)
    assert mixed == sha256(b"psyche/mix/1" + MIX + b"\x02\x01" + UID + PREVIOUS).digest()
    assert mixed.hex() == "2ad385f43005fd322a303c10f293a0b926e710f8d65af6ecea162dfb39713210"


def test_the_order_of_records_matters() -> None:
    one_two = compute_mix(compute_mix(MIX, 1, UID, UID), 2, UID, UID)
    assert one_two != compute_mix(compute_mix(MIX, 2, UID, UID), 1, UID, UID)


def test_expired_entropy_is_neither_absent_nor_a_hash_e6() -> None:
    assert EXPIRED is not None
    assert not isinstance(EXPIRED, bytes)
