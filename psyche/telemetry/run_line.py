"""Who takes part in a run, in words, and how further commands are named there."""

from typing import Protocol

from psyche.core.state.enums import RunState
from psyche.telemetry.text import format_number
from psyche.wire.backend import RunStatus


class WriteCommand(Protocol):
    """Writes a further command as it can be run for the same run, in quotes; `signed`: it needs the same key."""

    def __call__(self, command: str, *, signed: bool = True) -> str:
        """Write the command, whose name and own options are given."""
        ...


def write_briefly(command: str, *, signed: bool = True) -> str:  # noqa: ARG001  # a WriteCommand
    """Write a command without the options that say where the run is."""
    return f"`psyche {command}`"


def format_members(status: RunStatus, write: WriteCommand = write_briefly) -> str:
    """`2 of 3 members healthy`, and between epochs `1 client waits, 2 are needed to start`."""
    clients = format_number(status.waiting, "client waits", "clients wait")
    if status.members:
        healthy = f"{status.healthy} of {format_number(status.members, 'member')} healthy"
        return healthy + (f", {clients} for the next epoch" if status.waiting else "")
    if RunState(status.run_state) is RunState.FINISHED:
        return "no epoch follows"
    if not status.total_steps:  # `psyche run create` was cut off, or named no file
        return f"has no settings yet; {write('run create --state FOLDER')} completes it"
    if RunState(status.run_state) in (RunState.PAUSED, RunState.UNINITIALIZED):
        return f"{'goes on' if status.state_start_unix else 'starts'} with {write('run resume')}"
    return f"{clients}, {format_number(status.init_min_clients, 'is', 'are')} needed to start"
