"""The failures that a trainer reports; no torch here, so that the client's process may import it."""

from enum import StrEnum

from psyche.errors import TrainerError


class FailureKind(StrEnum):
    """Why a trainer failed, which determines what its owner may do."""

    CRASHED = "crashed"  # the process ended, or its state is undefined: restart and load again
    HUNG = "hung"  # silent for longer than the watchdog's limit, and killed: restart and load again
    OUT_OF_MEMORY = "out_of_memory"  # even a micro-batch of one does not fit into memory
    STOPPED = "stopped"  # its owner stopped it


class TrainerFailure(TrainerError):
    """A trainer failed and cannot go on; a refused request raises `TrainerError` instead."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
