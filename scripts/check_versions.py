"""Runs what needs no torch on every other supported Python of this machine, and compares simulated runs.

The tests below must pass on each, and a run simulated there must have the event log that it has here, byte for byte.
Each version gets an environment in .venv/versions, made by uv from requirements/dev.lock without what is large.
A version that is not on this machine is named and skipped.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
VERSIONS = ["3.11", "3.12", "3.13"]
# Large, and needed only by what trains or draws.
LEFT_OUT = re.compile(
    r"torch|triton|nvidia|cuda|transformers|tokenizers|basedpyright|nodejs|pyarrow|zensical", re.IGNORECASE
)
TESTS = ["tests/core/state", "tests/core/rules", "tests/core/committee", "tests/core/encoding", "tests/conformance",
  "tests/wire", "tests/config", "tests/telemetry"]  # fmt: skip
SIMULATED = ["-m", "psyche", "simulate", "--state", "config/llama-20m", "--clients", "8", "--profile",
  "config/profiles/home.toml", "--parameters", "2e7", "--seed", "3", "--no-suggestions"]  # fmt: skip
HOMES = [["--rounds", "8"], ["--rounds", "2", "--backend", "solana"]]
LIMIT_S = 600


def find_python(version: str) -> Path | None:
    """An interpreter of this version: on the path, or one that pyenv or uv has installed."""
    places = [Path(folder) / f"python{version}" for folder in os.environ.get("PATH", "").split(os.pathsep)]
    homes = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    homes.append(Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python")))
    for home in homes:
        places += sorted(home.glob(f"*{version}.*/bin/python{version}"))
    return next((place for place in places if place.exists() and get_version(place) == version), None)


def get_version(python: Path) -> str | None:
    """The version that an interpreter says it has; None for one that does not start, as pyenv's shims."""
    asked = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def get_packages() -> str:
    lines = (ROOT / "requirements" / "dev.lock").read_text().splitlines()
    return "".join(f"{line}\n" for line in lines if not LEFT_OUT.match(line))


def prepare(version: str, python: Path) -> Path:
    """Make the version's environment, or find it whole; return its interpreter."""
    home = BIN.parent / "versions" / version
    packages, stamp = get_packages(), home / "packages.txt"
    if not stamp.exists() or stamp.read_text() != packages:
        subprocess.run([BIN / "uv", "venv", "--quiet", "--clear", "--python", python, home], check=True)
        install = [BIN / "uv", "pip", "install", "--quiet", "--python", home / "bin/python", "--no-deps", "-r", "-"]
        subprocess.run(install, input=packages, text=True, check=True)
        stamp.write_text(packages)
    return home / "bin/python"


def get_environment(version: str) -> dict[str, str]:
    """Sources are found by path; bytecode stays out of the checkout."""
    bytecode = str(BIN.parent / "versions" / f"bytecode-{version}")
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": bytecode, "NO_COLOR": "1"}


def simulate(python: Path, version: str) -> str:
    """The SHA-256 of the event logs of a run that is simulated with both backends."""
    return hashlib.sha256(b"".join(play(python, version, home) for home in HOMES)).hexdigest()


def play(python: Path, version: str, home: list[str]) -> bytes:
    """The event log of a simulated run."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "run.jsonl"
        command = [python, *SIMULATED, *home, "--events", events]
        played = subprocess.run(
            command,
            cwd=ROOT,
            env=get_environment(version),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if played.returncode != 0:
            raise SystemExit(f"Python {version}: the simulation failed:\n{played.stdout}\n{played.stderr}")
        return events.read_bytes()


def run_tests(python: Path, version: str) -> bool:
    command = [python, "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(command, cwd=ROOT, env=get_environment(version), timeout=LIMIT_S, check=False).returncode == 0


def check(version: str, expected: str) -> bool:
    """Whether a version passes; tells what it found."""
    found = find_python(version)
    if found is None:
        print(f"Python {version}: not on this machine, skipped")
        return True
    started = time.monotonic()
    python = prepare(version, found)
    is_same = simulate(python, version) == expected
    is_green = run_tests(python, version)
    log = "the same log" if is_same else "ANOTHER LOG of the same simulated run"
    print(f"Python {version}: tests {'passed' if is_green else 'FAILED'}, {log}, {time.monotonic() - started:.0f} s")
    return is_same and is_green


def main() -> int:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    expected = simulate(Path(sys.executable), here)
    print(f"Python {here}: simulated run {expected[:16]}")
    sys.stdout.flush()
    failed = [version for version in VERSIONS if version != here and not check(version, expected)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
