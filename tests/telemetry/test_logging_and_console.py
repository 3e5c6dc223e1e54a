"""Logs come out as people or programs want them, and a live block never garbles them."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from kits.log import make

from psyche.errors import ConfigError
from psyche.telemetry import types
from psyche.telemetry.console import CLEAR_LINE, UP, Console, is_live
from psyche.telemetry.events import EventLog
from psyche.telemetry.logging import configure_logging, parse_levels
from psyche.telemetry.printer import EventPrinter


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in list(logging.Logger.manager.loggerDict):
        if name.split(".")[0] in ("psyche", "libp2p", "transformers", "httpx"):
            logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def logged() -> io.StringIO:
    """What is logged for people."""
    stream = io.StringIO()
    configure_logging("console", "info", console=Console(stream, live=False))
    return stream


def test_json_logs_are_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "info")
    structlog.get_logger("psyche.client").info("joined", epoch=3, digest=b"\x01")
    (line,) = capsys.readouterr().out.splitlines()
    event = json.loads(line)
    assert {"event": "joined", "epoch": 3, "digest": "01", "level": "info"}.items() <= event.items()


def test_console_logs_go_through_the_console_and_quiet_libp2p(logged: io.StringIO) -> None:
    structlog.get_logger("psyche.client").info("joined", epoch=3)
    logging.getLogger("libp2p.host").error("noise")
    logging.getLogger("trio").warning("a %s", "warning")
    text = logged.getvalue()
    assert "joined" in text
    assert "epoch=3" in text
    assert "a warning" in text
    assert "noise" not in text


def test_mode_none_is_silent_but_still_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "logs" / "client.log"
    configure_logging("none", write_log=file)
    structlog.get_logger("psyche").warning("seen")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    assert json.loads(file.read_text())["event"] == "seen"


def test_levels_can_be_set_per_logger() -> None:
    stream = io.StringIO()
    configure_logging("console", "warn,psyche.client=debug", console=Console(stream, live=False))
    structlog.get_logger("psyche.client.runtime.shell").debug("detail")
    structlog.get_logger("psyche.server").info("hidden")
    assert "detail" in stream.getvalue()
    assert "hidden" not in stream.getvalue()


def test_levels_parse_like_the_original_documentations_filter() -> None:
    assert parse_levels("warn,psyche=debug") == (logging.WARNING, {"psyche": logging.DEBUG})
    assert parse_levels("") == (logging.INFO, {})
    with pytest.raises(ConfigError, match="loud"):
        parse_levels("psyche=loud")


def test_an_unwritable_log_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--write-log"):
        configure_logging("none", write_log=tmp_path / "file" / "x.log")


def test_lines_scroll_above_the_live_block() -> None:
    stream = io.StringIO()
    console = Console(stream, live=True)
    console.set_status("one\ntwo")
    console.print("a line")
    shown = "one\ntwo" + "\r" + CLEAR_LINE + UP + CLEAR_LINE + "a line\none\ntwo"
    assert stream.getvalue() == shown
    console.set_status("one\ntwo")
    assert stream.getvalue() == shown, "a block that is the same is not drawn again"
    console.clear_status()
    assert stream.getvalue().endswith("\r" + CLEAR_LINE + UP + CLEAR_LINE)


def test_a_closed_stream_silences_the_console_only() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.set_status("one")
    assert stream.getvalue() == "", "without a terminal there is no live block"
    stream.close()
    console.print("nobody hears this")
    console.print("nor this")


@pytest.mark.parametrize(("name", "value"), [("NO_LIVE", "1"), ("CI", "true"), ("TERM", "dumb"), ("TERM", "")])
def test_a_terminal_can_be_told_to_stay_plain(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for variable in ("NO_LIVE", "CI"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert is_live(Terminal())
    monkeypatch.setenv(name, value)
    assert not is_live(Terminal())


def test_what_comes_again_and_again_is_told_once_and_then_now_and_then(logged: io.StringIO) -> None:
    clock = [0.0]
    log = EventLog(None, node="client", now=lambda: clock[0])
    printer = EventPrinter(log.subscribe(), shorten=True)

    def get_lines(event: types.Event) -> list[str]:
        logged.seek(0)
        logged.truncate()
        log.emit(event)
        printer.refresh()
        return logged.getvalue().splitlines()

    told: list[int] = []
    for wait_s, reason in ((0, "refused"), *((5, "refused"),) * 5, (0, "no line"), (30, "no line"), (29, "no line")):
        clock[0] += wait_s
        told.append(len(get_lines(types.BackendLost(reason=reason, tries=0))))
    assert told == [1, 0, 0, 0, 0, 0, 1, 1, 0]
    clock[0] += 1.0
    (line,) = get_lines(types.BackendLost(reason="no line", tries=5))
    assert "times=2" in line
    assert len(get_lines(types.BackendConnected(run_id="run", program="x"))) == 1
    assert len(get_lines(types.BackendLost(reason="no line", tries=0))) == 1


def test_what_follows_from_the_user_s_stop_is_no_warning_and_a_message_is_a_sentence(logged: io.StringIO) -> None:
    log = EventLog(None, node="client", now=lambda: 0.0)
    printer = EventPrinter(log.subscribe(), shorten=True)
    log.emit(types.LeftEpoch(reason="the trainer was lost", cause=types.LeaveCause.TRAINER_LOST))
    log.emit(make(types.EpochFailed))
    log.emit(types.LeftEpoch(reason="interrupted", cause=types.LeaveCause.STOPPED))
    log.emit(make(types.EpochFailed))
    log.emit(types.NotAllowedYet(message="the owner has not allowed this key yet"))
    printer.refresh()
    assert logged.getvalue().count("left_epoch") == 2
    assert logged.getvalue().count("epoch_failed") == 1
    assert "not_allowed_yet: the owner has not allowed this key yet" in logged.getvalue()
