"""A screen gets its parent's terminal and gives it back whatever ends it; the parent notices nothing else."""

import os
import signal
import time
from pathlib import Path

from watch.terminal_kit import open_terminal

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


def test_a_screen_that_hangs_ends_with_its_node(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT.replace("range(600)", "range(10)"))
    with open_terminal(SCREEN, program=[str(tmp_path / "parent.py")]) as terminal:
        terminal.wait_for("screen")
        pid = int(terminal.text.split("screen")[0].split()[-1])
        os.kill(pid, signal.SIGSTOP)
        assert terminal.wait_end() == 0
        assert terminal.is_restored
        assert not Path(f"/proc/{pid}").exists()
