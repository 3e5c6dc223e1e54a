"""Time-outs (T1), the single place where the run state changes, and the clocks after a restart (K2)."""

from psyche.core.state.limits import U64_MAX
from psyche.core.state.messages import Context, Recover
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import Config, Coordinator, RunState


def compute_elapsed(now: int, start: int) -> int:
    """Seconds since `start`; 0 if the clock went backwards (T1)."""
    return max(0, now - start)


def clamp_time(now: int) -> int:
    """Clamp unix seconds to what the record can hold, 0 to 2^64 - 1, so that a broken clock does no harm (T1)."""
    return min(max(now, 0), U64_MAX)


def is_timed_out(now: int, start: int, duration_s: int) -> bool:
    """Whether a time-out of `duration_s` seconds since `start` fires; a duration of 0 still takes one second (T1)."""
    elapsed = compute_elapsed(now, start)
    return elapsed >= duration_s and elapsed > 0


def process_state_change(state: Coordinator, now: int, run_state: RunState) -> None:
    assert run_state is not state.run_state, "a state is never entered from itself"
    state.run_state = run_state
    state.state_start_unix = now


def process_recovery(state: Coordinator, context: Context, message: Recover) -> bool:
    """Shift the run's clocks by the coordinator's downtime; return whether that changed anything (K2).

    The running phase keeps at least `reconnect_s` seconds, so that members can reconnect.
    """
    duration_s = get_duration_s(state.config, state.run_state)
    if duration_s is None:
        return False
    start = state.state_start_unix + max(0, message.gap_s)
    shift = clamp_time(max(start, context.now + message.reconnect_s - duration_s)) - state.state_start_unix
    if not shift:
        return False
    state.state_start_unix += shift
    if is_in_epoch(state):
        epoch = state.epoch
        epoch.start_timestamp = clamp_time(epoch.start_timestamp + shift)
        epoch.ready_quorum_unix = clamp_time(epoch.ready_quorum_unix + shift) if epoch.ready_quorum_unix else 0
    if state.in_round:
        state.current.started_unix = clamp_time(state.current.started_unix + shift)
    return True


def get_duration_s(config: Config, run_state: RunState) -> int | None:
    return {
        RunState.WAITING_FOR_MEMBERS: config.waiting_for_members_extra_time,
        RunState.WARMUP: config.warmup_time,
        RunState.ROUND_TRAIN: config.max_round_train_time,
        RunState.ROUND_WITNESS: config.round_witness_time,
        RunState.COOLDOWN: config.cooldown_time,
    }.get(run_state)
