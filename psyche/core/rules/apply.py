"""The state machine: every change to the state of a run goes through this module.

    UNINITIALIZED --resume--> WAITING_FOR_MEMBERS --formed--> WARMUP --ready--> ROUND_TRAIN <---+
           PAUSED --resume------^      ^     ^                   |                   |          |
              ^                        |     +-----given up------+               complete       | next
              |                        |                                             v          |
              +--pause--- COOLDOWN ----+ <--------the epoch is over----------- ROUND_WITNESS ---+
                             |
                             +--all steps done--> FINISHED

A message either changes the state and increments `nonce`, or raises a `CoordinatorError` and changes no byte (T2).
A message never triggers a tick (T3): after a message, callers tick until nothing changes.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from psyche.core.committee.seeds import Entropy
from psyche.core.rules.audits import process_audit, process_judgement
from psyche.core.rules.checkpoints import process_checkpoint
from psyche.core.rules.health import process_health_check
from psyche.core.rules.membership import (
    process_collection,
    process_ejection,
    process_join,
    process_leave,
    process_reclaim,
    process_withdrawal,
)
from psyche.core.rules.owner import process_client_version, process_pause, process_rates, process_resume, process_update
from psyche.core.rules.phases import (
    process_cooldown,
    process_round_train,
    process_round_witness,
    process_waiting_for_members,
    process_warmup,
)
from psyche.core.rules.readiness import process_ready
from psyche.core.rules.repeats import (
    is_accused,
    is_audited,
    is_ejected,
    is_joined,
    is_judged,
    is_named,
    is_warm,
    is_withdrawn,
    is_witnessed,
)
from psyche.core.rules.timing import clamp_time, process_recovery
from psyche.core.rules.witnessing import process_witness
from psyche.core.state import messages as msg
from psyche.core.state.errors import Halted
from psyche.core.state.limits import HASH_BYTES
from psyche.core.state.messages import Context, Message
from psyche.core.state.state import Coordinator, RunState

PhaseHandler = Callable[[Coordinator, int, int, Entropy], bool]

PHASES: Final[dict[RunState, PhaseHandler]] = {
    RunState.WAITING_FOR_MEMBERS: process_waiting_for_members,  # -> WARMUP
    RunState.WARMUP: process_warmup,  # -> ROUND_TRAIN, WAITING_FOR_MEMBERS
    RunState.ROUND_TRAIN: process_round_train,  # -> ROUND_WITNESS
    RunState.ROUND_WITNESS: process_round_witness,  # -> ROUND_TRAIN, COOLDOWN
    RunState.COOLDOWN: process_cooldown,  # -> WAITING_FOR_MEMBERS, PAUSED, FINISHED
}


def process_tick(state: Coordinator, context: Context, message: msg.Tick) -> bool:
    """Make the transition that time or the record requires; return whether a byte changed (T2).

    One call makes at most one transition: tick again until it returns False.

    Raises:
        Halted: the run does not move before the owner resumes it.
    """
    entropy = message.entropy
    assert not isinstance(entropy, bytes) or len(entropy) == HASH_BYTES, "entropy is a hash"
    handler = PHASES.get(state.run_state)
    if handler is None:
        raise Halted(f"the run is {state.run_state.name}")
    return handler(state, context.now, context.slot, entropy)


class Sender(Enum):
    """Who may send a message. The backend (a TCP server or a chain) checks it: only it knows the owner."""

    ANYBODY = "any key that the message's rule accepts"
    ANYBODY_WITH_EVIDENCE = "any key, with evidence that the backend has checked"
    OWNER = "the owner of the run"
    OWNER_OR_JOIN_AUTHORITY = "the owner of the run, or whoever says who may join"
    BACKEND = "the coordinator's backend itself"


class Kind(NamedTuple):
    """One kind of message. `number` is its byte in journals, requests and instructions, and is never reused."""

    number: int
    name: str
    type: type[Any]
    process: Callable[[Coordinator, Context, Any], bool]  # returns whether a byte changed
    sender: Sender
    is_repeat: Callable[[Coordinator, bytes, Any], bool] | None = None  # K3; None: a repeat is a new message


KINDS: Final = (
    Kind(1, "tick", msg.Tick, process_tick, Sender.BACKEND),
    Kind(2, "join", msg.Join, process_join, Sender.ANYBODY, is_joined),
    Kind(3, "leave", msg.LeaveRun, process_leave, Sender.ANYBODY),
    Kind(4, "withdraw", msg.Withdraw, process_withdrawal, Sender.ANYBODY, is_withdrawn),
    Kind(5, "warmup_witness", msg.WarmupWitness, process_ready, Sender.ANYBODY, is_warm),
    Kind(6, "witness", msg.WitnessMessage, process_witness, Sender.ANYBODY, is_witnessed),
    Kind(7, "health_check", msg.HealthCheck, process_health_check, Sender.ANYBODY, is_accused),
    Kind(8, "checkpoint", msg.NameCheckpoint, process_checkpoint, Sender.ANYBODY, is_named),
    Kind(9, "report_equivocation", msg.ReportEquivocation, process_ejection, Sender.ANYBODY_WITH_EVIDENCE, is_ejected),
    Kind(10, "pause", msg.Pause, process_pause, Sender.OWNER),
    Kind(11, "resume", msg.Resume, process_resume, Sender.OWNER),
    Kind(12, "recover", msg.Recover, process_recovery, Sender.BACKEND),
    Kind(13, "reclaim_slot", msg.ReclaimSlot, process_reclaim, Sender.BACKEND),
    Kind(14, "set_rates", msg.SetRates, process_rates, Sender.OWNER),
    Kind(15, "collect", msg.Collect, process_collection, Sender.OWNER),
    Kind(16, "update", msg.Update, process_update, Sender.OWNER),
    Kind(17, "update_client_version", msg.UpdateClientVersion, process_client_version, Sender.OWNER),
    Kind(18, "audit", msg.ReportAudit, process_audit, Sender.ANYBODY, is_audited),
    Kind(19, "judge", msg.JudgeChallenge, process_judgement, Sender.ANYBODY, is_judged),
)
BY_TYPE: Final[dict[type, Kind]] = {kind.type: kind for kind in KINDS}


def apply(state: Coordinator, now: int, slot: int, sender: bytes, message: Message) -> bool:
    """Apply a message; return whether a byte of the state changed (T2). If one did, `nonce` is incremented.

    `now` is in unix seconds, clamped to 64 bits; `slot` is the chain's slot (a TCP server passes `now`); `sender`
    is a 32-byte signer or p2p key whose signature the caller has checked. The caller also checks whether this
    sender may send this kind of message (`Kind.sender`).

    Raises:
        CoordinatorError: the message breaks a rule. No byte has changed.
    """
    changed = BY_TYPE[type(message)].process(state, Context(clamp_time(now), slot, sender), message)
    state.nonce += changed
    return changed


def is_repeat(state: Coordinator, sender: bytes, message: Message) -> bool:
    """Whether a refused message is an exact repeat of one that has already taken effect (K3)."""
    judge = BY_TYPE[type(message)].is_repeat
    return judge is not None and judge(state, sender, message)
