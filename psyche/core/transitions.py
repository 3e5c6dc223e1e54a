"""The state machine: everything that changes the state of a run enters here.

    UNINITIALIZED --resume--> WAITING_FOR_MEMBERS --formed--> WARMUP --ready--> ROUND_TRAIN <---+
           PAUSED --resume------^      ^     ^                   |                   |          |
              ^                        |     +-----given up------+               complete       | next
              |                        |                                             v          |
              +--pause--- COOLDOWN ----+ <--------the epoch is over----------- ROUND_WITNESS ---+
                             |
                             +--all steps done--> FINISHED

Each function changes the state and raises `nonce` by one, or raises one `CoordinatorError` and
leaves every byte as it was (T2). No message ticks by itself (T3): callers tick after a message
until nothing changes. `now` is unix seconds, `slot` the chain's slot (a TCP server passes `now`),
`sender` a 32-byte signer or p2p key whose signature the caller has checked.
"""

from collections.abc import Callable
from typing import Final

from psyche.core.bits import get_members
from psyche.core.checkpoints import process_checkpoint
from psyche.core.checks import check_config
from psyche.core.errors import CannotResume, ConfigRefused, Halted
from psyche.core.formation import process_joins_closed
from psyche.core.health import process_health_check
from psyche.core.limits import HASH_BYTES, RECONNECT_S, U64_MAX
from psyche.core.membership import (
    find_reclaimable,
    process_ejection,
    process_join,
    process_leave,
    process_vacancies,
    process_withdrawal,
)
from psyche.core.messages import WitnessMessage
from psyche.core.phases import (
    process_cooldown,
    process_round_train,
    process_round_witness,
    process_waiting_for_members,
    process_warmup,
)
from psyche.core.readiness import process_ready
from psyche.core.recovery import process_recovered
from psyche.core.roster import get_healthy
from psyche.core.seeds import Entropy
from psyche.core.state import Checkpoint, ClientState, Coordinator, RunState, Slot
from psyche.core.stopping import is_run_done
from psyche.core.timing import process_state_change
from psyche.core.witnessing import process_witness

PhaseHandler = Callable[[Coordinator, int, int, Entropy], bool]

PHASES: Final[dict[RunState, PhaseHandler]] = {
    RunState.WAITING_FOR_MEMBERS: process_waiting_for_members,  # -> WARMUP
    RunState.WARMUP: process_warmup,  # -> ROUND_TRAIN, WAITING_FOR_MEMBERS
    RunState.ROUND_TRAIN: process_round_train,  # -> ROUND_WITNESS
    RunState.ROUND_WITNESS: process_round_witness,  # -> ROUND_TRAIN, COOLDOWN
    RunState.COOLDOWN: process_cooldown,  # -> WAITING_FOR_MEMBERS, PAUSED, FINISHED
}


def tick(state: Coordinator, now: int, slot: int, entropy: Entropy) -> bool:
    """Do what time or the record demands; true iff a byte changed (T2).

    `entropy` is None while the armed slot has no hash yet, EXPIRED when it can no longer be had,
    else its 32 bytes (E6). One call does one thing: call again until it returns False.

    Raises:
        Halted: nothing moves until the owner resumes.
    """
    assert not isinstance(entropy, bytes) or len(entropy) == HASH_BYTES, "entropy is a hash"
    handler = PHASES.get(state.run_state)
    if handler is None:
        raise Halted(f"the run is {state.run_state.name}")
    changed = handler(state, now, slot, entropy)
    state.nonce += changed
    return changed


def join(state: Coordinator, now: int, signer: bytes, p2p: bytes, stake: int = 0, *, expires_unix: int = 0) -> int:
    """Ask for a place in the next formation; the slot's number. A repeat changes nothing (M1 to M3, M5).

    Raises:
        Halted, InvalidJoin, Banned, StakeTooLow, ClientsFull.
    """
    wanted = Slot(signer=signer, p2p=p2p, stake=stake, expires_unix=expires_unix)
    number, changed = process_join(state, now, wanted)
    state.nonce += changed
    return number


def leave(state: Coordinator, now: int, signer: bytes) -> None:
    """Give up the slot; a member of the running epoch withdraws with it (M4).

    Raises:
        UnknownMember, Banned, InvalidWithdraw.
    """
    process_leave(state, now, signer)
    state.nonce += 1


def withdraw(state: Coordinator, now: int, sender: bytes, epoch: int, member: int) -> None:
    """Leave the running epoch; in WaitingForMembers take the join back (M4, `member` is not read there).

    Raises:
        Halted, WrongRound, UnknownMember, InvalidWithdraw.
    """
    process_withdrawal(state, now, sender, epoch, member)
    state.nonce += 1


