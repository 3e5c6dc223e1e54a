"""Events as log lines, for people (`--logs console`) and programs (`--logs json`)."""

import logging
from string import hexdigits
from typing import Any, Final

import structlog

from psyche.telemetry import types
from psyche.telemetry.events import Subscription
from psyche.wire.report import escape_text

# Kinds that repeat for one reason, and the kind that ends that: logged once, then at most every `AGAIN_S`.
REPEATED: Final[dict[type[types.Event], type[types.Event]]] = {
    types.BackendLost: types.BackendConnected, types.LoadFailed: types.ModelLoaded, types.Behind: types.Healed
}  # fmt: skip
AGAIN_S: Final = 30.0
FOLLOWS_A_STOP: Final = frozenset({types.EpochFailed, types.Dropped})
HEX_DIGITS: Final = frozenset(hexdigits)
LONG_HEX: Final = 32  # characters from which a hash is shortened
SHORT_HEX: Final = 12


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
        for t, _, event in self._subscription.drain():
            times = self._repeats.count(t, event)
            if not times:
                continue
            fields = {name: self._get_shown(value) for name, value in types.get_plain_fields(event).items()}
            if "event" in fields:  # structlog uses this name for the message
                fields["event_"] = fields.pop("event")
            if times > 1:
                fields["times"] = times
            text = types.get_type_name(event)
            if self._shorten and "message" in fields:  # a sentence for people, not a value
                text = f"{text}: {fields.pop('message')}"
            self._log.log(self._get_level(event), text, **fields)

    def _get_level(self, event: types.Event) -> int:
        """The log level; consequences of the user's own stop are no warnings."""
        if isinstance(event, types.LeftEpoch | types.ClientEnded) and event.cause is types.LeaveCause.STOPPED:
            self._is_stopping = True
        if self._is_stopping and type(event) in FOLLOWS_A_STOP:
            return logging.DEBUG
        return logging.ERROR if isinstance(event, types.ClientEnded) and event.code else event.level

    def _get_shown(self, value: Any) -> Any:
        is_hash = isinstance(value, str) and len(value) >= LONG_HEX and HEX_DIGITS.issuperset(value)
        if not self._shorten or not isinstance(value, str):
            return value
        return value[:SHORT_HEX] if is_hash else escape_text(value, "\n")
