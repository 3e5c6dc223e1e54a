"""The event after a restart of the run's home: a restart is not a time-out (K2)."""

from psyche.core.rules.timing import clamp_time
from psyche.core.state.messages import Context, Recover
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import Config, Coordinator, RunState


def process_recovery(state: Coordinator, context: Context, message: Recover) -> bool:
    """Move the run's clocks by the time that nobody was home; whether that changed anything (K2).

    At least `reconnect_s` remain of the running phase, so that members can connect again.
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
    """After how many seconds a phase times out; None where it has no clock."""
    return {
        RunState.WAITING_FOR_MEMBERS: config.waiting_for_members_extra_time,
        RunState.WARMUP: config.warmup_time,
        RunState.ROUND_TRAIN: config.max_round_train_time,
        RunState.ROUND_WITNESS: config.round_witness_time,
        RunState.COOLDOWN: config.cooldown_time,
    }.get(run_state)
