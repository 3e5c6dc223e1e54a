"""Runs the checks one after another, reports how long each took, and ends with pytest's summary line.

With arguments: runs pytest only, with these arguments. With --checks: neither tests nor simulated rounds.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SIMULATED_ROUNDS = 9_500  # about 380 seeds, a few of them on a chain: five minutes on two cores
STOP_S = 20  # for a check to end after Ctrl-C
WORKERS = 2
COVER_CORE = ["-p", "scripts.cover_core"]
BY_FILE = ["--dist=loadfile", "--no-loadscope-reorder"]  # otherwise the longest files would come last
CLOSING = re.compile(r"^=+ .*\b(passed|failed|error|errors|no tests ran)\b.* in .*=+$")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Stage:
    name: str
    command: list[str]


@dataclass(frozen=True)
class Outcome:
    stage: Stage
    returncode: int
    seconds: float
    closing: str


def get_checks() -> list[Stage]:
    return [
        Stage("lint", [str(BIN / "ruff"), "check", "."]),
        Stage("format", [str(BIN / "ruff"), "format", "--check", "."]),
        Stage("types", [str(BIN / "basedpyright")]),
        Stage("floors", [str(BIN / "lint-imports")]),
        Stage("circles", [sys.executable, "scripts/check_circles.py"]),
        Stage("dead code", [sys.executable, "scripts/check_dead_code.py"]),
        Stage("size budget", [sys.executable, "scripts/check_budget.py"]),
    ]


def get_tests(seed: int) -> list[Stage]:
    pytest = ["-m", "pytest", f"--hypothesis-seed={seed}", *get_color()]
    coverage = [sys.executable, "-m", "coverage"]
    return [
        # A file's tests stay together on one of two workers: they share processes that are slow to start.
        Stage("tests", [sys.executable, *pytest, *COVER_CORE, "--durations=10", f"-n{WORKERS}", *BY_FILE]),
        Stage("coverage data", [*coverage, "combine", "--quiet"]),
        Stage("coverage of core", [*coverage, "report", "--fail-under=100", "--skip-covered", "-m"]),
        Stage("other Pythons", [sys.executable, "scripts/check_versions.py"]),
    ]


def get_programs() -> list[Stage]:
    """The Solana programs: built again where a commit of the last day changed them, else only compared by digests.

    Their rules are tested where there is a cargo.
    """
    build = ["bash", "scripts/build-programs"]
    stages = [Stage("built programs", [*build, "--check", "--recent"])]
    return [*stages, Stage("rules in Rust", [*build, "--test"])] if shutil.which("cargo") else stages


def get_simulations(seed: int) -> Stage:
    """Simulations of fresh seeds; a failing one prints how to replay it."""
    soak = [
        sys.executable,
        "scripts/soak.py",
        "--backend",
        "both",
        "--from",
        str(seed),
        "--rounds",
        str(SIMULATED_ROUNDS),
    ]
    return Stage("simulated rounds", soak)


def get_color() -> list[str]:
    return ["--color=yes"] if sys.stdout.isatty() else []


def show(stage: Stage, more: str = "") -> None:
    shown = " ".join([Path(stage.command[0]).name, *stage.command[1:]])
    print(f"\n--- {stage.name}{more}: {shown}")
    sys.stdout.flush()


@contextmanager
def running_beside(stage: Stage) -> Iterator[Callable[[], Outcome]]:
    """Run a stage on spare CPU time: type checks use one processor, and tests of whole runs often wait.

    Yields a function that waits for the stage's end and shows its output.
    """
    started = time.monotonic()
    command = ["nice", "-n", "19", *stage.command]
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True) as process,
    ):

        def finish() -> Outcome:
            show(stage, ", begun beside the tests")
            returncode = process.wait()
            output.seek(0)
            sys.stdout.write(output.read())
            return Outcome(stage, returncode, time.monotonic() - started, "")

        try:
            yield finish
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def run(stage: Stage) -> Outcome:
    """Run one stage with its output passed through."""
    show(stage)
    started = time.monotonic()
    closing = ""
    with subprocess.Popen(
        stage.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                if CLOSING.match(ANSI.sub("", line.rstrip())):
                    closing = line.rstrip()
            returncode = process.wait()
        except KeyboardInterrupt:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return Outcome(stage, returncode, time.monotonic() - started, closing)


def run_pytest_alone(arguments: list[str]) -> int:
    seeded = any(argument.startswith("--hypothesis-seed") for argument in arguments)
    seed = [] if seeded else [f"--hypothesis-seed={random.randrange(1 << 32)}"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *get_color(), *seed, *arguments], cwd=ROOT, check=False
    ).returncode


def summarize(outcomes: list[Outcome], seed: int, seconds: float) -> int:
    """Print the table of stages, and the tests' summary line last."""
    print(f"\n--- Python {sys.version.split()[0]}, seed {seed} of all random choices")
    for outcome in outcomes:
        verdict = "ok" if outcome.returncode == 0 else f"FAILED ({outcome.returncode})"
        print(f"{outcome.stage.name:<18} {outcome.seconds:7.1f} s  {verdict}")
    print(f"{'in all':<18} {seconds:7.1f} s")
    failed = [outcome.stage for outcome in outcomes if outcome.returncode != 0]
    if any(stage.name == "tests" for stage in failed):
        print(f"The same random choices again: bash scripts/test --hypothesis-seed={seed}")
    for outcome in outcomes:
        if outcome.closing:
            print(outcome.closing)
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    only_checks = arguments == ["--checks"]
    if arguments and not only_checks:
        return run_pytest_alone(arguments)
    seed, started = random.randrange(1 << 32), time.monotonic()
    if only_checks:
        return summarize([run(stage) for stage in get_checks()], seed, time.monotonic() - started)
    with running_beside(get_simulations(seed)) as finish_simulations:
        outcomes = [run(stage) for stage in [*get_checks(), *get_programs(), *get_tests(seed)]]
        outcomes.append(finish_simulations())
    return summarize(outcomes, seed, time.monotonic() - started)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave nothing behind
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nStopped.")
        sys.exit(130)
