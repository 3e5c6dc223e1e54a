"""The conformance traces on the coordinator program, through its real instructions as far as these can say them.

Time, slot and entropy come from the chain's clock and record of slots, senders are signers whose signatures nobody
checks. What no instruction says is applied by core, and the account laid anew: recovery is for other backends, a report
of equivocation needs true signatures, a collection takes all that one signer has, and a model comes without its
further sources.
"""

import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from kits.tier import few

sys.path.insert(0, str(Path(__file__).parents[2] / "conformance"))

from conformance_traces import TRACES, read_event, read_trace
from programs.chain_kit import RECORDED_SLOTS, ChainStage, build_slot_hashes
from solders.instruction import Instruction

from psyche.core.encoding.account import decode_state
from psyche.core.rules.apply import apply
from psyche.core.state import errors
from psyche.core.state import messages as msg
from psyche.core.state.limits import MAX_CLIENTS
from psyche.core.state.state import ZERO32, Coordinator, SlotState
from psyche.errors import WireError

# What no instruction says, or not in every form.
SOMETIMES_UNSAID = (
    msg.Recover, msg.ReportEquivocation, msg.Collect, msg.ReclaimSlot, msg.Update, msg.Join, msg.NameCheckpoint,
)  # fmt: skip
I64_MAX, U64_MAX = (1 << 63) - 1, (1 << 64) - 1


def build(stage: ChainStage, sender: bytes, message: msg.Message) -> Instruction | None:
    """The instruction that says the message; None if there is none."""
    if not is_sayable(stage.state, sender, message):
        return None
    try:
        return stage.build(sender, message)
    except WireError:  # the bytes of a message cannot hold it
        return None


def is_sayable(state: Coordinator, sender: bytes, message: msg.Message) -> bool:
    match message:
        case msg.Recover() | msg.ReportEquivocation():
            sayable = False
        case msg.Join(p2p, _):
            sayable = ZERO32 not in (sender, p2p)  # no key is zero
        case msg.Collect(claims):
            sayable = len(claims) == 1 and claims[0][1] is None
        case msg.ReclaimSlot():
            sayable = is_full(state)
        case msg.Update():
            sayable = has_own_sources(state, message)
        case _:
            sayable = True
    return sayable


def is_full(state: Coordinator) -> bool:
    slots = state.registry.slots
    return len(slots) == MAX_CLIENTS and not any(s.state in (SlotState.FREE, SlotState.LEFT) for s in slots)


def has_own_sources(state: Coordinator, update: msg.Update) -> bool:
    """Whether the update's further sources of weights are those that the program takes."""
    if update.model is None:
        return True
    keeps = update.model.checkpoint == state.model.checkpoint
    spares = update.model.extra_checkpoints
    return spares == state.model.extra_checkpoints if keeps else not any(spare.kind for spare in spares)


def set_chain(stage: ChainStage, now: int, slot: int, message: msg.Message) -> bool:
    """Let the chain stand where the event happens; False if no chain can."""
    if not -I64_MAX <= now <= I64_MAX:
        return False
    stage.set_clock(now, slot)
    if isinstance(message, msg.Tick):
        armed = stage.state.current.entropy_slot
        if not 0 < armed <= U64_MAX - RECORDED_SLOTS:
            return armed == 0
        stage.bank.svm.set_slot_hashes(build_slot_hashes(armed, message.entropy))
    return True


def apply_by_core(stage: ChainStage, *arguments: Any) -> str | None:
    """Apply what no instruction says and lay the account anew; return the name of the refusal."""
    state = stage.state
    try:
        apply(state, *arguments)
    except errors.CoordinatorError as refusal:
        return refusal.code
    stage.put(state)
    return None


@pytest.mark.parametrize("path", few(sorted(TRACES.glob("*.json")), 13), ids=lambda path: path.stem)
def test_every_event_of_a_trace_gives_the_same_bytes_and_refusal(path: Path) -> None:
    trace = read_trace(path)
    stage = ChainStage(decode_state(trace.start), unsigned=True)
    for number, event in enumerate(trace.events):
        now, slot, sender, message = read_event(event)
        instruction = build(stage, sender, message)
        assert instruction or isinstance(message, SOMETIMES_UNSAID)
        if instruction and set_chain(stage, now, slot, message):
            code = stage.refuse_unsigned(instruction)
            error = None if code is None else errors.REFUSALS[code - 6_000].__name__
        else:
            error = apply_by_core(stage, now, slot, sender, message)
        where = f"{trace.name}, event {number}: {event['event']}"
        assert error == event.get("error"), where
        assert sha256(stage.raw).hexdigest() == event["sha256"], where
