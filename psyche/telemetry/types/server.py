"""The server: its journal, its clients, who may join."""

from psyche.core.state.enums import RunState
from psyche.telemetry.types.base import ERROR, INFO, WARNING, Event, Hex


class ServerListening(Event, level=INFO):
    """The server accepts connections."""

    host: str
    port: int
    data_port: int | None


class ServerRecovered(Event, level=INFO):
    """The server continues from its journal."""

    gap_s: int
    seq: int
    run_state: RunState


class ServerStopped(Event, level=INFO):
    """The server ended cleanly."""

    seq: int


class ServerDefect(Event, level=ERROR):
    """A defect of the program, in what a connection asked (it is closed), or in a `change` of the record."""

    connection: str = ""
    change: str = ""
    error: str


class JournalNote(Event, level=INFO):
    """What recovery found."""

    note: str


class JournalFailed(Event, level=ERROR):
    """The disk failed."""

    error: str


class ClientConnected(Event, level=INFO):
    """A client has subscribed to the state."""

    key: Hex


class ClientDisconnected(Event, level=INFO):
    """A client's connection is gone; `is_member`: a healthy member of the running epoch's."""

    key: Hex
    reason: str
    is_member: bool = False


class RequestRepeated(Event):
    """A request came again whose answer was lost; answered from memory or by the record."""

    key: Hex
    request: str
    answered: str


class ClientWithdrawn(Event, level=WARNING):
    """The client was away for too long, or is no longer allowed."""

    key: Hex
    reason: str
    after_s: int


class SlotGivenUp(Event, level=WARNING):
    """The slot earned nothing, and its client stays away or is no longer allowed."""

    key: Hex
    reason: str
    after_s: int


class RoundOver(Event):
    """A round with data is over, after which `step` steps are on record: what it came to, as its members say.

    `results` were counted by its witnesses; `loss`, `least` and `greatest` are the median and the extremes of what they
    say, in nats per token, `tokens_per_s` is of all members together; `tokens` are trained in the run so far, and
    `waited_for` are the keys of at most three members that the round waited for last; `learning_rate` is the step's.
    """

    epoch: int
    height: int
    step: int
    total_steps: int
    seconds: float
    members: int
    results: int
    loss: float | None
    least: float | None
    greatest: float | None
    tokens_per_s: float
    unix: int
    tokens: int
    waited_for: tuple[Hex, ...] = ()
    learning_rate: float | None = None


class ErrorReported(Event, level=WARNING):
    """A client says that something keeps it from doing its part; at most one event of a client in 30 s."""

    key: Hex
    name: str
    phase: str
    error: str


class ErrorOver(Event, level=INFO):
    """A client reports no error any more."""

    key: Hex
    name: str


class Access(Event):
    """Who may join, as the server starts."""

    is_open: bool
    allowed: int


class AccessChanged(Event, level=INFO):
    """The owner changed who may join."""

    change: str
    allowed: int


class EarningsCollected(Event, level=INFO):
    """The owner has taken earnings out of the record; `amount` null: all there were."""

    key: Hex
    amount: int | None
    op_id: Hex


class ConnectionClosed(Event, level=INFO):
    """The peer of this connection broke a rule."""

    connection: str
    reason: str
