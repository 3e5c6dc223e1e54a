"""Readers of the documentation: one follows a page, block by block; another takes its examples of bytes."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from psyche.testnet.process import Child, stop_all

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEADLINE_S = 300.0  # of one step; only a broken run reaches it
POLL_S = 1.5  # each look is a process that imports much; rarer ones miss what they wait for, on a busy machine


@dataclass(frozen=True)
class Block:
    """A fenced block; `options` are the words after its language, as in `until="paused"`."""

    language: str
    options: dict[str, str]
    text: str


def read_blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    for language, options, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        pairs = (option.partition("=") for option in shlex.split(options))
        found.append(Block(language, {name: value for name, _, value in pairs}, text))
    return found


class Reader:
    """Does what a page says, in a folder; `ports` stand there for those of the page, and for its addresses.

    Another machine, which a block names, is a folder beside it; `brings` names what is copied there first.
    """

    def __init__(self, folder: Path, ports: dict[str, str]) -> None:
        self.folder = folder
        self.ports = ports
        self.terminals: dict[str, Child] = {}
        self._bin = Path(sys.executable).parent

    async def follow(self, block: Block) -> None:
        text = block.text
        for number, port in self.ports.items():
            text = text.replace(number, port)
        folder = self.folder.parent / block.options.get("machine", self.folder.name)
        if "brings" in block.options:
            shutil.copytree(self.folder / block.options["brings"], folder / block.options["brings"])
        if "terminal" in block.options:
            self._open_terminal(block.options["terminal"], text, folder)
        elif "kill" in block.options:
            self.terminals[block.options["kill"]].send(signal.SIGKILL)
            await self.terminals[block.options["kill"]].wait()
        else:
            await self._run(text, block.options, folder)

    def _open_terminal(self, name: str, command: str, folder: Path) -> None:
        output = self.folder / f"{name}-{len(self.terminals)}.log"
        self.terminals[name] = Child(
            name, ["/bin/bash", "-c", self._get_script(f"exec {command}", folder)], output=output
        )

    def _get_script(self, command: str, folder: Path) -> str:
        return f"set -e; cd {shlex.quote(str(folder))}; export PATH={shlex.quote(str(self._bin))}:$PATH; {command}"

    async def _run(self, command: str, options: dict[str, str], folder: Path) -> None:
        wanted = re.compile(options.get("until", ""))
        while True:
            done = await trio.run_process(
                ["/bin/bash", "-c", self._get_script(command, folder)],
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


@asynccontextmanager
async def open_reader(folder: Path, ports: dict[str, str], first: tuple[str, ...] = ()) -> AsyncIterator[Reader]:
    """A reader in a new folder; at the end its terminals are stopped, `first` before all, and shown if it failed."""
    folder.mkdir()
    reader = Reader(folder, ports)
    try:
        yield reader
    except BaseException:
        for name, child in reader.terminals.items():
            print(f"--- {name}", *child.get_last_lines(30), sep="\n")
        raise
    finally:
        with trio.move_on_after(60) as scope:
            scope.shield = True
            await stop_all([reader.terminals[name] for name in first if name in reader.terminals], 10)
            await stop_all(list(reader.terminals.values()), 10)


class Page:
    """A page whose examples lie between markers; in an example each line has a name and bytes in hex."""

    def __init__(self, name: str) -> None:
        self._text = (DOCS / name).read_text(encoding="utf-8")

    def read_block(self, name: str) -> str:
        found = re.search(rf"<!-- BEGIN {name} -->\n(.*?)<!-- END {name} -->", self._text, re.DOTALL)
        assert found is not None, f"the page has no block {name!r}"
        return found[1]

    def read_examples(self, block: str) -> list[dict[str, bytes]]:
        """The parts of each example by their names, the whole as "" too; of parts of one name only the last."""
        examples: list[dict[str, bytes]] = []
        for text in re.findall(r"```text\n(.*?)```", self.read_block(block), re.DOTALL):
            parts: dict[str, bytes] = {"": b""}
            label = ""
            for line in text.splitlines():
                head, _, raw = line.rpartition("  ")
                label = head.strip() or label
                parts[label] = (parts.get(label, b"") if not head.strip() else b"") + bytes.fromhex(raw)
                parts[""] += bytes.fromhex(raw)
            examples.append(parts)
        return examples

    def read_bytes(self, block: str) -> list[bytes]:
        return [parts[""] for parts in self.read_examples(block)]

    def read_value(self, block: str, name: str) -> bytes:
        """A value in the text, written as `name: hex`."""
        found = re.search(rf"{re.escape(name)}: `([0-9a-f]+)`", self.read_block(block))
        assert found is not None, f"{block}: no {name}"
        return bytes.fromhex(found[1])
