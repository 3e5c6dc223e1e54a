"""Mutation testing of psyche.core: makes one change at a time and checks whether a test of core fails.

    python scripts/mutants.py --sample 300     as a sample, drawn by --seed
    python scripts/mutants.py --module tally   all mutants of one module; of several in the order named
    python scripts/mutants.py                  everything
    python scripts/mutants.py --results FILE   resumes an earlier run with that file

The checkout stays unchanged: tests run in a copy of the tree, in forks of a process that has collected them
all. A fork replaces the code of live functions (code that runs at import needs a fork
that imports everything anew). Only tests that run the changed line are run, the fastest first, until one
fails. Mutants equivalent to the original are listed in equivalent_mutants.toml with the reason, and
are not counted.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import mutation_child
from mutation_baseline import CORE, Baseline, compute_hash, find_test_files, measure
from mutations import Mutant, find_mutants

ROOT = Path(__file__).resolve().parent.parent
SEARCHES = "tests/core/properties/test_small_worlds.py"  # strong, and slow
TESTS_COPIED = ("conftest.py", "core", "conformance", "kits", "differential", "model_checker", "vectors")
COPIED = ["psyche", *(f"tests/{name}" for name in TESTS_COPIED), "pyproject.toml", "shared"]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
GRACE_S = 60.0
SLOWER = 10.0  # factor by which all tests together may take longer in real time with a mutant
WIDTH = 30
PLAIN_EVERY_S = 15.0
KILLED = ("killed", "too slow")
SURVIVED = ("survived", "not covered")
Start = Callable[[Path, Mutant, list[str]], int]  # log, mutant, tests -> process id


@dataclass
class Running:
    """A running fork and its mutant."""

    mutant: Mutant
    started: float
    limit_s: float


@dataclass
class Tally:
    """The outcomes of the mutants."""

    outcomes: dict[Mutant, str] = field(default_factory=dict)

    def count(self, module: str, *outcomes: str) -> int:
        return sum(m.path == module and found in outcomes for m, found in self.outcomes.items())


class Results:
    """A file with a line of JSON for each mutant that was run, for people to read and a later run to resume from.

    A killed mutant is not run again while its file of core is unchanged; a survivor, while all tests are.
    """

    def __init__(self, path: Path | None, tree: Path, texts: dict[str, str]) -> None:
        self._path, self._texts = path, texts
        self._tests = compute_hash(tree, CORE, "tests")
        self._known: dict[str, tuple[str, str]] = {}  # from an earlier run
        if path is not None and path.exists():
            rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            self._known = {row["id"]: (row["outcome"], row["tests"]) for row in rows}

    def get(self, mutant: Mutant) -> str | None:
        """The known outcome, if it is still valid."""
        outcome, tests = self._known.get(self._compute_id(mutant), (None, ""))
        return outcome if outcome in KILLED or tests == self._tests else None

    def write(self, mutant: Mutant, outcome: str) -> None:
        if self._path is None:
            return
        before, after = mutant.get_change(self._texts[mutant.path])
        row = {"id": self._compute_id(mutant), "file": mutant.path, "line": mutant.line, "outcome": outcome,
               "tests": self._tests, "before": before, "after": after}  # fmt: skip
        with self._path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")

    def _compute_id(self, mutant: Mutant) -> str:
        text = self._texts[mutant.path]
        return hashlib.sha256(f"{text}\0{mutant.start}\0{mutant.end}\0{mutant.replacement}".encode()).hexdigest()[:20]


def copy_tree(target: Path) -> None:
    """Copy the files that the tests need: tracked files, and untracked ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *COPIED],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


class Runner:
    """Runs mutants in parallel, at most `processes` at once, and reports their outcomes."""

    def __init__(self, work: Path, processes: int, longest_s: float, baseline: Baseline) -> None:
        self._work, self._processes, self._longest_s, self._baseline = work, processes, longest_s, baseline
        self._running: dict[int, Running] = {}

    def run(self, mutants: list[Mutant], start: Start, report: Callable[[Mutant, str], None]) -> None:
        waiting = mutants[::-1]
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._processes:
                    self._start(waiting.pop(), start, report)
                self._collect(report)
        finally:
            for pid in self._running:
                mutation_child.kill(pid)

    def _start(self, mutant: Mutant, start: Start, report: Callable[[Mutant, str], None]) -> None:
        tests = self._baseline.get_tests(mutant, self._longest_s)
        if not tests:
            report(mutant, "not covered")
            return
        limit_s = GRACE_S + SLOWER * sum(self._baseline.seconds[test] for test in tests)
        pid = start(self._work / f"log{len(self._running)}", mutant, tests)
        self._running[pid] = Running(mutant, time.monotonic(), limit_s)

    def _collect(self, report: Callable[[Mutant, str], None]) -> None:
        ended, status = os.waitpid(-1, os.WNOHANG) if self._running else (0, 0)
        if ended in self._running:
            report(self._running.pop(ended).mutant, _name(os.waitstatus_to_exitcode(status)))
            return
        now = time.monotonic()
        for pid, running in list(self._running.items()):
            if now - running.started > running.limit_s:
                mutation_child.kill(pid)
                del self._running[pid]
                report(running.mutant, "too slow")
        time.sleep(0.002)


