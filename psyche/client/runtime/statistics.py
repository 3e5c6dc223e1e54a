"""What a client's shell holds now, for whoever watches it; reading changes nothing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShellStatistics:
    """Of a `Shell`."""

    payloads: int  # in memory
    fetches: int  # under way
    trainer_requests: int  # queued or running
