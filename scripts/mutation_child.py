"""The forked side of mutation testing: one module is imported with a change, and chosen tests run."""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from mutations import Mutant

TESTS = ["tests/core", "tests/conformance"]
MEMORY_BYTES = 4 << 30  # a mutant may never come to an end


def load_tools() -> None:
    """Import what every test run needs, and nothing of what is tested: forked processes have it at once."""
    for name in ("pytest", "_pytest.assertion.rewrite", "hypothesis", "hypothesis.stateful", "hypothesis.strategies",
                 "coverage", "trio", "pytest_trio", "zstandard", "cryptography", "blake3"):  # fmt: skip
        importlib.import_module(name)
    assert "psyche" not in sys.modules, "what is tested must come from the copy of the tree"


class MutantLoader(importlib.machinery.SourceFileLoader):
    """Gives the changed text of one module; never reads or writes bytecode."""

    def __init__(self, fullname: str, path: str, text: str) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.get_filename(fullname), "exec", dont_inherit=True)


class MutantFinder(importlib.abc.MetaPathFinder):
    """Stands before all other finders and knows one module."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self._name, self._path, self._text = name, path, text

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        loader = MutantLoader(fullname, str(self._path), self._text)
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


class Chooser:
    """Runs only the chosen tests, in their order."""

    def __init__(self, tests: list[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self._places), key=lambda i: self._places[i.nodeid])


class Observer:
    """Notes for each test which lines it runs and how long it takes."""

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


def _prepare(tree: Path, log: Path) -> None:
    os.setsid()
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(opened, stream)
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(log.with_suffix(".hypothesis"))
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def run_quietly(
    tree: Path,
    log: Path,
    mutant: Mutant | None,
    tests: list[str] | None,
    report: Path | None,
    ignored: Sequence[str],
) -> int:
    """Run these tests in the tree, or all; pytest's exit status, or 1 where it did not come so far."""
    try:
        _prepare(tree, log)
        return _run(tree, mutant, tests, report, ignored)
    except BaseException as error:  # noqa: BLE001 - a mutant may raise anything, and the fork must end here
        os.write(2, repr(error).encode())
        return 1


def _run(
    tree: Path, mutant: Mutant | None, tests: list[str] | None, report: Path | None, ignored: Sequence[str]
) -> int:
    import pytest

    plugins: list[object] = []
    folders = TESTS
    if mutant is not None:
        path = tree / mutant.path
        name = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        sys.meta_path.insert(0, MutantFinder(name, path, mutant.apply(path.read_text(encoding="utf-8"))))
    if tests is not None:
        plugins.append(Chooser(tests))
        folders = sorted({test.split("::")[0] for test in tests})
    observer = Observer(tree) if report is not None else None
    if observer is not None:
        plugins.append(observer)
    started = time.monotonic()
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", *(f"--ignore={path}" for path in ignored)]
    code = int(pytest.main([*options, *folders], plugins=plugins))
    if observer is not None and report is not None and code == 0:
        observer.write(report)
    os.write(1, f"\n{time.monotonic() - started:.2f} s\n".encode())
    return code