def _name(code: int) -> str:
    names = {0: "survived", mutation_child.NOT_PATCHED: "to import", -signal.SIGPROF: "too slow"}
    return names.get(code, "killed")


def run_on_stage(
    tree: Path, runner: Runner, seconds: dict[str, float], files: list[str], mutants: list[Mutant],
    report: Callable[[Mutant, str], None],
) -> list[Mutant]:  # fmt: skip
    """Run mutants in forks of one process that has collected all tests; return those that need a new import."""
    reading, writing = os.pipe()
    places = {mutant: place for place, mutant in enumerate(mutants)}

    def play(stage: mutation_child.Stage) -> None:
        def start(log: Path, mutant: Mutant, tests: list[str]) -> int:
            return mutation_child.fork(partial(stage.run, log, mutant, seconds, tests))

        runner.run(mutants, start, lambda m, outcome: _send(writing, places[m], outcome))

    log = tree.parent / "stage.log"
    pid = mutation_child.fork(partial(mutation_child.run_stage, tree, log, files, play))
    os.close(writing)
    left: list[Mutant] = []
    try:
        with os.fdopen(reading, encoding="utf-8") as lines:
            for line in lines:
                place, _, outcome = line.strip().partition(" ")
                if outcome == "to import":
                    left.append(mutants[int(place)])
                else:
                    report(mutants[int(place)], outcome)
    except KeyboardInterrupt:
        mutation_child.kill(pid)
        raise
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"The tests could not be collected:\n{log.read_text()[-3000:]}")
    return left


def _send(pipe: int, place: int, outcome: str) -> None:
    os.write(pipe, f"{place} {outcome}\n".encode())


class Bar:
    """`mutants [########            ] 41 %, 123 of 300, 9 survived, 210 s left`; whole lines without a terminal."""

    def __init__(self) -> None:
        self._began = self._shown = time.monotonic()

    def show(self, tally: Tally, total: int) -> None:
        now, done = time.monotonic(), len(tally.outcomes)
        live = sys.stderr.isatty()
        if now - self._shown < (0.2 if live else PLAIN_EVERY_S):
            return
        self._shown = now
        share = done / total if total else 1.0
        left = f", {(now - self._began) * (1 - share) / share:,.0f} s left" if done else ""
        survived = sum(outcome in SURVIVED for outcome in tally.outcomes.values())
        bar = "#" * int(WIDTH * share)
        text = f"mutants [{bar:<{WIDTH}}] {share:4.0%}, {done:,} of {total:,}, {survived:,} survived{left}"
        sys.stderr.write(f"\r\x1b[2K{text}" if live else text + "\n")
        sys.stderr.flush()


def read_equivalent() -> dict[tuple[str, str, str], str]:
    """(file, line before, line after) -> why the mutant is equivalent."""
    if not EQUIVALENT.exists():
        return {}
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    return {(e["file"], e["before"], e["after"]): e["why"] for e in entries}


def print_report(tally: Tally, texts: dict[str, str], skipped: int) -> None:
    print(f"\n{'module':<34} {'mutants':>8} {'killed':>7} {'slow':>5} {'survived':>9} {'killed':>7}")
    for module in sorted({m.path for m in tally.outcomes}):
        print_line(module, tally, [module])
    print_line("all", tally, sorted({m.path for m in tally.outcomes}))
    print(f"{skipped} equivalent mutants left out ({EQUIVALENT.name})")
    survivors = [(m, found) for m, found in tally.outcomes.items() if found in SURVIVED]
    for mutant, found in sorted(survivors, key=lambda pair: (pair[0].path, pair[0].line)):
        print(f"\n{mutant.path}:{mutant.line} {found} ({mutant.kind})\n{mutant.get_diff(texts[mutant.path])}")


