"""Runs commands of `psyche` in a process that has only the packages of requirements/server.lock.

    python base_install_child.py FOLDER

For each line of standard input, a command line, prints a line of JSON: its exit code and its output. `server run` gets
Ctrl-C as soon as it listens; its state folder is FOLDER/state.
"""

import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path

from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
OURS = "psyche-train"
WAIT_S = 60.0


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def get_base() -> set[str]:
    """The distributions that `pip install psyche-train` brings."""
    return {line.partition("==")[0] for line in (ROOT / "requirements" / "server.lock").read_text().splitlines()}


class Blocker:
    """Hides the modules of all distributions but those of the base."""

    def __init__(self) -> None:
        base = get_base() | {OURS}
        owners = metadata.packages_distributions()
        self.hidden = {module for module, names in owners.items() if not base & {normalize(name) for name in names}}

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name.partition(".")[0] in self.hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def interrupt_when_listening(state: Path) -> None:
    """Send Ctrl-C to this process once the server in it listens, or after a time in which it should have."""
    deadline = time.monotonic() + WAIT_S
    log = state / "events.jsonl"
    while time.monotonic() < deadline and not (log.exists() and "server_listening" in log.read_text()):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    folder = Path(sys.argv[1])
    sys.meta_path.insert(0, Blocker())
    from psyche.cli.app import app

    for line in sys.stdin:
        arguments = shlex.split(line)
        if arguments[:2] == ["server", "run"]:
            threading.Thread(target=interrupt_when_listening, args=(folder / "state",)).start()
        done = CliRunner().invoke(app, arguments)
        said = done.output + ("" if done.exception is None else repr(done.exception))
        print(json.dumps([done.exit_code, said]), flush=True)


if __name__ == "__main__":
    main()