def warmup_witness(state: Coordinator, now: int, sender: bytes, epoch: int, member: int, digest: bytes) -> None:
    """Say which weights are loaded: ready (S8).

    Raises:
        Halted, WrongRound, InvalidRunState, UnknownMember, InvalidWitness, DuplicateWitness,
        DigestMismatch, TooManyCandidates.
    """
    process_ready(state, now, sender, epoch, member, digest)
    state.nonce += 1


def witness(state: Coordinator, now: int, sender: bytes, message: WitnessMessage) -> None:
    """Put a witness's report on record (W4, W5).

    Raises:
        Halted, InvalidRunState, WrongRound, UnknownMember, InvalidWitness, DuplicateWitness,
        WitnessesFull, InvalidBloom.
    """
    process_witness(state, now, sender, message)
    state.nonce += 1


def health_check(state: Coordinator, now: int, sender: bytes, epoch: int, height: int, member: int) -> None:  # noqa: ARG001
    """Accuse a silent witness of the round before `height`, the running one (H4).

    Raises:
        Halted, InvalidRunState, WrongRound, UnknownMember, NoActiveRound, InvalidHealthCheck.
    """
    process_health_check(state, sender, epoch, height, member)
    state.nonce += 1


def checkpoint(state: Coordinator, now: int, sender: bytes, epoch: int, digest: bytes, source: Checkpoint) -> None:  # noqa: ARG001
    """Name a lasting source of the certified weights; `epoch` is the one that certified them (S10).

    Raises:
        Halted, WrongRound, InvalidRunState, UnknownMember, DigestMismatch, InvalidCheckpoint.
    """
    process_checkpoint(state, sender, epoch, digest, source)
    state.nonce += 1


def report_equivocation(state: Coordinator, now: int, epoch: int, height: int, member: int) -> None:  # noqa: ARG001
    """Eject a member that signed two results for one round; the caller has checked both signatures (R7).

    Raises:
        Halted, WrongRound, NoActiveRound, UnknownMember, InvalidEvidence.
    """
    process_ejection(state, epoch, height, member)
    state.nonce += 1


def pause(state: Coordinator, now: int) -> None:
    """Pause: at once before the first round, else after the epoch's drain and Cooldown (P4). A repeat changes nothing.

    Raises:
        Halted: there is nothing to pause.
    """
    if state.halted:
        raise Halted(f"the run is {state.run_state.name} already")
    if state.in_round or state.run_state is RunState.COOLDOWN:
        state.nonce += not state.pending_pause
        state.pending_pause = True
        return
    if state.run_state is RunState.WARMUP:
        for member in get_members(get_healthy(state)):
            state.clients[member].state = ClientState.WITHDRAWN
        process_vacancies(state)
    state.epoch.cold_start = True
    process_state_change(state, now, RunState.PAUSED)
    state.nonce += 1


def resume(state: Coordinator, now: int) -> None:
    """Go on; everybody joins again. The first resume starts a run (P4).

    Raises:
        CannotResume: the run is neither paused nor new.
        ConfigRefused: its configuration breaks a rule.
    """
    if state.run_state not in (RunState.PAUSED, RunState.UNINITIALIZED):
        raise CannotResume(f"the run is {state.run_state.name}; only a paused one can be resumed")
    check_config(state.config, state.model)
    process_joins_closed(state)  # M3
    process_state_change(state, now, RunState.FINISHED if is_run_done(state) else RunState.WAITING_FOR_MEMBERS)
    state.nonce += 1


def process_recovery(state: Coordinator, now: int, gap_s: int, reconnect_s: int = RECONNECT_S) -> None:
    """The home was away for `gap_s` seconds: move the run's clocks (K2)."""
    state.nonce += process_recovered(state, now, gap_s, reconnect_s)


def process_rates(state: Coordinator, earning: int | None = None, slashing: int | None = None) -> None:
    """Set what the coming epochs pay and slash; None leaves a rate as it is (M7).

    Raises:
        ConfigRefused: a rate does not fit 64 bits.
    """
    registry = state.registry
    rates = (
        registry.future_earning_rate if earning is None else earning,
        registry.future_slashing_rate if slashing is None else slashing,
    )
    if not all(0 <= rate <= U64_MAX for rate in rates):
        raise ConfigRefused(f"rates must be 0 to {U64_MAX} (M7)")
    state.nonce += rates != (registry.future_earning_rate, registry.future_slashing_rate)
    registry.future_earning_rate, registry.future_slashing_rate = rates


def reclaim_slot(state: Coordinator, now: int) -> bool:  # noqa: ARG001
    """Free the slot that has been idle longest, for a whole epoch at least; whether there was one (M4)."""
    number = find_reclaimable(state)
    if number is None:
        return False
    state.registry.slots[number] = Slot()
    state.nonce += 1
    return True
