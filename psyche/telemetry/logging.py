"""Logging: structlog through the standard library's handlers, so that all libraries' lines look alike.

Messages are one event per line: `12:03:44 info  joined  epoch=3 member=1`, or one JSON object.
"""

import logging
import sys
from pathlib import Path
from typing import Any, Final, Literal, TextIO, cast

import structlog

from psyche.errors import ConfigError
from psyche.telemetry.console import Console
from psyche.telemetry.plain import get_plain

LogMode = Literal["console", "json", "none"]
LEVELS: Final = ("debug", "info", "warn", "warning", "error", "critical", "off")
# Libraries that log every packet or every missing optional part; what matters reaches us as exceptions.
QUIET: Final = {
    "libp2p": "critical",
    "httpx2": "warning",  # it tells of every request, with the endpoint's address, which may hold a key
    "httpcore2": "warning",
    "multiaddr": "critical", "async_service": "critical", "trio-websocket": "critical",
    "transformers": "error", "huggingface_hub": "error", "httpx": "warning", "PIL": "warning",
}  # fmt: skip


def parse_levels(spec: str) -> tuple[int, dict[str, int]]:
    """Parse levels such as `info` or `warn,psyche=debug,libp2p=info` into (default, level by logger name)."""
    default, named = "info", {}
    for part in filter(None, (p.strip() for p in spec.split(","))):
        name, separator, level = part.rpartition("=")
        if level.lower() not in LEVELS:
            raise ConfigError(f"log level {level!r} in {spec!r}: must be one of {', '.join(LEVELS)}")
        if separator:
            named[name.strip()] = _get_level(level)
        else:
            default = level
    return _get_level(default), named


def _get_level(name: str) -> int:
    if name.lower() == "off":
        return logging.CRITICAL + 10
    return logging.getLevelNamesMapping()[name.upper()]


def configure_logging(
    mode: LogMode = "console", level: str = "info", *, console: Console | None = None, write_log: Path | None = None
) -> None:
    """Send all logging to the console (by default on stderr), as JSON lines to stdout, or nowhere.

    `level` is as in `parse_levels`. `write_log` adds a file of JSON lines beside it. May be called again; the last
    call counts.
    """
    default, named = parse_levels(level)
    handlers = _build_handlers(mode, console, write_log)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    for handler in handlers or [logging.NullHandler()]:
        root.addHandler(handler)
    root.setLevel(default)
    quiet = {name: max(default, _get_level(least)) for name, least in QUIET.items()}
    for name, value in (quiet | named).items():
        logging.getLogger(name).setLevel(value)
    logging.captureWarnings(capture=True)
    _configure_structlog()


def _build_handlers(mode: LogMode, console: Console | None, write_log: Path | None) -> list[logging.Handler]:
    handlers: list[logging.Handler] = []
    if mode == "console":
        stream = console or Console(sys.stderr)
        handlers.append(_StreamHandler(cast("TextIO", stream), _build_human_formatter(colors=stream.live)))
    elif mode == "json":
        handlers.append(_StreamHandler(sys.stdout, _build_json_formatter()))
    if write_log is not None:
        try:
            write_log.parent.mkdir(parents=True, exist_ok=True)
            file = logging.FileHandler(write_log, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"log file {write_log}: {error.strerror}; choose another with --write-log") from error
        file.setFormatter(_build_json_formatter())
        handlers.append(file)
    return handlers


class _StreamHandler(logging.StreamHandler[TextIO]):
    """A stream handler that ignores a broken stream (a closed pipe)."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def _build_human_formatter(*, colors: bool) -> logging.Formatter:
    renderer = structlog.dev.ConsoleRenderer(
        colors=colors, pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
    )
    return _build_formatter(structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False), renderer)


def _build_json_formatter() -> logging.Formatter:
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    renderer = structlog.processors.JSONRenderer(default=get_plain)
    return _build_formatter(stamp, structlog.processors.format_exc_info, renderer)


def _build_formatter(*processors: structlog.typing.Processor) -> logging.Formatter:
    def show_hex(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {name: value.hex() if isinstance(value, bytes) else value for name, value in event.items()}

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars, show_hex, structlog.stdlib.add_log_level,
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
    ]  # fmt: skip
    return structlog.stdlib.ProcessorFormatter(processors=[*shared, *processors])


def _configure_structlog() -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # module-level loggers must follow a later configure_logging
    )
