"""The runs that random events begin in: new ones of every configuration, recorded ones, and odd ones."""

from dataclasses import replace
from random import Random
from typing import Any

from conformance_traces import apply
from kits.runs import build_run

from differential.backends import Backend
from differential.odd_states import draw_mutant, get_moments
from differential.pair import Pair
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.limits import MAX_EPOCH_ROUNDS, MAX_HEIGHT, STORED_ROUNDS, U64_MAX
from psyche.core.state.messages import SetRates
from psyche.core.state.state import ZERO32, Coordinator, Progress, RunState, Slot, SlotState
from psyche.testing.builders import START_UNIX, build_keys, build_model

SMALL = (1, 2, 3, 4, 4, 5, 5, 6, 7, 8, 9)
LARGE = (12, 33, 40)
ODD_SHARE, RECORDED_SHARE, LARGE_SHARE, LATE_SHARE, NEW_SHARE = 0.25, 0.15, 0.06, 0.35, 0.07


def draw_pair(draw: Random, backend: Backend) -> tuple[Pair, int]:
    """A run in both rules, and how many people take part in it."""
    kind = draw.random()
    if kind < ODD_SHARE + RECORDED_SHARE:
        raw, now = draw.choice(get_moments())
        mutant = draw_mutant(draw, raw) if kind < ODD_SHARE else raw
        state = decode_state(mutant or raw)
        if draw.random() < LATE_SHARE:
            raise_heights(state, draw.choice((MAX_HEIGHT, MAX_EPOCH_ROUNDS)) - draw.randint(0, 9))
        return Pair(state, now, backend=backend), min(9, max(2, len(state.registry.slots)))
    people = draw.choice(LARGE if draw.random() < LARGE_SHARE else SMALL)
    state = build_run(0, model=draw_model(draw), **draw_config(draw, people)).state
    prepare(draw, state, people)
    if draw.random() < NEW_SHARE:
        state.run_state = RunState.UNINITIALIZED
        state.config.rounds_per_epoch *= draw.randint(0, 1)
    return Pair(decode_state(encode_state(state)), START_UNIX, backend=backend), people


def draw_config(draw: Random, people: int) -> dict[str, Any]:
    least = draw.randint(1, min(3, people))
    rounds = draw.choice((0, 1, 1, 2, 2, 3, 5))
    ends_by_time = not rounds or draw.random() < 0.2
    return {
        "overlap": draw.random() < 0.6,
        "min_clients": least,
        "init_min_clients": draw.randint(least, max(least, min(people, 4))),
        "witness_nodes": draw.choice((0, 0, 1, 3, 4)),
        "rounds_per_epoch": rounds,
        "epoch_time": draw.choice((90, 140)) if ends_by_time else 0,
        "verification_percent": draw.choice((0, 0, 0, 40, 99)),
        "convict": draw.random() < 0.7,
        "evict_after": draw.choice((1, 1, 2, 3)),
        "late_limit": draw.choice((1, 1, 2, 3)),
        "straggler_percent": draw.choice((0, 100, 150, 400)),
        "entropy_delay": draw.choice((0, 0, 4)),
        "global_batch_size_start": draw.randint(1, 9),
        "global_batch_size_end": draw.randint(9, 40),
        "global_batch_size_warmup_tokens": draw.choice((0, 500, 3_001)),
        "total_steps": draw.choice((4, 5, 9, 1_000)),
        "cooldown_time": draw.choice((5, 30)),
        "min_stake": draw.choice((0, 0, 0, 0, 5)),
        "warmup_time": draw.choice((0, 30, 31, 80)),
        "max_round_train_time": draw.choice((8, 20)),
        "round_witness_time": draw.choice((1, 4)),
        "waiting_for_members_extra_time": draw.choice((1, 2, 9)),
    }


def draw_model(draw: Random) -> Any:
    return build_model(cooldown_sources=draw.choice((0, 0, 1, 2)), max_seq_len=draw.choice((1, 16, 2_048)))


def prepare(draw: Random, state: Coordinator, people: int) -> None:
    """Slots, rates, steps and counts that a run has only after a long time."""
    if draw.random() < 0.1:
        state.registry.next_active = draw.choice((254, 255, 65_530, 65_534))
    if draw.random() < 0.5:
        for number in range(people):
            state.registry.slots.append(draw_slot(draw, state, number))
    if draw.random() < 0.06:  # nearly every slot is taken
        others = [draw_slot(draw, state, number + 100) for number in range(256)]
        if draw.random() < 0.5:  # and nobody has left
            others = [slot for slot in others if slot.state is SlotState.JOINED]
        room = 256 - len(state.registry.slots) - draw.randint(0, 1)
        state.registry.slots += others[:room]
    if draw.random() < 0.5:
        rates = SetRates(draw.choice((0, 1_000, 1 << 62)), draw.choice((0, 3)))
        apply(state, START_UNIX, 0, ZERO32, rates)
    if draw.random() < 0.1:
        state.progress = Progress(draw.choice((65_533, 65_534, 65_535)), draw.choice((1, 3)), draw.choice((0, 77)))


def draw_slot(draw: Random, state: Coordinator, number: int) -> Slot:
    """A slot with a history: proven or not, with strikes and waits, earnings and a stake."""
    signer, p2p = build_keys(number)
    strikes, fruitless = draw.choice((0, 0, 0, 1, 2, 3)), draw.choice((0, 0, 0, 1, 2, 254))
    next_active = state.registry.next_active
    slot = Slot(
        signer=signer,
        p2p=p2p,
        state=SlotState.JOINED,
        strikes=strikes,
        fruitless=fruitless,
        until=min(next_active + draw.randint(0, 3), 65_535) if strikes or fruitless else 0,
        proven=draw.random() < 0.5,
        active=draw.choice((0, next_active)),
        earned=draw.choice((0, 0, 7, U64_MAX - 3)),
        slashed=draw.choice((0, U64_MAX - 2)),
        stake=draw.choice((0, 5, 9)),
    )
    if slot.strikes and draw.random() < 0.1:
        return Slot(
            signer=signer, state=SlotState.LEFT, strikes=strikes, until=slot.until, proven=slot.proven,
            fruitless=slot.fruitless,
        )  # fmt: skip
    return slot


def raise_heights(state: Coordinator, height: int) -> None:
    """Let the running epoch have had so many more rounds; the places in the ring stay."""
    more = (height - state.current.height) // STORED_ROUNDS * STORED_ROUNDS
    if more <= 0 or state.current.height < STORED_ROUNDS or not state.in_round:
        return
    for number, round_ in enumerate(state.rounds):
        state.rounds[number] = replace(round_, height=round_.height + more)
    for client in state.clients:
        client.witness_checked_height += more if client.witness_checked_height else 0
    state.epoch.drain_from_height += more if state.epoch.drain_from_height else 0
    assert state.current.height <= MAX_HEIGHT
    assert state.run_state in (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
