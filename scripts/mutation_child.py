"""The forked side of mutation testing: applies a change to core and runs chosen tests.

A fork of the stage has already collected all tests, and changes the code of live functions. Code that a
module or a test file runs at import needs a fork that imports everything anew with the change.
"""

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from mutations import Mutant

TESTS = ["tests/core", "tests/conformance"]
MEMORY_BYTES = 4 << 30  # a mutant may loop for ever
TEST_GRACE_S = 5.0  # of CPU time
TEST_SLOWER = 5.0  # factor by which one test may take longer with a mutant


def load_tools() -> None:
    """Import what every test run needs, but nothing under test: forked processes inherit the imports."""
    for name in ("pytest", "_pytest.assertion.rewrite", "hypothesis", "hypothesis.stateful", "hypothesis.strategies",
                 "coverage", "trio", "pytest_trio", "zstandard", "cryptography", "blake3"):  # fmt: skip
        importlib.import_module(name)
    assert "psyche" not in sys.modules, "what is tested must come from the copy of the tree"


# --- a change of a module that is not imported yet


class MutantLoader(importlib.machinery.SourceFileLoader):
    """Loads one module from the changed text; never reads or writes bytecode."""

    def __init__(self, fullname: str, path: str, text: str) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.get_filename(fullname), "exec", dont_inherit=True)


class MutantFinder(importlib.abc.MetaPathFinder):
    """Finds one module, before all other finders."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self._name, self._path, self._text = name, path, text

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        loader = MutantLoader(fullname, str(self._path), self._text)
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


# --- a change of live functions


class Patcher:
    """Gives the live functions of core the code of a mutant."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._functions: dict[tuple[str, int, str], list[FunctionType]] = {}
        core = str(tree / "psyche" / "core")
        for found in gc.get_objects():
            if isinstance(found, FunctionType) and found.__code__.co_filename.startswith(core):
                self._functions.setdefault(_get_place(found.__code__), []).append(found)

    def patch(self, mutant: Mutant) -> bool:
        """Change all live functions that differ in the mutant; False if one cannot be changed, or if there is none."""
        path = self._tree / mutant.path
        text = path.read_text(encoding="utf-8")
        before, after = (
            {_get_place(code): code for code in _walk(compile(source, str(path), "exec", dont_inherit=True))}
            for source in (text, mutant.apply(text))
        )
        changed = [place for place, code in after.items() if place in before and code != before[place]]
        found = [(function, after[place]) for place in changed for function in self._functions.get(place, ())]
        if any(f.__code__.co_freevars != code.co_freevars for f, code in found):
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


# --- pytest plugins


class Chooser:
    """Runs only the chosen tests, in their order, each within a limit of CPU time."""

    def __init__(self, seconds: dict[str, float], tests: list[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}
        self._seconds = seconds

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self._places), key=lambda i: self._places[i.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        set_limit(self._seconds[nodeid])


def set_limit(seconds: float) -> None:
    """Kill this process if the next test takes several times its usual CPU time."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, TEST_GRACE_S + TEST_SLOWER * seconds)


class Forgetful:
    """Keeps hypothesis from starting with examples that failed for another mutant."""

    def pytest_sessionstart(self) -> None:
        from hypothesis import settings

        settings.register_profile("mutants", settings.default, database=None)
        settings.load_profile("mutants")


class Observer:
    """Records the lines that each test runs, and its duration."""

    def __init__(self, tree: Path) -> None:
        import coverage

        self._tree = tree
        self._coverage = coverage.Coverage(
            data_file=None, source=[str(tree / "psyche" / "core")], config_file=False, branch=False
        )
        self._coverage.start()
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def write(self, path: Path) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        covering = {str(Path(f).relative_to(self._tree)): data.contexts_by_lineno(f) for f in data.measured_files()}
        path.write_text(json.dumps({"seconds": self.seconds, "covering": covering}))


class Stage:
    """Replaces pytest's loop once all tests are collected, and passes itself to `play`."""

    def __init__(self, tree: Path, play: Callable[["Stage"], None]) -> None:
        self._tree, self._play = tree, play
        self._session: Any = None
        self._patcher: Patcher | None = None

    def pytest_runtestloop(self, session: Any) -> bool:
        self._session, self._patcher = session, Patcher(self._tree)
        gc.freeze()  # forks share pages that they do not change
        self._play(self)
        return True

    def run(self, log: Path, mutant: Mutant, seconds: dict[str, float], tests: list[str]) -> int:
        """In a fork: run these tests with the mutant; return 1 if one failed, 3 if the mutant needs a new import."""
        _separate(log)
        assert self._patcher is not None, "tests are collected"
        if not self._patcher.patch(mutant):
            return NOT_PATCHED
        by_name = {item.nodeid: item for item in self._session.items}
        items = [by_name[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            set_limit(seconds[item.nodeid])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._session.testsfailed:
                return 1
        return 0


NOT_PATCHED = 3


def _separate(log: Path) -> None:
    os.setsid()
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(opened, stream)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def enter(tree: Path, log: Path) -> None:
    """Make this process run tests in the tree, with its output in the log."""
    _separate(log)
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True


def run_pytest(plugins: Sequence[object], *arguments: str) -> int:
    """Run pytest; return its exit status."""
    import pytest

    options = ["-x", "-q", "-s", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *arguments], plugins=[Forgetful(), *plugins]))


def run_imported(tree: Path, log: Path, mutant: Mutant, seconds: dict[str, float], tests: list[str]) -> int:
    """In a fork: import everything with the mutant and run these tests; return pytest's exit status."""
    enter(tree, log)
    path = tree / mutant.path
    name = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    sys.meta_path.insert(0, MutantFinder(name, path, mutant.apply(path.read_text(encoding="utf-8"))))
    set_limit(TEST_GRACE_S)
    return run_pytest([Chooser(seconds, tests)], *sorted({test.split("::")[0] for test in tests}))


def run_observed(tree: Path, log: Path, report: Path, files: Sequence[str]) -> int:
    """In a fork: run the tests of these files without a mutant, and write the coverage; return pytest's exit status."""
    enter(tree, log)
    observer = Observer(tree)
    code = run_pytest([observer], *files)
    if code == 0:
        observer.write(report)
    return code


def run_stage(tree: Path, log: Path, files: Sequence[str], play: Callable[[Stage], None]) -> int:
    """In a fork: collect the tests of these files, and play; return pytest's exit status."""
    enter(tree, log)
    return run_pytest([Stage(tree, play)], *files)


def fork(act: Callable[[], int]) -> int:
    """Run `act` in a new process, which exits with its return value, or 1 if it raises; return the process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        status = act()
    except BaseException as error:  # noqa: BLE001 - a mutant may raise anything, and the fork must end here
        os.write(2, repr(error).encode())
    finally:
        sys.stdout.flush()
        os._exit(status)


def kill(pid: int) -> None:
    """Kill a fork and its process group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
