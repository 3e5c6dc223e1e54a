"""What `decode_state` lets through, every transition bears: only refusals come out, and what comes out encodes (T2)."""

import random
from collections.abc import Callable
from dataclasses import fields

import pytest
from differential.odd_states import EDGES, draw_mutant, draw_value, get_moments
from kits.runs import Run
from kits.tier import IS_WHOLE, few

from psyche.core.committee.seeds import EXPIRED
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.rules.apply import apply
from psyche.core.state import messages as msg
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Coordinator, Progress, Slot, WitnessFlag
from psyche.testing.builders import build_hash, build_model

SEEDS = few(range(16))
MUTANTS_PER_SEED = 25 if IS_WHOLE else 8
CALLS_PER_MUTANT = 5
LATEST_UNIX = (1 << 64) - 1

Call = Callable[[Coordinator], object]


def draw_now(draw: random.Random, now: int) -> int:
    return draw.choice((now, now + 1, now + 60, now + 10_000, 0, -5, LATEST_UNIX, LATEST_UNIX + 9))


def draw_names(draw: random.Random, state: Coordinator) -> tuple[int, int, int, bytes]:
    """(epoch, height, member, key of that member), each of them sometimes wrong."""
    member = draw.choice((*range(len(state.clients)), -1, 255, 70_000))
    client = state.clients[member] if 0 <= member < len(state.clients) else None
    slots = state.registry.slots
    key = client.p2p if client else draw.choice(slots).signer if slots else ZERO32
    epoch = state.progress.epoch + draw.choice((0, 0, 0, 0, 1, -1))
    height = state.current.height + draw.choice((0, 0, 0, 0, 1, -1))
    return epoch, height, member, draw.choice((key, key, key, key, client.signer if client else b"", b"x" * 32))


def draw_witness(draw: random.Random, state: Coordinator, now: int) -> Call:
    epoch, height, member, key = draw_names(draw, state)
    if 0 <= member < len(state.clients) and state.in_round:
        message = Run(state, now).build_witness(member)
    else:
        flags = WitnessFlag(draw.randrange(8))
        message = WitnessMessage(epoch, height, member, flags, 0, 0, 0, 0, bytes(320), ZERO32, build_hash(1))
    if draw.random() < 0.3:
        name = draw.choice([f.name for f in fields(message) if f.name != "metadata"])
        changed = {f.name: getattr(message, f.name) for f in fields(message)}
        message = WitnessMessage(**(changed | {name: draw_value(draw, changed[name])}))
    return lambda s: apply(s, now, 0, key, message)


def draw_source(draw: random.Random) -> Checkpoint:
    name = draw.choice(("org/model", "", "x" * 200, "a\0b", "\ud800", "folder"))
    return Checkpoint(draw.choice(list(CheckpointKind)), name, draw.choice((None, "", "main", "x" * 99, "\udfff")))


def draw_message(draw: random.Random, state: Coordinator, now: int) -> Call:
    """A message of somebody: plausible, or not at all."""
    epoch, height, member, key = draw_names(draw, state)
    digest = draw.choice((state.certified.digest, build_hash("weights"), ZERO32, b"short"))
    mark, source = draw.choice((epoch, state.certified.epoch)), draw_source(draw)
    signer, until = draw.choice((key, draw.randbytes(32), b"")), draw.choice((0, 1, -1, LATEST_UNIX, LATEST_UNIX + 1))
    return draw.choice(
        [
            lambda s: apply(s, now, 0, signer, msg.Join(draw_key(state, signer), until)),
            lambda s: apply(s, now, 0, key, msg.LeaveRun()),
            lambda s: apply(s, now, 0, key, msg.Withdraw(epoch, member)),
            lambda s: apply(s, now, 0, key, msg.WarmupWitness(epoch, member, digest)),
            lambda s: apply(s, now, 0, key, msg.HealthCheck(epoch, height, member)),
            lambda s: apply(s, now, 0, key, msg.NameCheckpoint(mark, digest, source)),
            lambda s: apply(s, now, 0, ZERO32, msg.ReportEquivocation(epoch, height, member)),
            draw_witness(draw, state, now),
            draw_witness(draw, state, now),
        ]
    )


def draw_key(state: Coordinator, signer: bytes) -> bytes:
    """The p2p key of a signer that has a slot, else one of nobody."""
    return next((slot.p2p for slot in state.registry.slots if slot.signer == signer), build_hash("p2p", signer.hex()))


def draw_call(draw: random.Random, state: Coordinator, now: int) -> Call:
    """A tick, a message, or what the owner or the backend does."""
    now = draw_now(draw, now)
    slot, entropy = draw_now(draw, now), draw.choice((build_hash(draw.random()), build_hash(1), None, EXPIRED))
    gap_s, rate = draw.choice((-1, 0, 30, LATEST_UNIX)), draw.choice((None, 0, 7, -1, LATEST_UNIX, LATEST_UNIX + 1))
    start, text = (draw.choice(EDGES), draw.choice(EDGES)), draw.choice(("", "v", "x" * 97, "a\0", "\ud800"))
    other = build_model(checkpoint=draw_source(draw), cold_start_warmup_steps=draw.choice(EDGES))
    amount = draw.choice((None, None, 1, 0, -1, LATEST_UNIX))

    def send(message: msg.Message) -> Call:
        return lambda s: apply(s, now, 0, ZERO32, message)

    backend: list[Call] = [
        send(msg.Pause()),
        send(msg.Resume()),
        send(msg.Recover(gap_s)),
        send(msg.SetRates(rate, rate)),
        send(msg.ReclaimSlot()),
        lambda s: apply(s, now, 0, ZERO32, msg.Update(s.config, other, s.progress, s.metadata)),
        lambda s: apply(
            s, now, 0, ZERO32, msg.Update(progress=Progress(s.progress.epoch, *start), bootstrap=("/" + text,))
        ),
        send(msg.UpdateClientVersion(text)),
        lambda s: apply(s, now, 0, ZERO32, msg.Collect(((draw.choice(s.registry.slots or [Slot()]).signer, amount),))),
    ]
    kind = draw.random()
    if kind < 0.45:
        return lambda s: apply(s, now, slot, ZERO32, msg.Tick(entropy))
    return draw_message(draw, state, now) if kind < 0.85 else draw.choice(backend)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_decodes_is_borne_by_every_transition(seed: int) -> None:
    draw, accepted, effective = random.Random(seed), 0, 0
    while accepted < MUTANTS_PER_SEED:
        raw, now = draw.choice(get_moments())
        mutant = draw_mutant(draw, raw)
        if mutant is None:
            continue
        accepted += 1
        state, last = decode_state(mutant), mutant
        for _ in range(CALLS_PER_MUTANT):
            call = draw_call(draw, state, now)
            try:
                call(state)
            except CoordinatorError:
                assert encode_state(state) == last, f"seed {seed}: a refusal changed the state"
                continue
            after = encode_state(state)
            effective += after != last
            last = after
            decode_state(after)  # the rules hold after every transition, if they held before
    assert effective > MUTANTS_PER_SEED // 2, "the calls must do something"
