"""Other people's packages, installed once into a cache of the user's; where they cannot be had, tests are skipped."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

INSTALL_S = 300
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "psyche-strangers"


def install(what: str, fill: Callable[[Path], list[list[str]]]) -> Path:
    """The folder with installed packages, named for what is in it. Skips the test where they cannot be had."""
    folder = CACHE / hashlib.sha256(what.encode()).hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "done").exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for command in fill(folder):
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=INSTALL_S, cwd=folder, check=False
                )
            except subprocess.TimeoutExpired:
                pytest.skip(f"{command[0]} did not finish in {INSTALL_S} s")
            if done.returncode:
                pytest.skip(f"{what} cannot be installed here: {(done.stderr or done.stdout)[-300:]}")
        (folder / "done").touch()
    return folder


def install_modules(packages: Path) -> Path:
    """A package.json with its packages of npm beside it."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")

    def fill(folder: Path) -> list[list[str]]:
        shutil.copy(packages, folder)
        return [[npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]]

    return install(packages.read_text(), fill) / packages.name
