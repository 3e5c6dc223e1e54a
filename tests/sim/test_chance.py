"""B14: nobody who chooses when to speak, or what to report, chooses the seed of the next round."""

import hashlib
from collections import Counter
from collections.abc import Callable

from psyche.core.committee.seeds import compute_mix, compute_seed
from psyche.core.rules.rounds import Draw, process_arming, process_next_round
from psyche.core.state.state import Client, Config, Coordinator, Round, RunState
from psyche.sim.runtime import build_rng

ROUNDS = 10_000
BINS = 16
CRITICAL = 30.58  # chi square with 15 degrees of freedom, p = 0.01
TRIES = 8


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


def find_hash(slot: int) -> bytes:
    """The hash of the first slot from this one on that has a block: three of four have one."""
    while (found := hashlib.sha256(slot.to_bytes(8, "little")).digest())[0] < 64:
        slot += 1
    return found


def count_seeds_of_a_ticker(get_entropy: Callable[[Coordinator, int], bytes]) -> Counter[int]:
    """It alone ticks, sees every hash there is, and waits up to eight slots for the one that pleases it."""
    state = Coordinator(run_uid=b"u" * 32, clients=[Client()], rounds=[Round(members=1), Round(), Round(), Round()])
    state.config = Config(entropy_delay=4, witness_nodes=1, global_batch_size_start=1, global_batch_size_end=1)
    slot, counts = 1_000, Counter[int]()
    for _ in range(ROUNDS):
        process_arming(state, slot)
        state.run_state, last = RunState.ROUND_WITNESS, state.current
        due = range(last.entropy_slot, last.entropy_slot + TRIES)
        seeds = {
            at: compute_seed(state.run_uid, 0, last.height + 1, last.seed, last.mix, get_entropy(state, at))
            for at in due
        }
        slot = min(due, key=lambda at: seeds[at][0] % BINS)
        process_next_round(state, slot, get_entropy(state, slot), Draw(1, 1))
        assert state.current.seed == seeds[slot]
        counts[state.current.seed[0] % BINS] += 1
    return counts


def test_who_chooses_when_to_tick_does_not_choose_the_seed() -> None:
    """The slot was fixed when the round began to close, before there was a hash of it."""
    counts = count_seeds_of_a_ticker(lambda state, _slot: find_hash(state.current.entropy_slot))
    assert compute_chi_square(counts) < CRITICAL


def test_who_ticks_would_choose_the_seed_if_it_came_from_the_moment_of_the_tick() -> None:
    counts = count_seeds_of_a_ticker(lambda _state, slot: find_hash(slot))
    assert compute_chi_square(counts) > 10 * CRITICAL
