"""Mutation testing of psyche.core: makes one change at a time and checks whether a test of core fails.

    python scripts/mutants.py --sample 300        as a sample, drawn by --seed
    python scripts/mutants.py --module tally      all mutants of one module, or of several
    python scripts/mutants.py --tier whole        with all tests, not those of the first tier alone
    python scripts/mutants.py --module tally --tests tests/core/rules    with these alone, which are measured sooner
    python scripts/mutants.py --at-import --sample 40   of tables, fields and constants, a fresh process each

One process collects the tests; each mutant is a fork of it, in which live functions get the changed code, and which
runs the tests of the changed line, the fastest first, until one fails. The checkout stays unchanged. Code that runs at
import (tables of bytes, limits) is changed with --at-import: then a process of its own imports each mutant, which takes
seconds where a test fails, and minutes where none does. Mutants that no test can tell from the original are listed in
equivalent_mutants.toml with the reason, and are not counted.

Why not mutmut or cosmic-ray: by their documentation they exempt an equivalent mutant by a comment on its line, which
exempts all other mutants of the line, and tell nothing of the reason. They were not measured.
"""

import argparse
import gc
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from mutations import Mutant, find_mutants

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from kits.tier import TIERS, VARIABLE  # noqa: E402

CORE = "psyche/core"
TESTS = ["tests/core", "tests/conformance"]
TESTS_AT_IMPORT = [*(f"tests/core/{part}" for part in ("state", "encoding", "rules", "committee")), "tests/conformance"]
TESTS_AT_IMPORT += ["tests/wire/test_gossip.py"]  # what people read of a key is tested in tests/config and tests/docs
SEARCHES = "tests/core/properties/test_small_worlds.py"  # strong, and slow
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
MEMORY_BYTES = 4 << 30  # a mutant may loop for ever
TEST_GRACE_S, TEST_SLOWER = 5.0, 5.0  # of CPU time: by how much one test may take longer with a mutant
NOT_PATCHED = 3
# No test of at most --longest seconds runs it: since all lines are covered, it runs at import.
NOT_TRIED = "not tried"
NAMES = {0: "survived", NOT_PATCHED: NOT_TRIED, -signal.SIGPROF: "too slow"}


class Baseline:
    """What the tests do without a mutant: how long each takes, and which lines of core it runs."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.seconds: dict[str, float] = raw["seconds"]
        self.covering: dict[str, dict[str, list[str]]] = raw["covering"]

    def get_tests(self, mutant: Mutant, longest_s: float) -> list[str]:
        """The tests that run the changed lines, the fastest first."""
        lines = self.covering.get(mutant.path, {})
        found = {test for line in range(mutant.lines[0], mutant.lines[1] + 1) for test in lines.get(str(line), ())}
        return sorted(
            (t for t in found if self.seconds.get(t, longest_s + 1) <= longest_s), key=self.seconds.__getitem__
        )


class Patcher:
    """Gives the live functions of core the code of a mutant."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, int, str], list[FunctionType]] = {}
        for found in gc.get_objects():
            if isinstance(found, FunctionType) and found.__code__.co_filename.startswith(str(ROOT / CORE)):
                self._functions.setdefault(_get_place(found.__code__), []).append(found)

    def patch(self, mutant: Mutant, text: str) -> bool:
        """Change all live functions that differ in the mutant; False if one cannot be changed, or if there is none."""
        path = str(ROOT / mutant.path)
        before, after = (
            {_get_place(code): code for code in _walk(compile(source, path, "exec", dont_inherit=True))}
            for source in (text, mutant.apply(text))
        )
        changed = [place for place, code in after.items() if place in before and code != before[place]]
        found = [(function, after[place]) for place in changed for function in self._functions.get(place, ())]
        if any(function.__code__.co_freevars != code.co_freevars for function, code in found):
            return False
        for function, code in found:
            function.__code__ = code
        return bool(found)


