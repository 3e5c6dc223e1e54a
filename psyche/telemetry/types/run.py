"""A client and its run: how it begins, where the run stands, how it ends."""

from enum import StrEnum

from psyche.core.state.enums import ClientState, RunState
from psyche.telemetry.types.base import ERROR, INFO, WARNING, Event, Hex


class LeaveCause(StrEnum):
    """Why a client leaves the epoch, or ends."""

    STOPPED = "stopped"  # by its user
    FINISHED = "finished"
    RESTARTED = "restarted"  # in mid-epoch: what its former self signed is not known (M9)
    BEHIND = "behind"  # payloads or weights could not be fetched in time
    UNSEEN = "unseen"  # a part of the record was not seen
    WRONG_WEIGHTS = "wrong_weights"  # and no way to heal
    CONTRADICTED = "contradicted"  # its replay contradicts what was agreed
    TRAINER_LOST = "trainer_lost"
    BANNED = "banned"
    UNUSABLE_MODEL = "unusable_model"
    UNUSABLE_DATA = "unusable_data"  # token ids that the model does not have
    UNFIT = "unfit"  # its machine computes otherwise than the others (V6)
    WRONG_VERSION = "wrong_version"  # the run wants another version of this program
    BACKEND = "backend"  # of the run: the connection was given up


class ClientStarted(Event, level=INFO):
    """The process begins."""

    identity: Hex
    run_id: str
    pid: int


class TrainerStarted(Event):
    """The client's trainer is ready."""

    pid: int | None


class MemoryPredicted(Event, level=INFO):
    """What training takes of memory at the peak of a step, or hardly exceeds, and what is free; for each of `ranks`."""

    device: str
    needed_bytes: int
    free_bytes: int
    micro_batch_size: int
    ranks: int


class CannotTakePart(Event):
    """The client never could take part in the run; it ends before it joins."""

    reason: str


class TrainerLost(Event, level=WARNING):
    """The client's trainer crashed, hung or ran out of memory."""

    reason: str


class NotAllowedYet(Event, level=WARNING):
    """The owner has not allowed this client's key; it joins by itself as soon as it is allowed."""

    message: str


class ClockWrong(Event, level=WARNING):
    """This machine's clock and that of the run's backend differ by a minute or more."""

    message: str


class Joined(Event, level=INFO):
    """The client has a place in the run."""

    epoch: int


class Member(Event):
    """The client is a member of the new epoch: as `index`, one of so many `members`."""

    index: int
    members: int


class StateChanged(Event):
    """The record entered another phase or round; `members` counts the healthy ones. `was` is told by the server."""

    epoch: int
    height: int
    run_state: RunState
    step: int
    members: int
    was: RunState | None = None


class Rollback(Event, level=WARNING):
    """The run went back to its checkpoint; `was` and `epoch` are told by the server."""

    step: int
    was: int | None = None
    epoch: int | None = None
    data_index: int


class EpochFailed(Event, level=WARNING):
    """An epoch's work was given up."""

    epoch: int
    reason: str
    steps_lost: int


class Dropped(Event, level=WARNING):
    """The client was dropped from the epoch; `reason` says why, and what its user can do."""

    state: ClientState
    reason: str = ""


class Withdrew(Event):
    """Its withdrawal is on record, from the epoch or of its join."""

    epoch: int
    reason: str
    cause: LeaveCause


class Finished(Event, level=INFO):
    """The run is over; `held` says whether this client's weights have that digest."""

    digest: Hex
    step: int
    held: bool


class Serving(Event, level=INFO):
    """The client stays to serve others."""

    seconds: float


class LeftEpoch(Event, level=INFO):
    """The client leaves the epoch; its process goes on, unless it ends too."""

    reason: str
    cause: LeaveCause


class ClientEnded(Event, level=INFO):
    """The client's process ends, with this exit code."""

    reason: str
    code: int
    cause: LeaveCause


class Error(Event, level=ERROR):
    """Something failed and was dealt with: `trainer` says how the trainer failed, `action` what was being done."""

    message: str
    trainer: str = ""
    action: str = ""
