"""How ranks come to a trainer's store: who takes no place leaves it to others, and who goes again is missed."""

import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import torch
from torch.distributed import TCPStore

from psyche.errors import TrainerError
from psyche.modeling import device
from psyche.modeling.trainer.failure import TrainerFailure
from psyche.modeling.trainer.process import TrainerProcess, WatchdogLimits
from psyche.modeling.trainer.ranks import group as groups
from psyche.modeling.trainer.ranks.process import join
from psyche.wire.trainer import ApplyRequest, Devices, LoadRequest

ASKED = Devices(data_parallelism=2, rendezvous="127.0.0.1:1")


@pytest.fixture
def store() -> TCPStore:
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    store.set(groups.SIZES, "2 1")
    store.add(groups.TAKEN, 1)
    return store


def count(store: TCPStore) -> tuple[int, int]:
    return store.add(groups.TAKEN, 0), store.add(groups.JOINED, 0)


def test_a_sidecar_that_has_too_many_devices_leaves_its_places_to_others(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "list_devices", lambda _name: [torch.device("cpu")] * 2)
    with pytest.raises(SystemExit, match="has room for 1 more ranks, and --device cpu is 2 devices"):
        join("127.0.0.1", store.port, None, "cpu")
    assert count(store) == (1, 0)


def test_a_sidecar_whose_device_computes_nothing_takes_no_place(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_device: torch.device) -> None:
        raise TrainerError("torch cannot compute on it")

    monkeypatch.setattr(device, "try_device", refuse)
    with pytest.raises(TrainerError, match="cannot compute"):
        join("127.0.0.1", store.port, None, "cpu")
    assert count(store) == (1, 0)


def test_a_trainer_that_waits_for_ranks_does_not_wait_for_one_that_has_gone(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "POLL_S", 0.0)
    monkeypatch.setattr(groups, "LOST_S", 0.0)
    beats: list[int] = []

    def beat() -> None:
        beats.append(len(beats))
        if len(beats) < 3:  # then never again
            store.add(f"{groups.ALIVE}1", 1)

    with pytest.raises(TrainerFailure, match="rank 1 has gone before all 2 were there"):
        groups._await_ranks(store, ASKED, 1, beat)
    assert len(beats) >= 3


def start_sidecar(tmp_path: Path) -> tuple[str, subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [sys.executable, "-m", "psyche", "client", "sidecar", "--rendezvous", place, "--device", "cpu"]
    with (tmp_path / "sidecar.log").open("wb") as output:
        return place, subprocess.Popen(command, stdout=output, stderr=output)


def start_trainer(tmp_path: Path) -> TrainerProcess:
    return TrainerProcess(limits=WatchdogLimits(start_s=900.0, unknown_s=900.0), log_path=tmp_path / "trainer.log")


@pytest.mark.whole
async def test_a_sidecar_lends_a_rank_until_it_is_stopped_which_the_trainer_says(
    load_request: LoadRequest, tmp_path: Path
) -> None:
    trainer = start_trainer(tmp_path)
    place, sidecar = start_sidecar(tmp_path)
    try:
        await trainer.load(msgspec.structs.replace(load_request, data_parallelism=2, rendezvous=place))
        apply = ApplyRequest(height=0, lr=1e-2, payloads=(), run_update=True, full_digest=True, random_seed=0)
        assert (await trainer.apply(apply)).weight_part
        sidecar.send_signal(signal.SIGINT)
        assert sidecar.wait(60) == 130
        with pytest.raises(TrainerFailure, match="a rank has gone, or the line to its machine"):
            await trainer.apply(apply)
    finally:
        sidecar.kill()
        await trainer.stop()


@pytest.mark.whole
async def test_a_sidecar_whose_trainer_ends_says_so_in_a_line_and_serves_the_next_one(
    load_request: LoadRequest, tmp_path: Path
) -> None:
    place, sidecar = start_sidecar(tmp_path)
    try:
        for _ in range(2):
            trainer = start_trainer(tmp_path)
            try:
                await trainer.load(msgspec.structs.replace(load_request, data_parallelism=2, rendezvous=place))
            finally:
                await trainer.stop()
        text = (tmp_path / "sidecar.log").read_text()
        assert "the ranks have ended" in text
        assert "Traceback" not in text
    finally:
        sidecar.kill()
