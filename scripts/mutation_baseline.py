"""The unmutated baseline of core's tests: how long each takes, and which lines it runs."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import mutation_child
from mutations import Mutant

CORE = "psyche/core"
SHARED = ["psyche/testing", "tests"]  # besides core: what a test's outcome may depend on, except other test files


@dataclass
class Baseline:
    """Durations and coverage of the tests without a mutant."""

    seconds: dict[str, float] = field(default_factory=dict)  # test -> seconds
    covering: dict[str, dict[int, list[str]]] = field(default_factory=dict)  # file -> line -> tests, "" at import

    def add(self, report: Path) -> None:
        """Add a report about some tests."""
        raw = json.loads(report.read_text(encoding="utf-8"))
        self.seconds |= raw["seconds"]
        for name, lines in raw["covering"].items():
            own = self.covering.setdefault(name, {})
            for line, tests in lines.items():
                own.setdefault(int(line), []).extend(tests)

    def get_tests(self, mutant: Mutant, longest_s: float) -> list[str]:
        """The tests that may kill the mutant: those that run the line, the fastest first.

        Code that runs at import concerns every test: then the tests of its file come next, then all others.
        """
        groups = [self._get_contexts(mutant) - {""}]
        if self.is_imported(mutant):
            near = {test for tests in self.covering.get(mutant.path, {}).values() for test in tests if test}
            groups += [near - groups[0], set(self.seconds) - near - groups[0]]
        order = [test for group in groups for test in sorted(group, key=self.seconds.__getitem__)]
        return [test for test in order if self.seconds[test] <= longest_s]

    def is_imported(self, mutant: Mutant) -> bool:
        """Whether the changed code runs before the first test does."""
        return "" in self._get_contexts(mutant)

    def _get_contexts(self, mutant: Mutant) -> set[str]:
        lines = self.covering.get(mutant.path, {})
        return {test for line in range(mutant.lines[0], mutant.lines[1] + 1) for test in lines.get(line, ())}


def compute_hash(tree: Path, *parts: str, but: str = "") -> str:
    """A hash of all files of these parts of the tree, without files whose names start with `but`."""
    hashed = hashlib.sha256()
    found = (p for part in parts for p in [tree / part, *(tree / part).rglob("*")])
    for path in sorted(found):
        if path.is_file() and not (but and path.name.startswith(but)):
            hashed.update(str(path.relative_to(tree)).encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()[:20]


def find_test_files(tree: Path, searches: str | None) -> list[str]:
    """The test files to run, without `searches`."""
    found = sorted(str(p.relative_to(tree)) for part in mutation_child.TESTS for p in (tree / part).rglob("test_*.py"))
    return [name for name in found if name != searches]


def measure(tree: Path, work: Path, files: list[str]) -> Baseline:
    """Run the tests of these files once without a mutant.

    That takes minutes, so the report of each file is kept for the next time: until core, the helpers of
    the tests or that file change.
    """
    baseline, common = Baseline(), compute_hash(tree, CORE, *SHARED, but="test_")
    kept = Path(tempfile.gettempdir()) / "psyche-mutants"
    kept.mkdir(exist_ok=True)
    reports = {name: kept / f"{Path(name).stem}-{common}-{compute_hash(tree, name)}.json" for name in files}
    missing = [name for name, report in reports.items() if not report.exists()]
    if missing:
        _observe(tree, work, {name: reports[name] for name in missing})
    for report in reports.values():
        baseline.add(report)
    return baseline


def _observe(tree: Path, work: Path, reports: dict[str, Path]) -> None:
    """Run the tests of these files, and write a report for each file."""
    whole, log = work / "baseline.json", work / "baseline.log"
    pid = mutation_child.fork(partial(mutation_child.run_observed, tree, log, whole, list(reports)))
    try:
        _, status = os.waitpid(pid, 0)
    except KeyboardInterrupt:
        mutation_child.kill(pid)
        raise
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"The tests fail without any mutant:\n{log.read_text()[-3000:]}")
    raw = json.loads(whole.read_text(encoding="utf-8"))
    for name, report in reports.items():
        seconds = {test: s for test, s in raw["seconds"].items() if test.startswith(f"{name}::")}
        covering = {
            path: {line: [test for test in tests if not test or test in seconds] for line, tests in lines.items()}
            for path, lines in raw["covering"].items()
        }
        partly = work / "part.json"
        partly.write_text(json.dumps({"seconds": seconds, "covering": covering}), encoding="utf-8")
        shutil.move(partly, report)
