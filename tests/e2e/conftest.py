"""One tiny model for all runs here, and folders that are kept only of a run that failed."""

from pathlib import Path

import pytest
from kits.run_files import MakeRun, write_model, write_run


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """What trains in this process shares its cores with others."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _trainers(trainer_host: None) -> None:
    """All trainers of all clients are forked by one process."""


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
