"""The tutorial, as it stands on the page: every command run, in a fresh folder."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from kits.run_files import choose_neighbours

from psyche.testnet.process import Child, stop_all

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEADLINE_S = 300.0  # of one step; only a broken run reaches it
POLL_S = 1.5  # each look is a process that imports much; rarer ones miss what they wait for, on a busy machine


@dataclass(frozen=True)
class Block:
    """A fenced block; `options` are the words after its language, as in `until="paused"`."""

    language: str
    options: dict[str, str]
    text: str


def read_blocks() -> list[Block]:
    found: list[Block] = []
    for language, options, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        pairs = (option.partition("=") for option in shlex.split(options))
        found.append(Block(language, {name: value for name, _, value in pairs}, text))
    return found


class Reader:
    """Somebody who does what the page says, in a folder with ports of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {"19400": str(choose_neighbours())}
        self.terminals: dict[str, Child] = {}
        self._bin = Path(sys.executable).parent

    async def follow(self, block: Block) -> None:
        text = block.text
        for number, port in self.ports.items():
            text = text.replace(number, port)
        if "terminal" in block.options:
            self._open_terminal(block.options["terminal"], text)
        elif "kill" in block.options:
            self.terminals[block.options["kill"]].send(signal.SIGKILL)
            await self.terminals[block.options["kill"]].wait()
        else:
            await self._run(text, block.options)

    def _open_terminal(self, name: str, command: str) -> None:
        output = self.folder / f"{name}-{len(self.terminals)}.log"
        self.terminals[name] = Child(name, ["/bin/bash", "-c", self._get_script(f"exec {command}")], output=output)

    def _get_script(self, command: str) -> str:
        return f"cd {shlex.quote(str(self.folder))} && export PATH={shlex.quote(str(self._bin))}:$PATH && {command}"

    async def _run(self, command: str, options: dict[str, str]) -> None:
        wanted = re.compile(options.get("until", ""))
        while True:
            done = await trio.run_process(
                ["/bin/bash", "-c", self._get_script(command)],
                capture_stdout=True, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
            output = done.stdout.decode()
            if "until" not in options:
                assert done.returncode == 0, f"{command}\n{output}"
                return
            if done.returncode == 0 and wanted.search(output):
                return
            assert "finished" not in output, f"the run was over before it was {options['until']}: {output}"
            await trio.sleep(POLL_S)


def get_commands() -> Iterator[str]:
    return (block.text for block in read_blocks() if block.language == "bash")


def test_every_command_of_the_tutorial_is_one_line() -> None:
    assert all(text.count("\n") == 1 for text in get_commands())


def test_the_tutorial_shows_pause_kill_and_resume() -> None:
    text = "".join(get_commands())
    assert all(word in text for word in ("psyche init", "run pause", "run resume", "kill -9", "client train"))


@pytest.mark.e2e
@pytest.mark.slow
async def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "reader")
    reader.folder.mkdir()
    try:
        for block in read_blocks():
            with trio.fail_after(DEADLINE_S):
                await reader.follow(block)
    except BaseException:
        for name, child in reader.terminals.items():
            print(f"--- {name}", *child.get_last_lines(30), sep="\n")
        raise
    finally:
        with trio.move_on_after(60) as scope:
            scope.shield = True
            await stop_all([reader.terminals[name] for name in ("ada", "ben") if name in reader.terminals], 10)
            await stop_all(list(reader.terminals.values()), 10)
    assert {name: child.returncode for name, child in reader.terminals.items()} == {"server": 0, "ada": 130, "ben": 130}
