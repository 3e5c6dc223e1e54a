"""Trainers forked by a host that has imported torch: the same faces, the same deaths."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest
import trio

from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.modeling.trainer.process import HOST_VARIABLE, TrainerProcess
from psyche.wire.trainer import LoadRequest


@pytest.fixture
def trainer(trainer_host: subprocess.Popen[bytes]) -> TrainerProcess:
    return TrainerProcess(threads=1)


def get_parent(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def until_gone(pid: int) -> None:
    """Dead, and taken leave of by its host."""
    with trio.fail_after(60):
        while Path(f"/proc/{pid}").exists():
            await trio.sleep(0.02)


async def test_a_hosted_trainer_loads_and_ends_when_stopped(
    trainer_host: subprocess.Popen[bytes], trainer: TrainerProcess, load_request: LoadRequest
) -> None:
    await trainer.start()
    pid = trainer.pid
    assert pid is not None
    assert get_parent(get_parent(pid)) == trainer_host.pid, "forked by the host's fork server"
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
        pytest.param(b"\0\0\0\x40?", id="cut short, by a client that stays 5 s", marks=pytest.mark.whole),
        pytest.param(b'\0\0\0\x0a[1,{},"/"]\1', id="without its descriptors"),
    ],
)
async def test_a_request_that_cannot_be_read_costs_the_host_nothing(
    trainer_host: subprocess.Popen[bytes], trainer: TrainerProcess, raw: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(os.environ[HOST_VARIABLE])
        other.sendall(raw)
        await trainer.start()
        assert get_parent(get_parent(trainer.pid)) == trainer_host.pid
        await trainer.stop()


@pytest.mark.whole
async def test_trainers_die_with_their_host_and_then_start_by_themselves(
    own_trainer_host: subprocess.Popen[bytes], load_request: LoadRequest
) -> None:
    trainer = TrainerProcess(threads=1)
    await trainer.start()
    pid = trainer.pid
    assert pid is not None
    own_trainer_host.kill()
    with trio.fail_after(60):
        while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
            await trio.sleep(0.02)
    with pytest.raises(TrainerFailure, match="SIGKILL"):
        await trainer.load(load_request)
    await trainer.restart()
    assert get_parent(trainer.pid) == os.getpid()
    await trainer.stop()
