"""The end of an epoch: stop conditions, drain, Cooldown (P1 to P4, S5, P7, H3)."""

from enum import Enum

from psyche.core.rules.rounds import get_next_data_index
from psyche.core.rules.tally import is_digest_agreed
from psyche.core.rules.timing import is_timed_out, process_state_change
from psyche.core.state.limits import DIGEST_LIMIT_ROUNDS, MAX_EPOCH_ROUNDS, MAX_HEIGHT, U16_MAX, VOID_LIMIT_ROUNDS
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import Coordinator, Mark, RoundFlag, RunState, StopReason
from psyche.core.state.timeline import is_drain, is_last_drain


class Turn(Enum):
    GO_ON = "another round like this one"  # in a drain: the next drain round, or the last one again (P2)
    DRAIN = "the first drain round"
    COOLDOWN = "cooldown"


def compute_turn(state: Coordinator, now: int, *, mass_drop: bool, took_out: bool) -> tuple[Turn, StopReason]:
    """The step after the closing round, and the reason for it (P1, P2).

    `mass_drop` says that H3 applied. `took_out` says that this close removed members, so that the remaining ones
    may still agree among themselves.
    """
    if mass_drop:
        return Turn.COOLDOWN, StopReason.MASS_DROP
    if not get_healthy(state):
        return Turn.COOLDOWN, StopReason.MIN_CLIENTS
    if state.current.height >= MAX_HEIGHT:
        return Turn.COOLDOWN, StopReason.EPOCH_LENGTH
    hopeless = _find_disagreement(state)
    if hopeless and not took_out:
        return Turn.COOLDOWN, hopeless
    if is_drain(state.current):
        done = is_last_drain(state.config, state.epoch, state.current.height) and is_digest_agreed(state)
        return (Turn.COOLDOWN if done else Turn.GO_ON), state.epoch.stop_reason
    reason = hopeless or _find_stop(state, now)
    return (Turn.DRAIN if reason else Turn.GO_ON), reason


def _find_disagreement(state: Coordinator) -> StopReason:
    """The reason to give up agreement: two rounds in a row without a digest, or two void ones and no digest."""
    if state.epoch.digest_streak >= DIGEST_LIMIT_ROUNDS:
        return StopReason.NO_DIGEST  # S5
    if _is_void_again(state) and not is_digest_agreed(state):
        return StopReason.VOID  # P7
    return StopReason.NONE


def _is_void_again(state: Coordinator) -> bool:
    # the round itself must be void: if nothing was due, the streak keeps its old value
    return bool(state.current.flags & RoundFlag.VOID) and state.epoch.void_streak >= VOID_LIMIT_ROUNDS


def _find_stop(state: Coordinator, now: int) -> StopReason:
    """The reason why a round with data is the epoch's last one; NONE if it is not (P1)."""
    config, epoch = state.config, state.epoch
    rounds_done = state.current.height + 1
    if rounds_done >= min(config.rounds_per_epoch or MAX_EPOCH_ROUNDS, MAX_EPOCH_ROUNDS):
        return StopReason.EPOCH_LENGTH
    if config.epoch_time and is_timed_out(now, epoch.start_timestamp, config.epoch_time):
        return StopReason.EPOCH_LENGTH
    if is_run_done(state):
        return StopReason.TOTAL_STEPS
    if state.pending_pause:
        return StopReason.PAUSE
    if get_healthy(state).bit_count() < config.min_clients:
        return StopReason.MIN_CLIENTS
    return StopReason.VOID if _is_void_again(state) else StopReason.NONE


def is_run_done(state: Coordinator) -> bool:
    return state.progress.step >= state.config.total_steps


def is_given_up(state: Coordinator) -> bool:
    """In Cooldown: whether the epoch certified nothing and its work is lost (P3)."""
    return state.certified.step <= state.epoch.start_step


def process_cooldown_start(state: Coordinator, now: int) -> None:
    """Begin Cooldown; a full digest agreed on in the last drain round becomes `certified` (P3)."""
    round_ = state.current
    if is_last_drain(state.config, state.epoch, round_.height) and is_digest_agreed(state):
        state.certified = Mark(
            digest=round_.agreed_digest,
            epoch=state.progress.epoch,
            step=state.progress.step,
            data_index=get_next_data_index(round_),
        )
    process_state_change(state, now, RunState.COOLDOWN)


def process_epoch_end(state: Coordinator, now: int) -> None:
    """End Cooldown: set progress to `certified` (P3), then pause, finish or wait for members (P4).

    If the epoch certified nothing, this rolls progress back. The epoch number rises in any case, because signatures
    name it.
    """
    progress = state.progress
    progress.step, progress.epoch_start_data_index = state.certified.step, state.certified.data_index
    was_last = progress.epoch == U16_MAX  # no epoch number is left for signatures
    progress.epoch = min(progress.epoch + 1, U16_MAX)
    # a cold start is over after an epoch that certified something
    state.epoch.cold_start = state.pending_pause or (state.epoch.cold_start and is_given_up(state))
    pauses, state.pending_pause = state.pending_pause, False
    if was_last:  # after a pause there would be a second epoch with this number
        process_state_change(state, now, RunState.FINISHED)
    elif pauses:
        process_state_change(state, now, RunState.PAUSED)
    elif is_run_done(state):
        process_state_change(state, now, RunState.FINISHED)
    else:
        process_state_change(state, now, RunState.WAITING_FOR_MEMBERS)
