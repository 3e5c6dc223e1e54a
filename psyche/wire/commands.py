"""Further commands for the same run, as messages to a person name them."""

from typing import Protocol


class WriteCommand(Protocol):
    """Writes a further command as it can be run for the same run, in quotes; `signed`: it needs the same key."""

    def __call__(self, command: str, *, signed: bool = True) -> str:
        """Write the command, whose name and own options are given."""
        ...


def write_briefly(command: str, *, signed: bool = True) -> str:  # noqa: ARG001  # a WriteCommand
    """Write a command without the options that say where the run is."""
    return f"`psyche {command}`"
