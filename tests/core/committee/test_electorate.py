"""E1: who leaves, or shows up, once the entropy is public changes nobody's chance to be drawn.

An attacker that holds a third of the members sees the hash of the armed slot, tries its leavers, and lets those leave
that would bring most of its own members into the next draw.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache

import pytest
from kits.runs import Run, build_run
from model_checker.forms import build_copy

from psyche.core.committee.elections import get_witnesses
from psyche.core.rules.rounds import find_entropy
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import Tick
from psyche.core.state.state import ClientState, Round, RunState
from psyche.testing.builders import build_hash

WITNESSES = 16
LEAVERS = (0, 1, 2, 4, 8, 12)
CLOSE, START = "the close of a round", "the end of Warmup"


def count_held_back(members: int) -> int:
    return max(1, members // 16)


@cache
def build_armed(members: int, place: str) -> Run:
    """A run whose next seed is armed; at the end of Warmup some hostile members hold their Ready back."""
    run = build_run(members, witness_nodes=WITNESSES, entropy_delay=4, verification_percent=25, rounds_per_epoch=9,
                    global_batch_size_start=1_000, global_batch_size_end=1_000, min_clients=2)  # fmt: skip
    if place == CLOSE:
        run.warm_up()
        run.settle()
        assert run.state.run_state is RunState.ROUND_TRAIN
        run.now += run.state.config.max_round_train_time
    else:
        run.form()
        run.show(*range(members - count_held_back(members)))
        run.now += run.state.config.warmup_time
    assert run.tick(None)
    run.now += 1_000
    return run


class Attack:
    """One draw, with the hostile members of its own; `count` says how many of them a round has drawn."""

    def __init__(self, members: int, place: str, seed: int, count: Callable[[Round, set[int]], int]) -> None:
        self.rng = random.Random(f"electorate {members} {place} {seed}")
        self.armed = build_armed(members, place)
        able = members - count_held_back(members) if place == START else members  # the others hold their Ready back
        self.hostile = set(self.rng.sample(range(able), members // 3 - (members - able)) if place == START else
                           self.rng.sample(range(members), members // 3)) | set(range(able, members))  # fmt: skip
        slot = self.armed.state.current.entropy_slot
        self.entropy = find_entropy(self.armed.state, [(slot, build_hash(members, place, seed))])
        self._count = count

    def play(self, leavers: set[int]) -> tuple[Round, int]:
        """The round that begins if these leave, and all that held back show their weights; who of ours it has drawn."""
        run = Run(build_copy(self.armed.state), now=self.armed.now)
        for member in sorted(leavers):
            run.withdraw(member)
        if run.state.run_state is RunState.WARMUP:
            for member in self.hostile - leavers:
                with suppress(CoordinatorError):
                    run.show(member)
        while run.state.run_state in (RunState.WARMUP, RunState.ROUND_WITNESS):
            run.apply(Tick(self.entropy))
        there = {m for m in self.hostile if run.state.clients[m].state is ClientState.HEALTHY}
        return run.state.current, self._count(run.state.current, there)

    def iter_choices(self) -> Iterator[set[int]]:
        for count in LEAVERS:
            if count < len(self.hostile):
                yield set(self.rng.sample(sorted(self.hostile), count))


def count_witnesses(round_: Round, mine: set[int]) -> int:
    return len(mine & {*get_witnesses(round_)})


@pytest.mark.parametrize("place", [CLOSE, START])
def test_whoever_leaves_or_shows_up_the_draw_is_the_same(place: str) -> None:
    for seed in range(20):
        attack = Attack(64, place, seed, count_witnesses)
        rounds = [attack.play(leavers)[0] for leavers in attack.iter_choices()]
        assert len({(r.seed, r.members, r.electors, r.quorum, *get_witnesses(r)) for r in rounds}) == 1
