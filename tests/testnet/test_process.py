"""No child outlives its supervisor, whatever ends it."""

import signal
import sys
from pathlib import Path

import pytest
import trio
from kits.leftovers import is_alive, until_dead
from trio.testing import MockClock

from psyche.testnet.process import LAUNCHER, Child, describe_exit_status, stop_all

DEADLINE_S = 300.0  # only a broken leash reaches it
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
PARENT_OF_ONE = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print('up', child.pid, flush=True)\n"
    "time.sleep(600)"
)


def make_child(tmp_path: Path, program: str, name: str = "client-1") -> Child:
    return Child(name, [sys.executable, "-c", program], output=tmp_path / f"{name}.log")


async def wait_for_output(child: Child) -> list[str]:
    with trio.fail_after(DEADLINE_S):
        while not child.get_last_lines(1):
            await trio.sleep(0.01)
    return child.get_last_lines(1)[0].split()


async def test_several_tasks_may_wait_and_one_may_give_up(tmp_path: Path) -> None:
    child = make_child(tmp_path, SLEEPER)
    results: list[int] = []

    async def wait_one() -> None:
        results.append(await child.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_one)
        nursery.start_soon(wait_one)
        with trio.move_on_after(0):
            await child.wait()
        child.kill()
    assert results == [-signal.SIGKILL, -signal.SIGKILL]


async def test_stop_kills_who_does_not_listen(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.rate = 1.0
    children = [make_child(tmp_path, STUBBORN, "a"), make_child(tmp_path, SLEEPER, "b")]
    for child in children:
        await wait_for_output(child)
    mock_clock.rate = 0.0
    stubborn: list[str] = []

    async def stop() -> None:
        stubborn.extend(await stop_all(children, 6.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        assert await children[1].wait() == -signal.SIGINT
        mock_clock.jump(5.9)
        await trio.testing.wait_all_tasks_blocked()
        assert children[0].is_running()
        mock_clock.jump(0.2)
    assert stubborn == ["a"]
    assert children[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("is_killed", [True, False], ids=["kill", "clean exit"])
async def test_the_end_of_a_child_takes_its_own_children_along(is_killed: bool, tmp_path: Path) -> None:
    child = make_child(tmp_path, PARENT_OF_ONE if is_killed else PARENT_OF_ONE.rsplit("\n", 1)[0])
    _, grandchild = await wait_for_output(child)
    if is_killed:
        child.kill()
    assert await child.wait() == (-signal.SIGKILL if is_killed else 0)
    await until_dead(int(grandchild))


async def test_a_cancelled_stop_leaves_nothing(tmp_path: Path) -> None:
    child = make_child(tmp_path, STUBBORN)
    await wait_for_output(child)
    with trio.CancelScope() as scope:
        scope.cancel()
        await child.stop(60)
    assert not is_alive(child.pid)


async def test_a_child_whose_parent_is_already_gone_never_starts(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    command = [sys.executable, "-S", "-E", str(LAUNCHER), "1", "/bin/touch", str(marker)]
    done = await trio.run_process(command, check=False)
    assert done.returncode == 125
    assert not marker.exists()


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ([sys.executable, "-c", "import sys; print('bye'); sys.exit(3)"], 3, "bye"),
        (["/nonexistent/program"], 127, "/nonexistent/program: No such file or directory"),
    ],
)
async def test_a_program_that_ends_gives_its_exit_code_and_last_lines(
    argv: list[str], code: int, said: str, tmp_path: Path
) -> None:
    child = Child("x", argv, output=tmp_path / "x.log")
    assert [await child.wait(), await child.wait()] == [code, code]
    assert child.get_last_lines(5) == [said]


@pytest.mark.parametrize(
    ("returncode", "text"),
    [(None, "still running"), (0, "exit code 0"), (-9, "killed by SIGKILL"), (-200, "killed by signal 200")],
)
def test_an_exit_is_described(returncode: int | None, text: str) -> None:
    assert describe_exit_status(returncode) == text
