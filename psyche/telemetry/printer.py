"""Events as log lines, for people (`--logs console`) and programs (`--logs json`)."""

import logging
from typing import Any, Final

import structlog

from psyche.telemetry import types
from psyche.telemetry.events import RESERVED, Subscription, read_event

# Shown by default to a user who watches one node; `--log debug` shows the rest.
NOTABLE: Final = frozenset({
    types.ClientStarted, types.ModelLoaded, types.Joined, types.WarmupReady, types.SnapshotWritten, types.Exported,
    types.Healing, types.Healed, types.Finished, types.Serving, types.LeftEpoch, types.ClientEnded,
    types.ServerListening, types.ServerRecovered, types.BackendConnected, types.ServerStopped, types.ClientConnected,
    types.ClientDisconnected, types.ErrorOver, types.ConnectionClosed, types.JournalNote, types.AccessChanged,
    types.EarningsCollected,
})  # fmt: skip
WARNINGS: Final = frozenset({
    types.Behind, types.Diverged, types.EpochFailed, types.RefusedByCoordinator, types.Refused, types.NotSent,
    types.LoadFailed, types.Rollback, types.TrainerLost, types.Equivocation, types.Dropped, types.BackendLost,
    types.ErrorReported, types.ClientWithdrawn, types.SlotGivenUp, types.StateMismatch, types.SourceRefused,
    types.ModelFilesDiffer, types.NotAllowedYet, types.WalletLow, types.ClockWrong, types.WatchRefused,
})  # fmt: skip
ERRORS: Final = frozenset({types.Error, types.ServerDefect, types.JournalFailed})  # the command reports giving up
# Kinds that repeat for one reason, and the kind that ends that: logged once, then at most every `AGAIN_S`.
REPEATED: Final[dict[type[types.Event], type[types.Event]]] = {
    types.BackendLost: types.BackendConnected, types.LoadFailed: types.ModelLoaded, types.Behind: types.Healed
}  # fmt: skip
AGAIN_S: Final = 30.0
FOLLOWS_A_STOP: Final = frozenset({types.EpochFailed, types.Dropped})
LONG_HEX: Final = 32  # characters from which a hash is shortened
SHORT_HEX: Final = 12


def get_level(event: types.Event) -> int:
    """The log level of an event."""
    kind = type(event)
    if kind in ERRORS or (isinstance(event, types.ClientEnded) and event.code):
        return logging.ERROR
    if kind in WARNINGS:
        return logging.WARNING
    return logging.INFO if kind in NOTABLE else logging.DEBUG


class Repeats:
    """Suppresses repeated log lines; the event log still has every event."""

    def __init__(self) -> None:
        # by kind: reason, when it was logged, how often since
        self._told: dict[type[types.Event], tuple[object, float, int]] = {}

    def count(self, t: float, event: types.Event) -> int:
        """The number of such events since the last one logged, this one included; 0: do not log it."""
        kind, reason = type(event), getattr(event, "reason", None)
        for repeated, end in REPEATED.items():
            if kind is end:
                self._told.pop(repeated, None)
        if kind not in REPEATED:
            return 1
        known, told_at, times = self._told.get(kind, (None, float("-inf"), 0))
        if known == reason and t - told_at < AGAIN_S:
            self._told[kind] = (known, told_at, times + 1)
            return 0
        self._told[kind] = (reason, t, 0)
        return times + 1 if known == reason else 1


class EventPrinter:
    """Logs the events of a subscription; `shorten` shortens hashes for reading."""

    def __init__(self, subscription: Subscription, *, shorten: bool) -> None:
        self._subscription = subscription
        self._shorten = shorten
        self._repeats = Repeats()
        self._is_stopping = False
        self._log = structlog.get_logger("psyche.events")

    def refresh(self) -> None:
        """Log the events since the last call."""
        for line in self._subscription.drain():
            event = read_event(line)
            times = self._repeats.count(line["t"], event)
            if not times:
                continue
            fields: dict[str, Any] = {k: self._get_shown(v) for k, v in line.items() if k not in RESERVED}
            if "event" in fields:  # structlog uses this name for the message
                fields["event_"] = fields.pop("event")
            if times > 1:
                fields["times"] = times
            text = line["kind"]
            if self._shorten and "message" in fields:  # a sentence for people, not a value
                text = f"{text}: {fields.pop('message')}"
            self._log.log(self._get_level(event), text, **fields)

    def _get_level(self, event: types.Event) -> int:
        """The log level; consequences of the user's own stop are no warnings."""
        if isinstance(event, types.LeftEpoch | types.ClientEnded) and event.cause is types.LeaveCause.STOPPED:
            self._is_stopping = True
        return logging.DEBUG if self._is_stopping and type(event) in FOLLOWS_A_STOP else get_level(event)

    def _get_shown(self, value: Any) -> Any:
        if self._shorten and isinstance(value, str) and len(value) >= LONG_HEX and _is_hex(value):
            return value[:SHORT_HEX]
        return value


def _is_hex(text: str) -> bool:
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True
