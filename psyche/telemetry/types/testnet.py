"""A testnet and its processes."""

from psyche.telemetry.types.base import Event


class ProcessStarted(Event):
    """A process of the testnet has started."""

    name: str
    pid: int


class ProcessEnded(Event):
    """A process of the testnet has ended."""

    name: str
    pid: int
    code: int | None


class ProcessKilled(Event):
    """The testnet killed a process on purpose."""

    name: str
    pid: int
    restart: bool


class KillsEnded(Event):
    """The testnet kills nobody any more."""

    step: int
