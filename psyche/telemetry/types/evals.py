"""Known tasks that members do in idle time, on the certified weights."""

from psyche.telemetry.types.base import INFO, WARNING, Event, Hex


class EvalStarted(Event):
    """The client knows what it asks: `documents` of this task, in blocks of 32."""

    task: str
    documents: int
    shots: int
    task_hash: Hex


class EvalScored(Event):
    """The client has done a block of a task; `skipped` of its documents are longer than the model."""

    task: str
    block: int
    digest: Hex
    documents: int
    skipped: int
    seconds: float


class EvalScore(Event, level=INFO):
    """What members have found together of the certified weights of `step`, from half of a task's blocks on.

    `value` is the share of `documents` that are right by the task's main metric. `final`: all blocks are done.
    """

    task: str
    metric: str
    value: float
    standard_error: float | None = None
    documents: int
    shots: int
    epoch: int
    step: int
    digest: Hex
    percent: int
    final: bool


class EvalDisputed(Event, level=WARNING):
    """`members` of `epoch` have sent another result of a block than the one that counts, which others agree on."""

    task: str
    block: int
    epoch: int
    members: tuple[int, ...]
    digest: Hex


class EvalText(Event, level=INFO):
    """How the certified weights of `step` go on with a prompt, the most likely token each time.

    `member` says so; nobody checks it.
    """

    prompt: str
    text: str
    member: int
    epoch: int
    step: int
    digest: Hex


class EvalsOff(Event, level=WARNING):
    """The client measures nothing, and trains on."""

    reason: str
