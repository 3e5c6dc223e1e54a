"""`psyche watch --tui`: by textual's pilot, and on a real pseudo-terminal with a real server."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.log import make
from textual.pilot import Pilot
from textual.widgets import RichLog, TabbedContent
from watch.terminal_kit import open_terminal

from psyche.core.state.enums import RunState
from psyche.errors import ConfigError
from psyche.telemetry import types
from psyche.telemetry.events import EventLog
from psyche.testnet.free_port import choose_port
from psyche.watch.play import PlaySource
from psyche.watch.screen.app import WatchScreen
from psyche.watch.screen.words import draw_line
from psyche.watch.sources import LogSource

ROOT = Path(__file__).parents[2]
MARKUP = "[bold]not bold[/nobody] [@click=app.quit]click[/] \x1b[31mred\u202e" + "x" * 10_000


def write_run(folder: Path, rounds: int = 12) -> EventLog:
    log = EventLog(folder / "ada" / "events.jsonl", node="ada")
    write_rounds(log, range(rounds))
    log.emit(make(types.WaitStarted, what="this client to hear of round 12", until=4e9, then="report anyway"))
    return log


def write_rounds(log: EventLog, heights: Iterable[int]) -> None:
    for height in heights:
        log.emit(make(types.StateChanged, run_state=RunState.ROUND_TRAIN, height=height, step=height, members=2))
        log.emit(make(types.RoundStarted, height=height, step=height))
        log.emit(make(types.Trained, height=height, step=height, loss=5.0 - height / 4, tokens=512, seconds=0.1))


def pilot(source: LogSource, act: Callable[[WatchScreen, Pilot[None]], Awaitable[None]], **size: Any) -> WatchScreen:
    """Drive the screen of a source, as `run_trio` runs it."""
    screen = WatchScreen(play=source if isinstance(source, PlaySource) else None)
    screen._function = lambda: screen.show_sources([source])

    async def run() -> None:
        async with screen.run_test(**({"size": (80, 24)} | size)) as driver:
            await wait_until(driver, lambda: bool(source.view.phase))
            await act(screen, driver)
            await driver.press("q")
            await wait_until(driver, lambda: screen._result is not None)

    asyncio.run(asyncio.wait_for(run(), 120))
    assert screen._result is not None
    screen._result.unwrap()
    return screen


async def wait_until(driver: Pilot[None], is_so: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if is_so():
            return
        await driver.pause(0.02)
    raise AssertionError("it never was")


def read_screen(screen: WatchScreen) -> str:
    """What stands on the terminal, line by line."""
    return "\n".join("".join(part.text for part in line) for line in screen.screen._compositor.render_strips())


def test_the_four_views_show_the_run_and_the_top_line_what_is_waited_for(tmp_path: Path) -> None:
    write_run(tmp_path)

    async def act(screen: WatchScreen, driver: Pilot[None]) -> None:
        await wait_until(driver, lambda: "ada waits for itself to hear of round 12 until" in read_screen(screen))
        await wait_until(driver, lambda: "then report anyway" in " ".join(read_screen(screen).split()))
        await wait_until(driver, lambda: "loss, step 1 to 11" in read_screen(screen))
        await driver.press("2")
        await wait_until(driver, lambda: "weights" in read_screen(screen) or "ada  key ada" in read_screen(screen))
        await driver.press("3")
        await wait_until(driver, lambda: "down now" in read_screen(screen))
        await driver.press("4")
        await wait_until(driver, lambda: screen.query_one(TabbedContent).active == "logs-tab")

    pilot(LogSource(tmp_path), act)


def test_a_long_table_goes_by_under_its_head_and_the_cursor_chooses_a_member(tmp_path: Path) -> None:
    write_run(tmp_path)
    for number in range(40):
        log = EventLog(tmp_path / f"client-{number}" / "events.jsonl", node=f"client-{number}")
        log.emit(make(types.Trained, step=number, loss=float(number)))

    async def act(screen: WatchScreen, driver: Pilot[None]) -> None:
        await driver.press("2")
        await wait_until(driver, lambda: "ada  key ada" in read_screen(screen))
        await driver.press("tab", "end")
        await wait_until(driver, lambda: "client-39  key client-39" in read_screen(screen))
        drawn = read_screen(screen).splitlines()
        shown = [line.split()[1] for line in drawn if "client-" in line and "key" not in line]
        assert shown == [f"client-{number}" for number in range(40 - len(shown), 40)]
        assert "member" in read_screen(screen)
        await driver.press("up", "pageup")
        await wait_until(driver, lambda: f"client-{39 - len(shown)}  key" in read_screen(screen))

    pilot(LogSource(tmp_path), act)


@pytest.mark.whole
def test_what_gets_more_lines_is_laid_out_anew(tmp_path: Path) -> None:
    log = write_run(tmp_path, rounds=1)

    async def act(screen: WatchScreen, driver: Pilot[None]) -> None:
        await wait_until(driver, lambda: "report anyway" in " ".join(read_screen(screen).split()))
        write_rounds(log, range(1, 5))
        await wait_until(driver, lambda: "loss, step 1 to 4" in read_screen(screen))
        log.emit(types.Error(message="out of memory"))
        await wait_until(driver, lambda: "! ada reports an error" in read_screen(screen))
        assert "took" in read_screen(screen)

    pilot(LogSource(tmp_path), act)


def test_what_strangers_say_is_no_markup_and_moves_no_cursor(tmp_path: Path) -> None:
    log = write_run(tmp_path)
    log.emit(types.Error(message=MARKUP))

    async def act(screen: WatchScreen, driver: Pilot[None]) -> None:
        await wait_until(driver, lambda: "[bold]not bold[/nobody]" in read_screen(screen))
        for view in ("2", "4"):
            await driver.press(view)
            await wait_until(driver, lambda: "[@click=app.quit]click[/]" in read_screen(screen))
        assert not {"\x1b", "\u202e"} & set(read_screen(screen))
        lines = screen.query_one(RichLog).lines
        assert any("[bold]not bold[/nobody]" in line.text for line in lines)

    pilot(LogSource(tmp_path), act)


@pytest.mark.whole
@pytest.mark.parametrize("size", [(20, 6), (80, 24), (200, 60)])
def test_every_view_is_drawn_on_terminals_of_all_sizes(tmp_path: Path, size: tuple[int, int]) -> None:
    write_run(tmp_path)

    async def act(screen: WatchScreen, driver: Pilot[None]) -> None:
        for view in "1234":
            await driver.press(view)
            await driver.pause(0.05)
        await driver.resize_terminal(100, 30)
        await driver.press("1")
        await wait_until(driver, lambda: "ada waits for itself" in read_screen(screen))
        await wait_until(driver, lambda: max(map(len, read_screen(screen).splitlines())) == 100)

    pilot(LogSource(tmp_path), act, size=size)


def test_a_source_that_fails_ends_the_screen_with_its_error(tmp_path: Path) -> None:
    screen = WatchScreen()

    async def fail() -> None:
        raise ValueError("no such run")

    screen._function = fail

    async def run() -> None:
        async with screen.run_test() as driver:
            await wait_until(driver, lambda: screen._result is not None)

    asyncio.run(run())
    assert screen._result is not None
    with pytest.raises(ValueError, match="no such run"):
        screen._result.unwrap()


def test_a_curve_goes_from_its_greatest_value_to_its_least() -> None:
    lines = draw_line((4.0, 3.0, 2.0, 1.0), 18, 2).splitlines()
    assert lines[0].split()[0] == "4.000"
    assert lines[1].split()[0] == "1.000"
    assert [len(line) for line in lines] == [18, 18]
    assert lines[0][8] != "\u2800" == lines[1][8]
    assert lines[0][-1] == "\u2800" != lines[1][-1]
    assert "\u2800" * 10 not in draw_line((2.0, 2.0), 18, 1)


def write_old_run(folder: Path) -> None:
    """Ten seconds a round, long ago."""
    clock = [1_000.0]
    log = EventLog(folder / "ada" / "events.jsonl", node="ada", now=lambda: clock[0])
    for height in range(30):
        log.emit(make(types.StateChanged, run_state=RunState.ROUND_TRAIN, epoch=1, height=height, step=height))
        log.emit(make(types.RoundStarted, epoch=1, height=height, step=height))
        clock[0] += 10


@pytest.mark.whole
def test_a_replay_goes_on_back_and_to_a_round_and_shows_only_what_was_known_then(tmp_path: Path) -> None:
    write_old_run(tmp_path)
    source, whole = PlaySource(tmp_path), LogSource(tmp_path)
    while whole.read():
        pass
    source.is_playing = False

    async def act(screen: WatchScreen, driver: Pilot[None]) -> None:
        async def press(height: int, *keys: str) -> None:
            await driver.press(*keys)
            await wait_until(driver, lambda: (source.view.height, source.view.updated) == (height, 1_000 + 10 * height))

        await press(0)
        await press(2, "right", "right")
        await press(1, "left")
        await press(17, "g", *"1.17", "enter")
        await press(5, "g", *"5", "enter")
        await driver.press("g", *"9.9", "enter")
        await wait_until(driver, lambda: any("no such round" in one.message for one in screen._notifications))
        await driver.press("plus", "plus", "space")
        await wait_until(driver, lambda: source.at == source.end)
        await wait_until(driver, lambda: "60x" in read_screen(screen))
        await wait_until(driver, lambda: source.view.revision == whole.view.revision)
        await driver.press("space")
        await driver.click("#scrubber", offset=(30, 0))
        await wait_until(driver, lambda: source.view.revision < whole.view.revision)

    pilot(source, act)


def test_a_folder_without_rounds_cannot_be_played(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no round to play"):
        PlaySource(tmp_path).read()


# --- on a terminal -----------------------------------------------------------------------------------


def test_on_a_terminal_it_is_drawn_resized_and_left_by_ctrl_c(tmp_path: Path) -> None:
    write_run(tmp_path)
    with open_terminal("watch", str(tmp_path), "--tui", NO_COLOR="1") as terminal:
        terminal.wait_for("ada waits for itself", "Members", "Leave")
        terminal.type("2")
        after = terminal.wait_for("key ada")
        terminal.resize(120, 40)
        terminal.wait_for("tok/s", after=after)
        terminal.type("\x03")
        assert terminal.wait_end() == 130
        assert terminal.is_restored
        assert not terminal.has_colour


@pytest.mark.whole
@pytest.mark.parametrize("way", ["q", signal.SIGTERM, signal.SIGINT])
def test_it_restores_the_terminal_whatever_ends_it(tmp_path: Path, way: str | signal.Signals) -> None:
    write_run(tmp_path)
    with open_terminal("watch", str(tmp_path), "--tui") as terminal:
        terminal.wait_for("ada waits for itself", "Leave")
        assert terminal.has_colour
        if isinstance(way, str):
            terminal.type(way)
        else:
            terminal.process.send_signal(way)
        assert terminal.wait_end() == (0 if way == "q" else 130)
        assert terminal.is_restored


def test_without_a_terminal_it_prints_lines(tmp_path: Path) -> None:
    write_run(tmp_path)
    command = [sys.executable, "-m", "psyche", "watch", str(tmp_path), "--tui", "--once"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "ada waits for itself to hear of round 12" in done.stdout


@contextlib.contextmanager
def run_server(folder: Path, state: Path = ROOT / "config" / "dummy") -> Iterator[tuple[str, ...]]:
    """A server of a run without members, which answers; gives the options that name it."""
    port = choose_port()
    words = ["--state", str(state), "--state-dir", str(folder), "--bind-ip", "127.0.0.1"]
    command = [sys.executable, "-m", "psyche", "server", "run", *words, "--server-port", str(port), "--logs", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "its first line says that it listens: its key is there"
            yield "--server-addr", f"127.0.0.1:{port}", "--state-dir", str(folder)
        finally:
            process.kill()


@pytest.mark.whole
def test_the_owner_pauses_and_resumes_a_run_after_a_question(tmp_path: Path) -> None:
    with run_server(tmp_path / "server") as options, open_terminal("watch", *options, "--tui") as terminal:
        after = terminal.wait_for("learning rate", "Pause/resume")  # the backend has answered
        terminal.type("p")
        after = terminal.wait_for("Pause the run?", after=after)
        terminal.type("n")
        terminal.type("p")
        after = terminal.wait_for("Pause the run?", after=after)
        terminal.type("y")
        after = terminal.wait_for("the run is paused: all wait for its owner", after=after)
        terminal.type("p")
        after = terminal.wait_for("Resume the run?", after=after)
        terminal.type("y")
        terminal.wait_for("waiting for", after=after)
        terminal.type("q")
        assert terminal.wait_end() == 0
