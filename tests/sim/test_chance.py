"""B14: nobody who chooses when to speak, or what to report, chooses the seed of the next round."""

import hashlib
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

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


@pytest.mark.parametrize("is_known", [False, True], ids=["as it is", "who knew the entropy would"])
def test_the_last_witness_cannot_steer_the_seed_whatever_it_tries(*, is_known: bool) -> None:
    """It sees all other records, and tries eight contents of its own before each close; the entropy comes later.

    With the entropy known beforehand the same attack shows.
    """
    rng = build_rng(14, "entropy")
    seed, counts = bytes(32), Counter[int]()
    for height in range(ROUNDS):
        mix = compute_mix(bytes(32), 0, rng.randbytes(32), rng.randbytes(32))
        tries = [compute_mix(mix, 1, bytes([attempt]) * 32, bytes(32)) for attempt in range(TRIES)]
        entropy = rng.randbytes(32)
        guessed = entropy if is_known else bytes(32)
        find = partial(compute_seed, b"u" * 32, 0, height, seed)
        seed = find(min(tries, key=lambda one: find(one, guessed)[0] % BINS), entropy)
        counts[seed[0] % BINS] += 1
    assert compute_chi_square(counts) > 10 * CRITICAL if is_known else compute_chi_square(counts) < CRITICAL


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


@pytest.mark.parametrize("is_armed", [True, False], ids=["as it is", "from the moment of the tick"])
def test_who_chooses_when_to_tick_does_not_choose_the_seed(*, is_armed: bool) -> None:
    """The slot was fixed when the round began to close, before there was a hash of it."""
    counts = count_seeds_of_a_ticker(lambda state, slot: find_hash(state.current.entropy_slot if is_armed else slot))
    assert compute_chi_square(counts) < CRITICAL if is_armed else compute_chi_square(counts) > 10 * CRITICAL
