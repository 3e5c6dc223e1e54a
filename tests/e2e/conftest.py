"""One tiny model for all runs here, and folders that are kept only of a run that failed."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.run_files import MakeRun, write_model, write_run

from psyche.modeling.trainer.process import HOST_VARIABLE

HOST_S = 120.0  # on a busy machine; after that clients start their own trainers


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """What trains in this process shares its cores with others."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _trainer_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One process imports torch for all trainers of all clients; without it each would, one beside the other."""
    path = tmp_path_factory.mktemp("host") / "trainers"
    command = [sys.executable, "-m", "psyche.modeling.trainer.host", "--socket", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOST_VARIABLE, str(path))
        host = subprocess.Popen([*command, "--parent", str(os.getpid())])
        deadline = time.monotonic() + HOST_S
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield
        host.kill()
        host.wait()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of about 25,000 parameters with a tokenizer."""
    return write_model(tmp_path_factory.mktemp("tiny") / "made")


@pytest.fixture(scope="session")
def make_run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Writes a configuration; keywords replace what the kit's says."""

    def make(host: str = "127.0.0.1", **changes: object) -> Path:
        return write_run(tmp_path_factory.mktemp("run") / "config", tiny_model, host=host, **changes)

    return make
