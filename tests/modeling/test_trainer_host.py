"""Trainers forked by a host that has imported torch: the same faces, the same deaths."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.modeling.trainer.process import HOST_VARIABLE, TrainerProcess
from psyche.wire.trainer import LoadRequest

START_S = 300.0  # of the imports, on a busy machine


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    path = tmp_path_factory.mktemp("host") / "trainers"
    argv = [sys.executable, "-m", "psyche.modeling.trainer.host", "--socket", str(path), "--parent", str(os.getpid())]
    process = subprocess.Popen(argv)
    deadline = time.monotonic() + START_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    yield process, path
    process.kill()
    process.wait()


@pytest.fixture
def trainer(host: tuple[subprocess.Popen[bytes], Path], monkeypatch: pytest.MonkeyPatch) -> TrainerProcess:
    monkeypatch.setenv(HOST_VARIABLE, str(host[1]))
    return TrainerProcess(threads=1)


def get_parent(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def until_gone(pid: int) -> None:
    """Dead, and taken leave of by its host."""
    with trio.fail_after(10):
        while Path(f"/proc/{pid}").exists():
            await trio.sleep(0.02)


async def test_a_hosted_trainer_loads_and_ends_when_stopped(
    host: tuple[subprocess.Popen[bytes], Path], trainer: TrainerProcess, load_request: LoadRequest
) -> None:
    await trainer.start()
    pid = trainer.pid
    assert pid is not None
    assert get_parent(get_parent(pid)) == host[0].pid, "forked by the host's fork server"
    assert (await trainer.load(load_request)).parameters > 0
    await trainer.stop()
    await until_gone(pid)


async def test_a_hosted_trainer_reads_relative_paths_from_where_its_client_runs(
    trainer: TrainerProcess, load_request: LoadRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(load_request.path)
    monkeypatch.chdir(folder.parent)
    assert (await trainer.load(msgspec.structs.replace(load_request, path=folder.name))).parameters > 0
    await trainer.stop()


async def test_a_hosted_trainer_that_is_killed_is_a_crash_and_can_be_started_again(
    trainer: TrainerProcess, load_request: LoadRequest
) -> None:
    await trainer.start()
    assert trainer.pid is not None
    os.kill(trainer.pid, signal.SIGKILL)
    with pytest.raises(TrainerFailure, match="SIGKILL") as failure:
        await trainer.load(load_request)
    assert failure.value.kind is FailureKind.CRASHED
    await trainer.restart()
    assert (await trainer.load(load_request)).parameters > 0
    await trainer.stop()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\0\0\0\1?", id="no request"),
        pytest.param(b"\0\0\0\x40?", id="cut short, by a client that stays"),
        pytest.param(b'\0\0\0\x0a[1,{},"/"]\1', id="without its descriptors"),
    ],
)
async def test_a_request_that_cannot_be_read_costs_the_host_nothing(
    host: tuple[subprocess.Popen[bytes], Path], trainer: TrainerProcess, raw: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(str(host[1]))
        other.sendall(raw)
        await trainer.start()
        assert get_parent(get_parent(trainer.pid)) == host[0].pid
        await trainer.stop()


@pytest.mark.whole
async def test_trainers_die_with_their_host_and_then_start_by_themselves(
    host: tuple[subprocess.Popen[bytes], Path], trainer: TrainerProcess, load_request: LoadRequest
) -> None:
    await trainer.start()
    pid = trainer.pid
    assert pid is not None
    host[0].kill()
    with trio.fail_after(10):
        while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
            await trio.sleep(0.02)
    with pytest.raises(TrainerFailure, match="SIGKILL"):
        await trainer.load(load_request)
    await trainer.restart()
    assert get_parent(trainer.pid) == os.getpid()
    await trainer.stop()
