"""What goes wrong in a build, in words for the person who builds."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class BuildError(Exception):
    """The build cannot go on; the text says why and what to do."""


def run(command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a command and return what it printed; its messages to the error stream pass through.

    Raises BuildError where it is missing or fails, after showing what it printed.
    """
    if shutil.which(command[0]) is None:
        raise BuildError(f"{command[0]} is missing: it is not on PATH.")
    ended = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        print(ended.stdout, file=sys.stderr)
        shown = " ".join(command)
        raise BuildError(f"This failed with exit code {ended.returncode}; what it said is above:\n  {shown}")
    return ended.stdout
