"""The event after a restart of the run's home: a restart is not a time-out (K2)."""

from psyche.core.roster import is_in_epoch
from psyche.core.state import Config, Coordinator, RunState


def process_recovered(state: Coordinator, now: int, gap_s: int, reconnect_s: int) -> bool:
    """Move the run's clocks by the time that nobody was home; whether that changed anything (K2).

    At least `reconnect_s` remain of the running phase, so that members can connect again.
    """
    duration_s = get_duration_s(state.config, state.run_state)
    if duration_s is None:
        return False
    start = state.state_start_unix + max(0, gap_s)
    shift = max(start, now + reconnect_s - duration_s) - state.state_start_unix
    if not shift:
        return False
    state.state_start_unix += shift
    if is_in_epoch(state):
        epoch = state.epoch
        epoch.start_timestamp += shift
        epoch.ready_quorum_unix += shift if epoch.ready_quorum_unix else 0
    if state.in_round:
        state.current.started_unix += shift
    return True


def get_duration_s(config: Config, run_state: RunState) -> int | None:
    """After how many seconds a phase times out; None where it has no clock."""
    return {
        RunState.WAITING_FOR_MEMBERS: config.waiting_for_members_extra_time,
        RunState.WARMUP: config.warmup_time,
        RunState.ROUND_TRAIN: config.max_round_train_time,
        RunState.ROUND_WITNESS: config.round_witness_time,
        RunState.COOLDOWN: config.cooldown_time,
    }.get(run_state)