def print_line(name: str, tally: Tally, modules: list[str]) -> None:
    killed = sum(tally.count(module, "killed") for module in modules)
    slow = sum(tally.count(module, "too slow") for module in modules)
    left = sum(tally.count(module, *SURVIVED) for module in modules)
    total = killed + slow + left
    share = (killed + slow) / total if total else 1.0
    print(f"{name:<34} {total:>8,} {killed:>7,} {slow:>5,} {left:>9,} {share:>7.1%}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="that many mutants, drawn at random (all)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--module", nargs="+", default=[], metavar="NAME", help="only these modules, in this order")
    parser.add_argument("--only", nargs="+", default=[], metavar="FILE:LINE", help="only these lines, as in the report")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="mutants at once (1)")
    parser.add_argument("--longest", type=float, default=5.0, metavar="S", help="leave out tests over S seconds (5)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write each outcome there, and skip what it has")
    parser.add_argument("--searches", action="store_true", help="with the tests that search small worlds")
    parser.add_argument("--list", action="store_true", help="list the mutants and run none")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT", help="fail below this share (0)")
    return parser.parse_args(arguments)


def choose(options: argparse.Namespace, tree: Path) -> tuple[list[Mutant], dict[str, str], int]:
    """The mutants to run, the texts of their files, and the number of equivalent mutants left out."""
    found = find_mutants(tree, CORE)
    texts = {name: (tree / name).read_text(encoding="utf-8") for name in found}
    stems = {name: Path(name).stem for name in found}
    names = [n for n in found if stems[n] in options.module] if options.module else list(found)
    names.sort(key=lambda n: options.module.index(stems[n]) if options.module else 0)
    wanted = [m for name in names for m in found[name]]
    if options.only:
        wanted = [m for m in wanted if f"{m.path}:{m.line}" in options.only]
    if options.sample and options.sample < len(wanted):
        wanted = random.Random(options.seed).sample(wanted, options.sample)
    equivalent = read_equivalent()
    all_changes = {(m.path, *m.get_change(texts[m.path])) for mutants in found.values() for m in mutants}
    for stale in sorted(equivalent.keys() - all_changes):
        print(f"{EQUIVALENT.name}: no mutant of {stale[0]} turns «{stale[1]}» into «{stale[2]}»: delete the entry")
    kept = [m for m in wanted if (m.path, *m.get_change(texts[m.path])) not in equivalent]
    return kept, texts, len(wanted) - len(kept)


def run(options: argparse.Namespace, tree: Path, mutants: list[Mutant], texts: dict[str, str]) -> Tally:
    """Run the mutants whose outcome is not in the results file; Ctrl-C ends the run early."""
    mutation_child.load_tools()
    began = time.monotonic()
    files = find_test_files(tree, None if options.searches else SEARCHES)
    baseline = measure(tree, tree.parent, files)
    print(f"{len(baseline.seconds)} tests, {time.monotonic() - began:.0f} s; {len(mutants)} mutants", flush=True)
    tally, bar, results = Tally(), Bar(), Results(options.results, tree, texts)
    tally.outcomes = {m: outcome for m in mutants if (outcome := results.get(m)) is not None}

    def report(mutant: Mutant, outcome: str) -> None:
        tally.outcomes[mutant] = outcome
        results.write(mutant, outcome)
        if outcome in SURVIVED:
            print(f"{mutant.path}:{mutant.line} {outcome}\n{mutant.get_diff(texts[mutant.path])}", flush=True)
        bar.show(tally, len(mutants))

    def start(log: Path, mutant: Mutant, tests: list[str]) -> int:
        seconds = baseline.seconds
        return mutation_child.fork(partial(mutation_child.run_imported, tree, log, mutant, seconds, tests))

    waiting = [m for m in mutants if m not in tally.outcomes]
    imported = [m for m in waiting if baseline.is_imported(m)]
    runner = Runner(tree.parent, options.processes, options.longest, baseline)
    try:
        live = [m for m in waiting if not baseline.is_imported(m)]
        left = run_on_stage(tree, runner, baseline.seconds, files, live, report) if live else []
        runner.run([*left, *imported], start, report)
    except KeyboardInterrupt:
        print(f"\nStopped after {len(tally.outcomes)} of {len(mutants)} mutants.")
    return tally


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        work = Path(folder)
        tree = work / "tree"
        copy_tree(tree)
        mutants, texts, skipped = choose(options, tree)
        if options.list:
            for mutant in mutants:
                print(f"{mutant.path}:{mutant.line} ({mutant.kind})\n{mutant.get_diff(texts[mutant.path])}")
            print(Counter(m.kind for m in mutants), len(mutants))
            return 0
        began = time.monotonic()
        tally = run(options, tree, mutants, texts)
        print_report(tally, texts, skipped)
        print(f"{time.monotonic() - began:.0f} s, {options.processes} processes, seed {options.seed}")
    dead = sum(found in KILLED for found in tally.outcomes.values())
    return 0 if 100 * dead >= options.at_least * len(tally.outcomes) else 1


def stop(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nStopped.")
        sys.exit(130)