def _get_place(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_qualname


def _walk(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _walk(constant)


def fork(act: Callable[[], int], log: int) -> int:
    """What `act` returns in a fork, 1 if it raises, or minus the signal that ended it."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            for stream in (1, 2):
                os.dup2(log, stream)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            status = act()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Stage:
    """A pytest plugin: once all tests are collected it plays the mutants instead of running the tests."""

    def __init__(self, options: argparse.Namespace, mutants: list[Mutant], texts: dict[str, str]) -> None:
        self._options, self._mutants, self._texts = options, mutants, texts
        self.outcomes: dict[Mutant, str] = {}

    def pytest_runtestloop(self, session: Any) -> bool:
        patcher, items = Patcher(), {item.nodeid: item for item in session.items}
        gc.freeze()  # forks share pages that they do not change
        with tempfile.TemporaryFile() as log:
            baseline = self._measure(session, log.fileno())
            print(f"{len(baseline.seconds)} tests, {len(self._mutants)} mutants", flush=True)
            for mutant in self._mutants:
                tests = [items[test] for test in baseline.get_tests(mutant, self._options.longest)]
                found = NOT_TRIED
                if tests:

                    def play(mutant: Mutant = mutant, tests: list[Any] = tests) -> int:
                        if not patcher.patch(mutant, self._texts[mutant.path]):
                            return NOT_PATCHED
                        return run_tests(session, tests, baseline.seconds)

                    found = NAMES.get(fork(play, log.fileno()), "killed")
                self.report(mutant, found)
        return True

    def report(self, mutant: Mutant, found: str) -> None:
        self.outcomes[mutant] = found
        if found == "survived":
            print(f"{mutant.path}:{mutant.line} {found}\n{mutant.get_diff(self._texts[mutant.path])}", flush=True)
        elif len(self.outcomes) % 50 == 0:
            print(f"{len(self.outcomes)} of {len(self._mutants)}", flush=True)

    def _measure(self, session: Any, log: int) -> Baseline:
        """Run the tests without a mutant, which takes minutes; what comes out is kept until core or a test changes."""
        kept = Path(tempfile.gettempdir()) / f"psyche-mutants-{compute_hash(self._options)}.json"
        if not kept.exists() and fork(lambda: observe(session, kept), log) != 0:
            os.lseek(log, 0, os.SEEK_SET)
            print(f"The tests fail without any mutant:\n{os.read(log, 1 << 20).decode()[-3000:]}", flush=True)
            os._exit(1)  # pytest would wrap it
        return Baseline(json.loads(kept.read_text(encoding="utf-8")))


def compute_hash(options: argparse.Namespace) -> str:
    paths = sorted(path for part in (CORE, "tests", "psyche/testing") for path in (ROOT / part).rglob("*.py"))
    asked = repr((options.tier, options.tests)).encode()
    return hashlib.sha256(asked + b"".join(path.read_bytes() for path in paths)).hexdigest()[:20]


def observe(session: Any, kept: Path) -> int:
    """In a fork: the tests' seconds, and the lines that each runs."""
    from coverage import Coverage

    meter = Coverage(data_file=None, source=[str(ROOT / CORE)], config_file=False, branch=False)
    seconds: dict[str, float] = {}
    meter.start()
    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        meter.switch_context(item.nodeid)
        started = time.process_time()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        seconds[item.nodeid] = time.process_time() - started
        if session.testsfailed:
            return 1
    meter.stop()
    data = meter.get_data()
    covering = {str(Path(f).relative_to(ROOT)): data.contexts_by_lineno(f) for f in data.measured_files()}
    kept.write_text(json.dumps({"seconds": seconds, "covering": covering}), encoding="utf-8")
    return 0


def run_tests(session: Any, tests: list[Any], seconds: dict[str, float]) -> int:
    """In a fork: 1 if a test fails; the fork is killed where one takes several times its usual CPU time."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for item, following in zip(tests, [*tests[1:], None], strict=True):
        signal.setitimer(signal.ITIMER_PROF, TEST_GRACE_S + TEST_SLOWER * seconds[item.nodeid])
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


def read_equivalent(path: Path) -> set[tuple[str, str, str]]:
    """(file, line before, line after) of the changes in a list of those that nobody can tell from the original."""
    return {(file, old, new) for _why, file, old, new in tomllib.loads(path.read_text(encoding="utf-8"))["equivalent"]}


def choose(options: argparse.Namespace) -> tuple[list[Mutant], dict[str, str]]:
    """The mutants to run, and the texts of their files."""
    found = find_mutants(ROOT, CORE, at_import=options.at_import)
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in found}
    equivalent = read_equivalent(EQUIVALENT)
    changes = {m: (m.path, *m.get_change(texts[m.path])) for mutants in found.values() for m in mutants}
    for stale in () if options.at_import else sorted(equivalent - set(changes.values())):
        print(f"{EQUIVALENT.name}: no mutant of {stale[0]} turns «{stale[1]}» into «{stale[2]}»: delete the entry")
    wanted = [m for m in changes if not options.module or Path(m.path).stem in options.module]
    wanted = [m for m in wanted if changes[m] not in equivalent]
    wanted = [m for m in wanted if not options.only or f"{m.path}:{m.line}" in options.only]
    if options.sample and options.sample < len(wanted):
        wanted = random.Random(options.seed).sample(wanted, options.sample)
    return wanted, texts


def play(options: argparse.Namespace) -> dict[Mutant, str]:
    """The outcome of each mutant that was tried: killed, too slow, survived."""
    mutants, texts = choose(options)
    stage = Stage(options, mutants, texts)
    if options.at_import:
        for mutant in mutants:
            stage.report(mutant, play_at_import(mutant, texts[mutant.path]))
    else:
        run_pytest(options.tests if options.searches else [f"--ignore={SEARCHES}", *options.tests], stage)
    return {mutant: found for mutant, found in stage.outcomes.items() if found != NOT_TRIED}


def run_pytest(tests: list[str], *plugins: object) -> int:
    import pytest
    from hypothesis import settings

    settings.register_profile("mutants", settings.default, database=None)  # none of a failed mutant's examples
    arguments = ["-x", "-q", "-s", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header", "--no-summary"]
    os.chdir(ROOT)
    return int(pytest.main([*arguments, "--hypothesis-profile=mutants", *tests], plugins=list(plugins)))


def play_at_import(mutant: Mutant, text: str) -> str:
    """The outcome of a mutant that a fresh process imports, before it runs tests until one fails."""
    words = [sys.executable, __file__, "--planted", mutant.path]
    try:
        ran = subprocess.run(words, input=mutant.apply(text), text=True, capture_output=True, check=False, timeout=600)
    except subprocess.TimeoutExpired:
        return "too slow"
    return "killed" if ran.returncode else "survived"


def run_planted(path: str, text: str) -> int:
    """Run tests where one file of core has another text."""
    get_code = SourceFileLoader.get_code

    def get_planted(self: SourceFileLoader, name: str) -> CodeType | None:
        return compile(text, self.path, "exec") if self.path == str(ROOT / path) else get_code(self, name)

    SourceFileLoader.get_code = get_planted  # type: ignore[method-assign]
    return run_pytest(TESTS_AT_IMPORT)


def print_table(outcomes: dict[Mutant, str]) -> None:
    print(f"\n{'module':<40} {'mutants':>8} {'survived':>9} {'killed':>7}")
    by_module = Counter(mutant.path for mutant in outcomes)
    left = Counter(mutant.path for mutant, found in outcomes.items() if found == "survived")
    for module, count in [*sorted(by_module.items()), ("all", by_module.total())]:
        survived = left.total() if module == "all" else left[module]
        print(f"{module:<40} {count:>8,} {survived:>9,} {1 - survived / (count or 1):>7.1%}")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="that many mutants, drawn at random (all)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--module", nargs="+", default=[], metavar="NAME", help="only mutants of these modules")
    parser.add_argument("--only", nargs="+", default=[], metavar="FILE:LINE", help="only mutants of these lines")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH", help="only these tests (all of core)")
    parser.add_argument("--tier", choices=TIERS, default="first", help="the tests of this tier (first)")
    parser.add_argument("--longest", type=float, default=5.0, metavar="S", help="leave out tests over S seconds (5)")
    parser.add_argument("--searches", action="store_true", help="with the tests that search small worlds")
    parser.add_argument("--at-import", action="store_true", help="mutants of code that runs at import")
    parser.add_argument("--planted", metavar="FILE", help=argparse.SUPPRESS)  # in a process of one mutant
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT", help="fail below this share (0)")
    return parser


def main() -> int:
    options = build_parser().parse_args()
    if os.environ.get(VARIABLE) != options.tier:  # kits.tier reads it once
        os.environ[VARIABLE] = options.tier
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if options.planted:
        return run_planted(options.planted, sys.stdin.read())
    outcomes = play(options)
    print_table(outcomes)
    dead = sum(found != "survived" for found in outcomes.values())
    return 0 if outcomes and 100 * dead >= options.at_least * len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
