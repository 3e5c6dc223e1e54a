"""What a run's first weights are: the server puts their digest on record when it makes the run (S11)."""

from pathlib import Path

from kits.models import write_model_folder
from kits.server import OWNER, MemoryDisk, RunFile

from psyche.core.state.state import Mark
from psyche.modeling.first_weights import compute_first_digest
from psyche.modeling.model_files import FolderFiles
from psyche.server.journal.recovery import OpenRun
from psyche.server.run import open_run
from psyche.testing.builders import START_UNIX


def open_with(folder: Path, disk: MemoryDisk | None = None) -> OpenRun:
    return open_run(disk or MemoryDisk(), RunFile(), OWNER.public, "test", lambda: START_UNIX, model_folder=folder)


def test_a_new_run_is_bound_to_the_weights_in_its_model_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model_folder(folder)
    disk = MemoryDisk()
    opened = open_with(folder, disk)
    digest = compute_first_digest(FolderFiles(folder), is_exact=True)
    assert opened.state.certified == opened.state.checkpoint == Mark(digest, step=1)
    assert opened.notes == ()
    (folder / "config.json").write_text("{}")
    assert open_with(folder, disk).state.certified.digest == digest, "the run is not new"


def test_a_folder_that_cannot_be_read_is_named_and_none_is_no_fault(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model_folder(folder)
    (folder / "config.json").unlink()
    opened = open_with(folder)
    assert opened.state.certified == opened.state.checkpoint == Mark()
    (note,) = opened.notes
    assert "not on record" in note
    assert "config.json" in note
    without = open_with(tmp_path / "nowhere")
    assert (without.state.certified, without.notes) == (Mark(), ())
