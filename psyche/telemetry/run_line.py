"""A run's status in words, for the line of a server and for `psyche run info`; how further commands are named there."""

from typing import Protocol

from psyche.core.state.enums import RunState
from psyche.telemetry.status import PHASES, ROUND_PHASES, get_stage
from psyche.telemetry.text import format_count, format_number, format_seconds, lay_out
from psyche.wire.backend import RunStatus


class WriteCommand(Protocol):
    """Writes a further command as it can be run for the same run, in quotes; `signed`: it needs the same key."""

    def __call__(self, command: str, *, signed: bool = True) -> str:
        """Write the command, whose name and own options are given."""
        ...


def write_briefly(command: str, *, signed: bool = True) -> str:  # noqa: ARG001  # a WriteCommand
    """Write a command without the options that say where the run is."""
    return f"`psyche {command}`"


def get_phase(status: RunStatus) -> str:
    return PHASES[RunState(status.run_state)]


def get_standing(status: RunStatus) -> tuple[str, int, int, int, bool]:
    """What deserves a line as soon as it changes: the phase, and who is there."""
    return get_stage(get_phase(status)), status.healthy, status.members, status.waiting, status.pending_pause


def format_run_status(status: RunStatus, now: float, columns: int = 0) -> str:
    """One line: where the run is, for how long, and who takes part; `columns` as in `lay_out`."""
    phase, since_s = get_phase(status), round(now - status.state_start_unix)
    round_ = f"round {status.height} " if phase in ROUND_PHASES else ""
    parts = [
        f"epoch {status.epoch} {round_}step {status.step} of {status.total_steps}",
        f"{phase} for {format_seconds(since_s)}" if since_s > 0 else phase,
        *describe_progress(status),
    ]
    waits = [format_members(status)]
    if status.failing:
        waits.append(format_number(status.failing, "client reports an error", "clients report errors"))
    if status.pending_pause:
        waits.append("pauses at the end of this epoch")
    return lay_out(parts, waits, columns)


def describe_progress(status: RunStatus) -> list[str]:
    """`loss 3.210`, `12.3k tok/s`: what the members say of themselves, as far as they do."""
    loss = [] if status.loss is None else [f"loss {status.loss:.3f}"]
    return loss + ([f"{format_count(status.tokens_per_s)} tok/s"] if status.tokens_per_s >= 1 else [])


def format_members(status: RunStatus, spell: WriteCommand = write_briefly) -> str:
    """`2 of 3 members healthy`, and between epochs `1 client waits, 2 are needed to start`."""
    clients = format_number(status.waiting, "client waits", "clients wait")
    if status.members:
        healthy = f"{status.healthy} of {format_number(status.members, 'member')} healthy"
        return healthy + (f", {clients} for the next epoch" if status.waiting else "")
    if RunState(status.run_state) is RunState.FINISHED:
        return "no epoch follows"
    if not status.total_steps:  # `psyche run create` was cut off, or named no file
        return f"has no settings yet; {spell('run create --state FOLDER')} completes it"
    if RunState(status.run_state) in (RunState.PAUSED, RunState.UNINITIALIZED):
        return f"{'goes on' if status.state_start_unix else 'starts'} with {spell('run resume')}"
    return f"{clients}, {format_number(status.init_min_clients, 'is', 'are')} needed to start"
