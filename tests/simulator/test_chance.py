"""B14: nobody who chooses when to speak, or what to report, chooses the seed of the next round."""

from collections import Counter

from psyche.core.seeds import compute_mix, compute_seed
from psyche.simulator.runtime import build_rng

ROUNDS = 10_000
BINS = 16
CRITICAL = 30.58  # chi square with 15 degrees of freedom, p = 0.01


def compute_chi_square(counts: Counter[int]) -> float:
    expected = ROUNDS / BINS
    return sum((counts[one] - expected) ** 2 / expected for one in range(BINS))


def test_the_last_witness_cannot_steer_the_seed_whatever_it_tries() -> None:
    """It sees all other records, and tries eight contents of its own before each close; the entropy comes later."""
    rng = build_rng(14, "entropy")
    seed, counts = bytes(32), Counter[int]()
    for height in range(ROUNDS):
        mix = compute_mix(bytes(32), 0, rng.randbytes(32), rng.randbytes(32))
        tries = [compute_mix(mix, 1, bytes([attempt]) * 32, bytes(32)) for attempt in range(8)]
        guessed = bytes(32)  # the attacker has to guess what it cannot know yet
        wanted = min(tries, key=lambda m: compute_seed(b"u" * 32, 0, height, seed, m, guessed)[0])
        seed = compute_seed(b"u" * 32, 0, height, seed, wanted, rng.randbytes(32))
        counts[seed[0] % BINS] += 1
    assert compute_chi_square(counts) < CRITICAL


def test_who_knew_the_entropy_would_steer_it() -> None:
    """That the test above can fail: with the entropy known beforehand the same attack shows."""
    rng = build_rng(14, "entropy")
    seed, counts = bytes(32), Counter[int]()
    for height in range(ROUNDS):
        entropy, mix = rng.randbytes(32), rng.randbytes(32)
        tries = [compute_mix(mix, 1, bytes([attempt]) * 32, bytes(32)) for attempt in range(8)]
        found = [compute_seed(b"u" * 32, 0, height, seed, one, entropy) for one in tries]
        seed = min(found, key=lambda one: one[0] % BINS)
        counts[seed[0] % BINS] += 1
    assert compute_chi_square(counts) > 10 * CRITICAL
