"""A pytest plugin: which lines and branches of the core its own tests reach, in every worker (`-p scripts.cover_core`).

Only while tests of the core are imported and run: what other tests do to the core would hide what its own leave out.
"""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from coverage import Coverage

ROOT = Path(__file__).resolve().parent.parent
OF_CORE = (ROOT / "tests" / "core", ROOT / "tests" / "conformance")
# Searches go nearly everywhere by chance, and measuring makes them several times slower: the others reach every line.
SEARCHES = {
    "test_any_state.py",
    "test_assignment_chance.py",
    "test_decision_liars.py",
    "test_machine_stateful.py",
    "test_small_worlds.py",
}

_coverage = Coverage(data_suffix=True)  # a file for each process; `coverage combine` puts them together
if "PYTEST_XDIST_WORKER" not in os.environ:
    _coverage.erase()  # what an earlier run left


@contextmanager
def covering(path: Path) -> Iterator[None]:
    """Within, lines of the core count, if this file tests it."""
    if path.name in SEARCHES or not any(folder in path.parents for folder in OF_CORE):
        yield
        return
    _coverage.start()
    try:
        yield
    finally:
        _coverage.stop()


def import_core() -> None:
    """What runs at import counts, whoever imports it first: so it is imported here."""
    with covering(OF_CORE[0] / "import"):
        for path in sorted((ROOT / "psyche" / "core").rglob("*.py")):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


import_core()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A test file is imported when its tests are collected."""
    with covering(collector.path):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test with its fixtures."""
    with covering(item.path):
        return (yield)


def pytest_sessionfinish() -> None:
    """In a worker, or where there are none."""
    _coverage.save()
