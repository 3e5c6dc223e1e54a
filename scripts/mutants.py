"""Mutation testing of psyche.core: changes one thing at a time and asks whether a test of the core notices.

    python scripts/mutants.py --sample 300     as a sample, drawn by --seed
    python scripts/mutants.py --module tally   all mutants of one module
    python scripts/mutants.py                  everything

The checkout stays as it is: tests run in a copy of the tree, and the change is given to the importer of a
forked process that has the test tools loaded already. Only tests that run the changed line are run, the
quickest first, up to the first that fails. Mutants that cannot be told from the original stand in
equivalent_mutants.toml with the reason, and are not counted.
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
from dataclasses import dataclass, field
from pathlib import Path

import mutation_child
from mutations import Mutant, find_mutants

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "psyche/core"
SEARCHES = "tests/core/test_small_worlds.py"  # strong, and slow
COPIED = ["psyche", "tests/conftest.py", "tests/core", "tests/conformance", "tests/vectors", "pyproject.toml", "shared"]
HASHED = ["psyche/core", "psyche/testing", "tests"]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
GRACE_S = 10.0
SLOWER = 5.0  # times that the tests may take longer with a mutant than without
WIDTH = 30
PLAIN_EVERY_S = 15.0


@dataclass
class Baseline:
    """What the tests do without any mutant."""

    seconds: dict[str, float]  # test -> seconds
    covering: dict[str, dict[int, list[str]]]  # file -> line -> tests

    def get_tests(self, mutant: Mutant, longest_s: float) -> list[str]:
        """Who should notice: the tests that run the line, the quickest first.

        What runs at import concerns every test: then those of its file come next, and all others.
        """
        lines = self.covering.get(mutant.path, {})
        own: set[str] = set()
        for line in range(mutant.lines[0], mutant.lines[1] + 1):
            own.update(lines.get(line, []))
        groups = [own - {""}]
        if "" in own:
            near = {test for tests in lines.values() for test in tests if test}
            groups += [near - own, set(self.seconds) - near - own]
        order = [test for group in groups for test in sorted(group, key=self.seconds.__getitem__)]
        return [test for test in order if self.seconds[test] <= longest_s]


@dataclass
class Running:
    """A forked process and the mutant in it."""

    mutant: Mutant
    started: float
    limit_s: float


@dataclass
class Tally:
    """What became of the mutants."""

    outcomes: dict[Mutant, str] = field(default_factory=dict)

    def count(self, module: str, *outcomes: str) -> int:
        return sum(m.path == module and found in outcomes for m, found in self.outcomes.items())


def copy_tree(target: Path) -> None:
    """What git knows or would know of the parts that the tests need."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *COPIED],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def fork(
    tree: Path, log: Path, mutant: Mutant | None, tests: list[str] | None, *, report: Path | None = None,
    ignored: tuple[str, ...] = (),
) -> int:  # fmt: skip
    """A process that runs tests in the tree, with the mutant in place of the module; its number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    os._exit(mutation_child.run_quietly(tree, log, mutant, tests, report, ignored))


def compute_tree_hash(tree: Path, *parts: object) -> str:
    """Of all files that the tests run: with the same ones they do the same."""
    hashed = hashlib.sha256(repr(parts).encode())
    for path in sorted(p for part in HASHED for p in (tree / part).rglob("*") if p.is_file()):
        hashed.update(str(path.relative_to(tree)).encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()


def measure(tree: Path, work: Path, *, searches: bool) -> Baseline:
    """Run all tests once, without a mutant, and learn which lines each runs and how long it takes.

    That takes minutes, so it is kept for the next time.
    """
    kept = Path(tempfile.gettempdir()) / f"psyche-mutants-{compute_tree_hash(tree, searches)[:16]}.json"
    if not kept.exists():
        shutil.move(run_baseline(tree, work, searches=searches), kept)
    raw = json.loads(kept.read_text())
    covering = {f: {int(n): t for n, t in lines.items()} for f, lines in raw["covering"].items()}
    return Baseline(raw["seconds"], covering)


def run_baseline(tree: Path, work: Path, *, searches: bool) -> Path:
    report, log = work / "baseline.json", work / "baseline.log"
    ignored = () if searches else (SEARCHES,)
    _, status = os.waitpid(fork(tree, log, None, None, report=report, ignored=ignored), 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"The tests fail without any mutant:\n{log.read_text()[-3000:]}")
    return report


class Runner:
    """Runs mutants, so many at once, each with its own limit."""

    def __init__(self, tree: Path, work: Path, baseline: Baseline, processes: int, longest_s: float) -> None:
        self._tree, self._work, self._baseline = tree, work, baseline
        self._processes, self._longest_s = processes, longest_s
        self._running: dict[int, Running] = {}

    def run(self, mutants: list[Mutant], tally: Tally, bar: "Bar") -> None:
        waiting = mutants[::-1]
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._processes:
                    self._start(waiting.pop(), tally)
                self._collect(tally)
                bar.show(tally, len(mutants))
        finally:
            for pid in self._running:
                _kill(pid)

    def _start(self, mutant: Mutant, tally: Tally) -> None:
        tests = self._baseline.get_tests(mutant, self._longest_s)
        if not tests:
            tally.outcomes[mutant] = "not covered"
            return
        limit_s = GRACE_S + SLOWER * sum(self._baseline.seconds[test] for test in tests)
        log = self._work / f"log{len(self._running)}"
        pid = fork(self._tree, log, mutant, tests)
        self._running[pid] = Running(mutant, time.monotonic(), limit_s)

    def _collect(self, tally: Tally) -> None:
        ended, status = os.waitpid(-1, os.WNOHANG) if self._running else (0, 0)
        if ended in self._running:
            code = os.waitstatus_to_exitcode(status)
            tally.outcomes[self._running.pop(ended).mutant] = "survived" if code == 0 else "killed"
            return
        now = time.monotonic()
        for pid, running in list(self._running.items()):
            if now - running.started > running.limit_s:
                _kill(pid)
                del self._running[pid]
                tally.outcomes[running.mutant] = "too slow"
        time.sleep(0.005)


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


class Bar:
    """`mutants [########            ] 41 %, 123 of 300, 9 survived, 210 s left`; lines without a terminal."""

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
        survived = sum(outcome in ("survived", "not covered") for outcome in tally.outcomes.values())
        bar = "#" * int(WIDTH * share)
        text = f"mutants [{bar:<{WIDTH}}] {share:4.0%}, {done:,} of {total:,}, {survived:,} survived{left}"
        sys.stderr.write(f"\r\x1b[2K{text}" if live else text + "\n")
        sys.stderr.flush()


def read_equivalent() -> dict[tuple[str, str, str], str]:
    """(file, line before, line after) -> why nothing can tell them apart."""
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
    survivors = [(m, found) for m, found in tally.outcomes.items() if found in ("survived", "not covered")]
    for mutant, found in sorted(survivors, key=lambda pair: (pair[0].path, pair[0].line)):
        print(f"\n{mutant.path}:{mutant.line} {found} ({mutant.kind})\n{mutant.get_diff(texts[mutant.path])}")


def print_line(name: str, tally: Tally, modules: list[str]) -> None:
    killed = sum(tally.count(module, "killed") for module in modules)
    slow = sum(tally.count(module, "too slow") for module in modules)
    left = sum(tally.count(module, "survived", "not covered") for module in modules)
    total = killed + slow + left
    share = (killed + slow) / total if total else 1.0
    print(f"{name:<34} {total:>8,} {killed:>7,} {slow:>5,} {left:>9,} {share:>7.1%}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="that many mutants, drawn at random (all)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--module", nargs="+", default=[], metavar="NAME", help="only these modules of the core")
    parser.add_argument("--only", nargs="+", default=[], metavar="FILE:LINE", help="only these lines, as in the report")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="mutants at once (1)")
    parser.add_argument("--longest", type=float, default=5.0, metavar="S", help="leave out tests over S seconds (5)")
    parser.add_argument("--searches", action="store_true", help="with the tests that search small worlds")
    parser.add_argument("--list", action="store_true", help="list the mutants and run none")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT", help="fail below this share (0)")
    return parser.parse_args(arguments)


def choose(options: argparse.Namespace, tree: Path) -> tuple[list[Mutant], dict[str, str], int]:
    """The mutants to run, the texts of their files, and how many equivalent ones were left out."""
    found = find_mutants(tree, PACKAGE)
    texts = {name: (tree / name).read_text(encoding="utf-8") for name in found}
    wanted = [
        m for name, some in found.items() if not options.module or Path(name).stem in options.module for m in some
    ]
    if options.only:
        wanted = [m for m in wanted if f"{m.path}:{m.line}" in options.only]
    if options.sample and options.sample < len(wanted):
        wanted = random.Random(options.seed).sample(wanted, options.sample)
    equivalent = read_equivalent()
    kept = [m for m in wanted if (m.path, *m.get_change(texts[m.path])) not in equivalent]
    return kept, texts, len(wanted) - len(kept)


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
        mutation_child.load_tools()
        began = time.monotonic()
        baseline = measure(tree, work, searches=options.searches)
        print(f"{len(baseline.seconds)} tests, {time.monotonic() - began:.0f} s; {len(mutants)} mutants")
        tally = Tally()
        try:
            Runner(tree, work, baseline, options.processes, options.longest).run(mutants, tally, Bar())
        except KeyboardInterrupt:
            print(f"\nStopped after {len(tally.outcomes)} of {len(mutants)} mutants.")
        print_report(tally, texts, skipped)
        print(f"{time.monotonic() - began:.0f} s, {options.processes} processes, seed {options.seed}")
    dead = sum(found in ("killed", "too slow") for found in tally.outcomes.values())
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
