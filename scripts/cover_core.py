"""A pytest plugin: measures lines and branches of core that its tests run, in every worker (`-p scripts.cover_core`).

It measures only while tests of core are imported and run: other tests' coverage would hide what core's tests miss.
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
# Searches cover nearly everything by chance, and measuring makes them several times slower: other tests must suffice.
SEARCHES = {
    "test_any_state.py",
    "test_decision_liars.py",
    "test_random_runs.py",
    "test_shares.py",
    "test_small_worlds.py",
}

_coverage = Coverage(data_suffix=True)  # a file for each process; `coverage combine` merges them
if "PYTEST_XDIST_WORKER" not in os.environ:
    _coverage.erase()  # an earlier run's data


@contextmanager
def covering(path: Path) -> Iterator[None]:
    """Measure lines of core inside the block, if this file tests core."""
    if path.name in SEARCHES or not any(folder in path.parents for folder in OF_CORE):
        yield
        return
    _coverage.start()
    try:
        yield
    finally:
        _coverage.stop()


def import_core() -> None:
    """Import core while measuring: code that runs at import counts, whichever module would import it first."""
    with covering(OF_CORE[0] / "import"):
        for path in sorted((ROOT / "psyche" / "core").rglob("*.py")):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


import_core()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Measure while tests are collected, which imports their file."""
    with covering(collector.path):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure a test with its fixtures."""
    with covering(item.path):
        return (yield)


def pytest_sessionfinish() -> None:
    """Save the data at the end of each worker, or of the only process."""
    _coverage.save()
