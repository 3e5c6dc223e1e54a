"""What runs beside a node: it leaves the terminal as it was, and whatever becomes of it, the node goes on."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import trio
from watch.page_kit import Logs
from watch.terminal_kit import open_terminal

from psyche.testnet import companion
from psyche.testnet.companion import open_watch

DEADLINE_S = 120.0

PARENT = """
import sys, trio
from psyche.telemetry.console import Console
from psyche.testnet.companion import open_screen

async def main():
    console = Console()
    async with open_screen([sys.executable, "-c", sys.argv[1]], console):
        console.print("held while the screen is there")
        for number in range(600):
            console.set_status(f"round {number}")
            await trio.sleep(0.05)

try:
    trio.run(main)
except KeyboardInterrupt:
    print("interrupted")
"""
SCREEN = """
import os, sys, time, tty
tty.setraw(0)
print("\\x1b[?1049h\\x1b[?25l", os.getpid(), "screen", flush=True)
key = os.read(0, 1)
if key == b"c":
    print("\\x1b[?1049l\\x1b[?25h", flush=True)
    sys.exit(130)
time.sleep(600)
"""
SPEAK = """
import time
while True:
    print("." * 90)
    time.sleep(0.001)
"""


def test_a_killed_screen_gives_the_terminal_back_with_the_lines_that_it_hid(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    with open_terminal(SCREEN, program=[str(tmp_path / "parent.py")]) as terminal:
        terminal.wait_for("screen")
        pid = int(terminal.text.split("screen")[0].split()[-1])
        assert "held" not in terminal.text
        os.kill(pid, signal.SIGSTOP)  # a screen that hangs
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        terminal.wait_for("the screen has ended, killed by SIGKILL", "held while the screen is there", "round")
        assert terminal.is_restored


def test_ctrl_c_in_the_screen_interrupts_the_node(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    with open_terminal(SCREEN, program=[str(tmp_path / "parent.py")]) as terminal:
        terminal.wait_for("screen")
        terminal.type("c")
        assert terminal.wait_end() == 0
        assert "interrupted" in terminal.text
        assert terminal.is_restored


@pytest.mark.whole
def test_a_screen_that_hangs_ends_with_its_node(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT.replace("range(600)", "range(10)"))
    with open_terminal(SCREEN, program=[str(tmp_path / "parent.py")]) as terminal:
        terminal.wait_for("screen")
        pid = int(terminal.text.split("screen")[0].split()[-1])
        os.kill(pid, signal.SIGSTOP)
        assert terminal.wait_end() == 0
        assert terminal.is_restored
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.whole
async def test_a_watcher_in_the_background_writes_until_its_node_ends_and_then_what_is_left(tmp_path: Path) -> None:
    folder, table = tmp_path / "logs", tmp_path / "run.csv"
    folder.mkdir()
    async with open_watch([folder, f"--csv={table}"], tmp_path / "watch.log") as child:
        with trio.fail_after(DEADLINE_S):
            while not table.exists():
                await trio.sleep(0.05)
            logs = Logs(folder, run_id="known later")
            logs.play(0)
            logs.play(1)  # which is left for the end
            while not table.exists() or len(table.read_text().splitlines()) < 4:
                await trio.sleep(0.05)
    assert child.returncode == 0, child.get_last_lines(5)
    lines = [line.split(",")[:2] for line in table.read_text().splitlines()]
    assert lines == [["run", "step"], *(["known later", step] for step in "111222")]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_watcher_that_hangs_or_dies_is_nothing_to_its_node(tmp_path: Path, number: signal.Signals) -> None:
    logs, did = Logs(tmp_path / "logs"), 0
    async with open_watch([logs.folder, f"--csv={tmp_path / 'run.csv'}"], tmp_path / "watch.log", 0.1) as child:
        with trio.fail_after(DEADLINE_S):
            while not (tmp_path / "run.csv").exists():
                await trio.sleep(0.05)
        child.send(number)
        for _ in range(10):
            await trio.sleep(0.01)
            did += 1
    assert did == 10
    assert child.returncode == -signal.SIGKILL


async def test_what_a_watcher_prints_is_moved_aside_where_it_is_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companion, "MAX_OUTPUT_BYTES", 10_000)
    monkeypatch.setattr(companion, "BOUND_S", 0.02)
    monkeypatch.setattr(companion, "WATCH", (sys.executable, "-uc", SPEAK))
    output, aside = tmp_path / "watch.log", tmp_path / "watch.log.1"
    async with open_watch([], output):
        with trio.fail_after(DEADLINE_S):
            while not aside.exists() or not output.read_bytes().startswith(b"."):
                await trio.sleep(0.02)
    assert aside.stat().st_size > 10_000
