"""Runs the checks, reports how long each took, and ends with pytest's summary line; `bash scripts/test --help`.

tests/kits/tier.py says what the two tiers leave out, and how much each does of the rest.
"""

import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from kits.tier import TIERS, VARIABLE  # noqa: E402

BIN = Path(sys.executable).parent
STAMP = BIN.parent / ".whole-tests"  # when the second tier was run last
STOP_S = 20  # for a check to end after Ctrl-C
WORKERS = {"first": 4, "whole": 2}  # on two cores: many tests wait, and those of the second tier start many processes
# A file's tests stay together: they share processes that are slow to start. tests/conftest.py puts long files first.
BY_FILE = ["--dist=loadfile", "--no-loadscope-reorder"]
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
    closing: str = ""


def get_checks() -> list[Stage]:
    return [
        Stage("lint", [str(BIN / "ruff"), "check", "."]),
        Stage("format", [str(BIN / "ruff"), "format", "--check", "."]),
        Stage("floors", [str(BIN / "lint-imports")]),
        Stage("circles", [sys.executable, "scripts/check_circles.py"]),
        Stage("dead code", [sys.executable, "scripts/check_dead_code.py"]),
        Stage("size budget", [sys.executable, "scripts/check_budget.py"]),
    ]


def get_types() -> Stage:
    return Stage("types", [str(BIN / "basedpyright")])


def get_tests(tier: str, seed: int) -> list[Stage]:
    pytest = [sys.executable, "-m", "pytest", f"--hypothesis-seed={seed}", *get_color(), "-p", "scripts.cover_core"]
    coverage = [sys.executable, "-m", "coverage"]
    stages = [
        Stage("tests", [*pytest, "--durations=10", f"-n{WORKERS[tier]}", *BY_FILE]),
        Stage("coverage data", [*coverage, "combine", "--quiet"]),
        Stage("coverage of core", [*coverage, "report", "--fail-under=100", "--skip-covered", "-m"]),
    ]
    return (
        [*stages, Stage("other Pythons", [sys.executable, "scripts/check_versions.py"])] if tier == "whole" else stages
    )


def get_bytecode() -> Stage:
    """Compile tests and what they import, once: else each worker of the tests does so, all at the same time."""
    collect = f"{shlex.quote(sys.executable)} -m pytest --collect-only -qq -p no:cacheprovider"
    return Stage("bytecode", ["bash", "-c", f"set -o pipefail; {collect} | tail -n 3"])


def get_programs(tier: str) -> list[Stage]:
    """The Solana programs: their digests; in the second tier they are built again where a day's commits changed them.

    Their rules are tested where there is a cargo.
    """
    build = ["bash", "scripts/build-programs"]
    stages = [Stage("built programs", [*build, *(["--check", "--recent"] if tier == "whole" else ["--verify"])])]
    return [*stages, Stage("rules in Rust", [*build, "--test"])] if shutil.which("cargo") else stages


def get_simulations(tier: str, seed: int) -> Stage:
    """Simulations of fresh seeds; a failing one prints how to replay it."""
    soak = ["scripts/soak.py", "--backend", "both", "--from", str(seed), "--rounds", str(TIERS[tier].simulated_rounds)]
    return Stage("simulated rounds", [sys.executable, *soak])


def get_color() -> list[str]:
    return ["--color=yes"] if sys.stdout.isatty() else []


def show(stage: Stage, more: str = "") -> None:
    shown = " ".join([Path(stage.command[0]).name, *stage.command[1:]])
    print(f"\n--- {stage.name}{more}: {shown}", flush=True)


@contextmanager
def running_beside(stages: Sequence[Stage], niceness: int = 19) -> Iterator[Callable[[], list[Outcome]]]:
    """Run these stages at once, on spare CPU time: type checks use one processor, and tests of whole runs often wait.

    Yields a function that waits for their ends and shows what they printed.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(number) for number in range(len(stages))]
        processes = [
            subprocess.Popen(
                ["nice", "-n", str(niceness), *stage.command],
                cwd=ROOT, stdout=output.open("w"), stderr=subprocess.STDOUT, start_new_session=True,
            )
            for stage, output in zip(stages, outputs, strict=True)
        ]  # fmt: skip

        def finish() -> list[Outcome]:
            found: list[Outcome] = []
            for stage, process, output in zip(stages, processes, outputs, strict=True):
                returncode = process.wait()
                show(stage, ", begun beside other stages")
                print(output.read_text(), end="", flush=True)
                found.append(Outcome(stage, returncode, time.monotonic() - started))
            return found

        try:
            yield finish
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


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
                print(line, end="", flush=True)
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
    """Print the table of stages, when everything was run last, and the tests' summary line."""
    print(f"\n--- Python {sys.version.split()[0]}, seed {seed} of all random choices")
    for outcome in outcomes:
        verdict = "ok" if outcome.returncode == 0 else f"FAILED ({outcome.returncode})"
        print(f"{outcome.stage.name:<18} {outcome.seconds:7.1f} s  {verdict}")
    print(f"{'in all':<18} {seconds:7.1f} s")
    failed = [outcome.stage for outcome in outcomes if outcome.returncode != 0]
    if any(stage.name == "tests" for stage in failed):
        print(f"The same random choices again: bash scripts/test --hypothesis-seed={seed}")
    print(f"Everything (`bash scripts/test --all`) was run last: {read_stamp()}")
    for outcome in outcomes:
        if outcome.closing:
            print(outcome.closing)
    return 1 if failed else 0


def read_stamp() -> str:
    return STAMP.read_text().strip() if STAMP.exists() else "never in this checkout"


def write_stamp(outcomes: list[Outcome]) -> None:
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "no commit"
    failed = [outcome.stage.name for outcome in outcomes if outcome.returncode != 0]
    verdict = f"failed: {', '.join(failed)}" if failed else "all was well"
    STAMP.write_text(f"{time.strftime('%Y-%m-%d %H:%M')}, {commit}, {verdict}\n")


def main(arguments: list[str]) -> int:
    seed, started = random.randrange(1 << 32), time.monotonic()
    tier = "whole" if "--all" in arguments else "first"
    arguments = [argument for argument in arguments if argument != "--all"]
    os.environ[VARIABLE] = tier
    if arguments == ["--checks"]:
        return summarize([run(stage) for stage in [*get_checks(), get_types()]], seed, time.monotonic() - started)
    if arguments:
        return run_pytest_alone(arguments)
    with running_beside([get_types(), get_simulations(tier, seed)]) as finish:
        with running_beside([get_bytecode()], niceness=0) as compiled:  # the tests wait for it
            outcomes = [run(stage) for stage in [*get_checks(), *get_programs(tier)]]
            outcomes += compiled()
        outcomes += [run(stage) for stage in get_tests(tier, seed)]
        outcomes += finish()
    if tier == "whole":
        write_stamp(outcomes)
    return summarize(outcomes, seed, time.monotonic() - started)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave nothing behind
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nStopped.")
        sys.exit(130)
