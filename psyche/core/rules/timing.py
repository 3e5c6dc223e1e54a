"""When time-outs fire (T1), and the one place where the run state changes."""

from psyche.core.state.limits import U64_MAX
from psyche.core.state.state import Coordinator, RunState


def compute_elapsed(now: int, start: int) -> int:
    """Seconds since `start`; a clock that went backwards counts as none (T1)."""
    return max(0, now - start)


def clamp_time(now: int) -> int:
    """A time as it can stand on record: not before 1970, and within 64 bits; a broken clock breaks nothing (T1)."""
    return min(max(now, 0), U64_MAX)


def is_timed_out(now: int, start: int, duration_s: int) -> bool:
    """Whether a time-out of `duration_s` since `start` fires; even a duration of zero takes a second (T1)."""
    elapsed = compute_elapsed(now, start)
    return elapsed >= duration_s and elapsed > 0


def process_state_change(state: Coordinator, now: int, run_state: RunState) -> None:
    """Enter another run state; its clock starts now."""
    assert run_state is not state.run_state, "a state is never entered from itself"
    state.run_state = run_state
    state.state_start_unix = now
