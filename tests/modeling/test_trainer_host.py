"""Trainers forked by a host that has imported torch: the same faces, the same deaths."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.modeling.trainer.process import HOST_VARIABLE, TrainerProcess
from psyche.wire.trainer import LoadRequest

START_S = 120.0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    path = tmp_path_factory.mktemp("host") / "trainers"
    command = [
        sys.executable,
        "-m",
        "psyche.modeling.trainer.host",
        "--socket",
        str(path),
        "--parent",
        str(os.getpid()),
    ]
    process = subprocess.Popen(command)
    yield process, path
    process.kill()
    process.wait()


async def wait_for(path: Path) -> None:
    with trio.fail_after(START_S):
        while not path.exists():
            await trio.sleep(0.05)


async def until_gone(pid: int) -> None:
    """Dead, and taken leave of by its host."""
    with trio.fail_after(10):
        while Path(f"/proc/{pid}").exists():
            await trio.sleep(0.02)


async def test_a_hosted_trainer_loads_and_ends_when_stopped(
    host: tuple[subprocess.Popen[bytes], Path], load_request: LoadRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, path = host
    await wait_for(path)
    monkeypatch.setenv(HOST_VARIABLE, str(path))
    trainer = TrainerProcess(threads=1)
    await trainer.start()
    pid = trainer.pid
    assert pid is not None
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(process.pid), "forked by the host"
    reply = await trainer.load(load_request)
    assert reply.parameters > 0
    await trainer.stop()
    await until_gone(pid)


async def test_a_hosted_trainer_reads_relative_paths_from_where_its_client_runs(
    host: tuple[subprocess.Popen[bytes], Path], load_request: LoadRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = host
    await wait_for(path)
    monkeypatch.setenv(HOST_VARIABLE, str(path))
    folder = Path(load_request.path)
    monkeypatch.chdir(folder.parent)
    trainer = TrainerProcess(threads=1)
    reply = await trainer.load(msgspec.structs.replace(load_request, path=folder.name))
    assert reply.parameters > 0
    await trainer.stop()


async def test_a_hosted_trainer_that_is_killed_is_a_crash_and_can_be_started_again(
    host: tuple[subprocess.Popen[bytes], Path], load_request: LoadRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = host
    await wait_for(path)
    monkeypatch.setenv(HOST_VARIABLE, str(path))
    trainer = TrainerProcess(threads=1)
    await trainer.start()
    assert trainer.pid is not None
    os.kill(trainer.pid, signal.SIGKILL)
    with pytest.raises(TrainerFailure, match="SIGKILL") as failure:
        await trainer.load(load_request)
    assert failure.value.kind is FailureKind.CRASHED
    await trainer.restart()
    assert (await trainer.load(load_request)).parameters > 0
    await trainer.stop()


@pytest.mark.whole
async def test_without_a_reachable_host_the_trainer_starts_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOST_VARIABLE, str(tmp_path / "nobody"))
    trainer = TrainerProcess(threads=1)
    await trainer.start()
    assert trainer.pid is not None
    parent = Path(f"/proc/{trainer.pid}/stat").read_text().rpartition(")")[2].split()[1]
    assert parent == str(os.getpid())
    await trainer.stop()
