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
})  # fmt: skip
WARNINGS: Final = frozenset({
    "behind", "diverged", "epoch_failed", "refused_by_coordinator", "refused", "not_sent", "load_failed", "rollback",
    "trainer_lost", "equivocation", "dropped", "server_lost", "client_withdrawn", "connection_refused",
    "state_mismatch",
})  # fmt: skip
ERRORS: Final = frozenset({"error", "server_given_up", "server_defect", "journal_failed"})
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


class EventPrinter:
    """Logs what a subscription brings; `shorten` cuts hashes to what a person compares."""

    def __init__(self, subscription: Subscription, *, shorten: bool) -> None:
        self._subscription = subscription
        self._shorten = shorten
        self._log = structlog.get_logger("psyche.events")

    def refresh(self) -> None:
        """Log what has come since the last call."""
        for event in self._subscription.drain():
            fields: dict[str, Any] = {k: self._get_shown(v) for k, v in event.items() if k not in RESERVED}
            if "event" in fields:  # structlog's own name for the message
                fields["event_"] = fields.pop("event")
            self._log.log(get_level(event), event["kind"], **fields)

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
