"""What all tests share: how hypothesis searches and says what it found, and a clock that waits for threads."""

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import trio
import typer.testing
from hypothesis import HealthCheck, settings
from kits.clocks import SteadyClock, make_autojump_clock
from kits.tier import AMOUNTS, IS_WHOLE
from trio.testing import MockClock

from psyche.modeling.trainer.process import HOST_VARIABLE

# Test files may have equal names (importlib mode); what they share in a folder is still imported by its plain name.
_folders = {path.parent for path in Path(__file__).parent.rglob("*.py")}
sys.path += sorted(str(folder) for folder in _folders if not (folder / "__init__.py").exists())

# No deadlines: a slow machine is no failing test. A failing example prints the blob that repeats it.
settings.register_profile(
    "default",
    max_examples=AMOUNTS.examples,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell that starts this in the background without job control has it ignore Ctrl-C, and all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each call of a CliRunner builds all commands anew, a tenth of a second; the commands do not change.
typer.testing._get_command = cache(typer.testing._get_command)

HOST_S = 120.0  # on a busy machine; after that every trainer is a process of its own
START_S = 100_000.0  # as trio's own, which starts anywhere: nothing may count on 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=partial(run_on_its_clock, item)))
    leave_out_second_tier(config, items)
    items.sort(key=lambda item: 0 if item.get_closest_marker("e2e") else 1)  # the longest ones first


def leave_out_second_tier(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what `bash scripts/test --all` alone runs, unless somebody names its file."""
    named = {Path(config.invocation_params.dir, one.partition("::")[0]) for one in config.args}
    left_out = {i for i in items if not IS_WHOLE and i.get_closest_marker("whole") and i.path not in named}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def run_on_its_clock(item: pytest.Function, main: Callable[[], Awaitable[object]], **options: Any) -> object:
    """Run a test on the clock among its fixtures, else on one that counts no stall of the machine.

    pytest-trio itself sees a clock only where the test function names it: `usefixtures` and fixtures of fixtures
    had no effect.
    """
    clocks = [value for value in item.funcargs.values() if isinstance(value, trio.abc.Clock)]
    assert len(clocks) <= 1, f"{item.name} has {len(clocks)} clocks"
    clock = clocks[0] if clocks else SteadyClock(start_s=START_S)
    return trio.run(main, **(options | {"clock": clock}))


@pytest.fixture
def autojump_clock() -> MockClock:
    """Instead of pytest-trio's, which jumps while worker threads run."""
    return make_autojump_clock()


@pytest.fixture(scope="session")
def trainer_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """One process imports torch for all trainers, also those that say what a config leads to; else each would."""
    with open_trainer_host(tmp_path_factory.mktemp("host") / "trainers") as host:
        yield host


@pytest.fixture
def own_trainer_host(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One to be killed."""
    with open_trainer_host(tmp_path / "trainers") as host:
        yield host


@contextmanager
def open_trainer_host(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "psyche.modeling.trainer.host", "--socket", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOST_VARIABLE, str(path))
        host = subprocess.Popen([*command, "--parent", str(os.getpid())])
        deadline = time.monotonic() + HOST_S
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield host
        host.kill()
        host.wait()
