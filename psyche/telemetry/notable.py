"""What an event says to people, in a sentence where it has one."""

from collections.abc import Callable
from typing import Any, Final

from psyche.telemetry import types
from psyche.telemetry.challenges import ACCUSATIONS
from psyche.telemetry.status import format_drop
from psyche.telemetry.text import format_loss, format_seconds

NOTABLE: Final[dict[type[types.Event], Callable[[Any], str]]] = {
    types.EpochFailed: lambda event: f"epoch given up: {event.reason}, steps lost: {event.steps_lost}",
    types.Diverged: lambda _: "holds different weights than the others, heals",
    types.Behind: lambda _: "is behind, catches up",
    types.Healed: lambda _: "holds the agreed weights again",
    types.TrainerLost: lambda event: f"lost its trainer: {event.reason}",
    types.Dropped: lambda event: f"was {format_drop(event)}",
    types.SourceRefused: lambda event: f"refuses peer {event.peer.hex()}, which {event.reason}",
    types.PlaceFailed: lambda event: f"got no weights from {event.place}: {event.reason}",
    types.ModelFilesDiffer: lambda event: f"{event.path} is not the run's model: {event.files}; {event.hint}",
    types.Rollback: lambda event: f"the run went back to step {event.step}",
    types.ServerRecovered: lambda event: f"continues from its journal after {format_seconds(event.gap_s)}",
    types.ErrorReported: lambda event: f"{event.name or event.key.hex()[:8]} reports an error: {event.error}",
    types.ErrorOver: lambda event: f"{event.name or event.key.hex()[:8]} reports no error any more",
    types.JournalFailed: lambda event: f"cannot write its journal: {event.error}",
    types.Error: lambda event: f"error: {event.message}",
    types.ArithmeticOff: lambda event: (
        f"member {event.member} ({event.key[:8]}) computes otherwise than others of its kind, by {event.distance:.1e}: "
        f"it judges nobody in epoch {event.epoch}"
    ),
    types.Challenged: lambda event: (
        f"{event.target[:8]} is accused by {event.accuser[:8]} of its work of round {event.height}: "
        f"{ACCUSATIONS[event.reason]}"
    ),
    types.ChallengeEnded: lambda event: (
        f"{event.target[:8]}, accused of its work of round {event.height}, is judged: {event.outcome} "
        f"({event.guilty} guilty, {event.innocent} innocent)"
    ),
    types.RoundOver: lambda event: f"step {event.step} is done, loss {format_loss(event.loss)}",
}


def describe_event(event: types.Event) -> str:
    """The event's sentence, or its type and its fields."""
    if (describe := NOTABLE.get(type(event))) is not None:
        return describe(event)
    fields = (f"{name}={value}" for name, value in types.get_plain_fields(event).items())
    return " ".join([types.get_type_name(event), *fields])
