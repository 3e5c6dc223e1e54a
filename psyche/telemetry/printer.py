"""Events as log lines, for people (`--logs console`) and programs (`--logs json`)."""

import logging
from typing import Any, Final

import structlog

from psyche.telemetry.events import RESERVED, Event, Subscription

# What a person who watches one node wants to read; the rest is there with `--log debug`.
NOTABLE: Final = frozenset({
    "client_started", "model_loaded", "joined", "warmup_ready", "snapshot_written", "exported", "healing", "healed",
    "finished", "serving", "left", "server_listening", "server_recovered", "server_connected", "server_stopped",
    "client_connected", "client_disconnected", "connection_closed", "journal_note", "phase",
    "access_changed", "earnings_collected",
})  # fmt: skip
WARNINGS: Final = frozenset({
    "behind", "diverged", "epoch_failed", "refused_by_coordinator", "refused", "not_sent", "load_failed", "rollback",
    "trainer_lost", "equivocation", "dropped", "server_lost", "client_withdrawn", "slot_given_up",
    "state_mismatch", "source_refused", "model_files_differ",
})  # fmt: skip
ERRORS: Final = frozenset({"error", "server_defect", "journal_failed"})  # giving up is the command's own error
# What comes again and again for one reason, and what ends it: told once, and then at most every `AGAIN_S`.
REPEATED: Final = {"server_lost": "server_connected", "load_failed": "model_loaded", "behind": "healed"}
AGAIN_S: Final = 30.0
FOLLOWS_A_STOP: Final = frozenset({"epoch_failed", "dropped"})
LONG_HEX: Final = 32  # characters from which a hash is shortened for people
SHORT_HEX: Final = 12


def get_level(event: Event) -> int:
    """How loud an event is."""
    kind = event["kind"]
    if kind in ERRORS or (kind == "left" and event.get("code", 0) != 0):
        return logging.ERROR
    if kind in WARNINGS:
        return logging.WARNING
    return logging.INFO if kind in NOTABLE else logging.DEBUG


class Repeats:
    """Holds back what was said a moment ago; every event is in the event log all the same."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[object, float, int]] = {}  # by kind: reason, when it was told, how often since

    def count(self, event: Event) -> int:
        """How often it has come since it was last told, this time included; 0: not worth a line now."""
        kind, reason, t = event["kind"], event.get("reason"), float(event["t"])
        for repeated, end in REPEATED.items():
            if kind == end:
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
    """Logs what a subscription brings; `shorten` cuts hashes to what a person compares."""

    def __init__(self, subscription: Subscription, *, shorten: bool) -> None:
        self._subscription = subscription
        self._shorten = shorten
        self._repeats = Repeats()
        self._is_stopping = False
        self._log = structlog.get_logger("psyche.events")

    def refresh(self) -> None:
        """Log what has come since the last call."""
        for event in self._subscription.drain():
            times = self._repeats.count(event)
            if not times:
                continue
            fields: dict[str, Any] = {k: self._get_shown(v) for k, v in event.items() if k not in RESERVED}
            if "event" in fields:  # structlog's own name for the message
                fields["event_"] = fields.pop("event")
            if times > 1:
                fields["times"] = times
            self._log.log(self._get_level(event), event["kind"], **fields)

    def _get_level(self, event: Event) -> int:
        """What follows from the user's own stop is no warning."""
        if event["kind"] == "left" and str(event.get("reason", "")).startswith("stopped by"):
            self._is_stopping = True
        return logging.DEBUG if self._is_stopping and event["kind"] in FOLLOWS_A_STOP else get_level(event)

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
