"""A round as a client lives it: training, results, witnesses, sets."""

from enum import StrEnum

from psyche.telemetry.types.base import WARNING, Event, Hex


class Refusable(StrEnum):
    """What a client may refuse."""

    MALFORMED = "malformed"
    UNSIGNED = "unsigned"
    RESULT = "result"
    PAYLOAD = "payload"
    TABLE = "table"
    WORK = "work"
    SCORE = "score"


class RoundStarted(Event):
    """A round begins."""

    epoch: int
    height: int
    step: int
    drain: bool


class Trained(Event):
    """The client has trained its batch; loss in nats per token, `run_tokens` are of the run so far, with this round."""

    epoch: int
    height: int
    step: int
    loss: float
    tokens: int
    seconds: float
    compute_seconds: float
    micro_batch_size: int
    grad_norm: float
    data_hash: Hex
    learning_rate: float | None = None
    run_tokens: int = 0


class TensorMeasured(Event):
    """What this client's update does to one tensor (`--optim-stats-steps`).

    `update_energy` and `grad_energy` are the sums of the magnitudes of the update, before its coefficients become
    signs, and of the gradient; `momentum_norm` is the Euclidean norm of the momentum, and `agreement` the share of
    weights whose update has the sign of their gradient. With local steps the update is what the payload has of a
    tensor, the gradient what the inner steps moved it, and the momentum the error memory.
    """

    epoch: int
    height: int
    step: int
    name: str
    update_energy: float
    grad_energy: float
    momentum_norm: float
    agreement: float


class NotSent(Event, level=WARNING):
    """The client announces nothing for this round; `failed`: its batch could not be trained."""

    height: int
    reason: str
    failed: bool = False


class ResultSent(Event):
    """The client has announced its update."""

    epoch: int
    height: int
    step: int
    bytes: int
    loss: float
    commitment: Hex


class InnerStepsDone(Event):
    """What the result just announced is of, with local steps; `merged` are the members whose results it has merged."""

    height: int
    inner_steps: int
    merged: tuple[int, ...]


class PayloadReceived(Event):
    """An update has arrived and passed its checks."""

    from_member: int
    height: int
    bytes: int


class WitnessSent(Event):
    """The client sends a witness message."""

    epoch: int
    height: int
    reason: str


class Decided(Event):
    """The set of a round is known."""

    height: int
    members: tuple[int, ...]
    void: bool


class Applied(Event):
    """The set that was due is applied."""

    epoch: int
    height: int
    step: int
    members: tuple[int, ...]
    count: int
    update: bool
    digest: Hex


class Behind(Event, level=WARNING):
    """A decided payload is not fetched yet."""

    rounds: int
    next_height: int


class Equivocation(Event, level=WARNING):
    """A member signed two results for one round."""

    member: int
    height: int


class Refused(Event, level=WARNING):
    """The client refused a message or list that breaks a rule."""

    what: Refusable
    reason: str
    member: int | None = None
    height: int | None = None


class RefusedByCoordinator(Event, level=WARNING):
    """The record refused a message."""

    action: str
    code: str
    reason: str


class TooLate(Event):
    """A message came after its round; nothing is lost."""

    action: str
    reason: str
