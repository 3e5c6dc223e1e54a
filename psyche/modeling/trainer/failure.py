"""What a trainer reports when it cannot go on; no torch here, so that a client's parent may import it."""

from enum import StrEnum

from psyche.errors import TrainerError


class FailureKind(StrEnum):
    """Why a trainer failed, which says what its owner may do."""

    CRASHED = "crashed"  # the process ended, or its state is no longer known: restart and load again
    HUNG = "hung"  # no sign of life within the watchdog's limit: it was killed; restart and load again
    OUT_OF_MEMORY = "out_of_memory"  # even a micro-batch of one does not fit
    STOPPED = "stopped"  # its owner stopped it


class TrainerFailure(TrainerError):
    """A trainer that cannot go on, as opposed to a request that it refused.

    Args:
        kind: what happened.
        message: what happened, where, and what to do.
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
