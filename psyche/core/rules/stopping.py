"""When an epoch ends, and how (P1 to P4, S5, P7, H3)."""

from enum import Enum

from psyche.core.rules.rounds import get_next_data_index
from psyche.core.rules.tally import is_digest_agreed
from psyche.core.rules.timing import is_timed_out, process_state_change
from psyche.core.state.limits import DIGEST_LIMIT_ROUNDS, MAX_EPOCH_ROUNDS, MAX_HEIGHT, U16_MAX, VOID_LIMIT_ROUNDS
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import Coordinator, Mark, RoundFlag, RunState, StopReason
from psyche.core.state.timeline import is_drain, is_last_drain


class Turn(Enum):
    """What follows the close of a round."""

    GO_ON = "another round like this one"  # in a drain: the next drain round, or the last one again (P2)
    DRAIN = "the first drain round"
    COOLDOWN = "cooldown"


def compute_turn(state: Coordinator, now: int, *, mass_drop: bool, took_out: bool) -> tuple[Turn, StopReason]:
    """What follows the round that is closing, and why (P1, P2).

    `mass_drop`: H3 applied. `took_out`: this close took members out, so that those who are left may
    yet agree among themselves.
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
    """Why no agreement can be had any more: two rounds in a row without digest, or void and without digest."""
    if state.epoch.digest_streak >= DIGEST_LIMIT_ROUNDS:
        return StopReason.NO_DIGEST  # S5
    if _is_void_again(state) and not is_digest_agreed(state):
        return StopReason.VOID  # P7
    return StopReason.NONE


def _is_void_again(state: Coordinator) -> bool:
    # the round itself must be void: where nothing was due the streak only stands still
    return bool(state.current.flags & RoundFlag.VOID) and state.epoch.void_streak >= VOID_LIMIT_ROUNDS


def _find_stop(state: Coordinator, now: int) -> StopReason:
    """Why a round with data is the epoch's last one (P1)."""
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
    """Whether the last step is on record."""
    return state.progress.step >= state.config.total_steps


def is_given_up(state: Coordinator) -> bool:
    """In Cooldown: whether the epoch certified nothing, so that its work is lost (P3)."""
    return state.certified.step <= state.epoch.start_step


def process_cooldown_start(state: Coordinator, now: int) -> None:
    """Cooldown begins; a full agreed digest of the last drain round becomes `certified` (P3)."""
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
    """Cooldown is over: the run stands where `certified` stands (P3), and pauses, ends or goes on (P4).

    Where the epoch certified nothing this takes progress back: a rollback on record. The epoch's
    number rises either way, for signatures name it.
    """
    progress = state.progress
    progress.step, progress.epoch_start_data_index = state.certified.step, state.certified.data_index
    was_last = progress.epoch == U16_MAX  # there is no further number to sign under
    progress.epoch = min(progress.epoch + 1, U16_MAX)
    # a cold start is over when an epoch has come to something
    state.epoch.cold_start = state.pending_pause or (state.epoch.cold_start and is_given_up(state))
    pauses, state.pending_pause = state.pending_pause, False
    if was_last:  # a pause would end in a second epoch of this number
        process_state_change(state, now, RunState.FINISHED)
    elif pauses:
        process_state_change(state, now, RunState.PAUSED)
    elif is_run_done(state):
        process_state_change(state, now, RunState.FINISHED)
    else:
        process_state_change(state, now, RunState.WAITING_FOR_MEMBERS)
