"""What a node waits for, until when, and how the wait ended."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from psyche.telemetry.types.base import Event


class Wait(StrEnum):
    """What is waited for."""

    OWNER = "owner"  # to resume the run
    MORE_MEMBERS = "more_members"
    FORMATION = "formation"  # of the epoch
    NEXT_EPOCH = "next_epoch"  # this client is not a member of the running one
    WEIGHTS = "weights"
    FINAL_WEIGHTS = "final_weights"
    OWN_WORK = "own_work"
    OWN_WORK_AND_PAYLOADS = "own_work_and_payloads"
    OTHERS_FINISHED = "others_finished"
    OWN_FINISHED = "own_finished"
    WITNESS_LISTS = "witness_lists"
    PAYLOADS = "payloads"
    AGREED_TENSORS = "agreed_tensors"
    BOOTSTRAP_PLACE = "bootstrap_place"  # of a bootstrap peer in the run
    BOOTSTRAP_DIAL = "bootstrap_dial"  # the next one
    PERMISSION = "permission"  # to join
    BACKEND = "backend"  # of the run, server or chain, that cannot be reached


class WaitOutcome(StrEnum):
    """How a wait ended."""

    REPLACED = "replaced by another wait"
    STATE_CHANGED = "state changed"
    ROUND_OVER = "round over"
    DONE = "done"
    TIME_IS_UP = "time is up"
    SENT = "sent"
    COMPLETE = "complete"  # W6 (a)
    FOLLOW = "follow"  # W6 (b)
    HALF_TIME = "half_time"  # W6 (c)
    FETCHED = "fetched"
    DECIDED = "decided"
    ALL_HELD = "all held"
    GIVEN_UP = "given up"
    LOADED = "loaded"
    AGREED_LOADED = "the agreed weights are loaded"
    RESUMED = "resumed"
    EPOCH_FORMED = "epoch formed"
    EPOCH_ENDS = "the epoch ends"
    CONNECTED = "connected"
    DIALED = "dialed"
    OFF_RECORD = "its address is not on record any more"
    ALLOWED = "allowed"


class WaitStarted(Event):
    """The node waits for `what`, until a deadline (unix seconds; null: none), and does `then` after it.

    `wait` says what it is for programs; `members`, by their index, and `height` are those that it names.
    """

    what: str
    until: float | None
    then: str
    wait: Wait
    members: tuple[int, ...] = ()
    height: int | None = None
    apply_height: int | None = None


class WaitEnded(Event):
    """The wait is over."""

    what: str
    until: float | None
    outcome: WaitOutcome
    wait: Wait
    height: int | None = None


def describe_members(members: Sequence[int], names: Mapping[int, str] | None = None) -> str:
    """`members 0, 2`, or `client 1, client 3` where `names` knows them all."""
    if names and all(member in names for member in members):
        return ", ".join(names[member] for member in members)
    return f"member{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"


def describe_wait(event: WaitStarted, names: Mapping[int, str] | None = None) -> str:
    """What is waited for, with `names` of members by their index."""
    if not event.members:
        return event.what
    who = describe_members(event.members, names)
    match event.wait:
        case Wait.PAYLOADS:
            return describe_payloads(who, event.height, event.apply_height)
        case Wait.OTHERS_FINISHED:
            return describe_finish(who, event.height)
        case _:
            return event.what


def describe_payloads(who: str, height: int | None, apply_height: int | None) -> str:
    return f"payloads of {who} of round {height}, to apply in round {apply_height}"


def describe_finish(who: str, height: int | None) -> str:
    return f"{who} to finish round {height}"
