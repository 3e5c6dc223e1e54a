"""A simulated world: its machines, what befalls them, and what its log stands for."""

from psyche.telemetry.types.base import Event


class Started(Event):
    """A machine's process begins, its `life`-th."""

    who: str
    life: int


class Killed(Event):
    """A machine's process ended as by SIGKILL."""

    who: str
    life: int


class Ended(Event):
    """A machine's process ended by itself."""

    who: str
    life: int
    code: int | None


class Stopped(Event):
    """A machine's process stands still."""

    who: str


class Resumed(Event):
    """It goes on."""

    who: str


class AskedToEnd(Event):
    """A machine's user asks its process to end."""

    who: str


class ProcessFailed(Event):
    """A machine's process ended with an error that it reports."""

    error: str


class Crashed(Event):
    """A machine's process died of a defect."""

    error: str


class Fault(Event):
    """A fault begins."""

    what: str
    for_s: float


class FaultOver(Event):
    """A fault is over."""

    what: str


class AnswerLost(Event):
    """A request reached the record, and its answer did not arrive."""

    who: str
    what: str


class RecordedTwice(Event):
    """A request that was repeated reached the record a second time."""

    who: str
    what: str


class RunLost(Event):
    """The run stands still, as it may with more liars than the protocol bears."""

    why: str


class RoundMembers(Event):
    """Whom the record has in a round, and the tokens that it hands out."""

    epoch: int
    height: int
    members: tuple[str, ...]
    tokens: int


class Simulated(Event):
    """What the log of a simulated run stands for; `limit_s` is max_round_train_time."""

    limit_s: int
    overlap: bool
    sequence_tokens: int
    played_tokens: int
    payload_bytes: int


class Carried(Event):
    """All that a client's line has carried, in bytes."""

    who: str
    bytes_sent: int
    bytes_received: int
    weights_sent: int
    weights_received: int
