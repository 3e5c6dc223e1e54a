"""The journal's disk on a real folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from psyche.errors import BackendError
from psyche.server.journal.disk import FolderDisk


def test_what_is_appended_and_replaced_is_read_back_by_the_next_process(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path / "state")
    disk.append("a.bin", b"one")
    disk.append("b.bin", b"else")
    disk.append("a.bin", b"two")
    disk.replace("c.bin", b"old")
    disk.replace("c.bin", b"new")
    disk.close()
    disk = FolderDisk(tmp_path / "state")
    assert disk.names() == ["a.bin", "b.bin", "c.bin"]
    assert [disk.read(name) for name in disk.names()] == [b"onetwo", b"else", b"new"]
    disk.close()


def test_a_cut_file_goes_on_from_where_it_was_cut(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    disk.append("a.bin", b"good+torn")
    disk.truncate("a.bin", 5)
    disk.append("a.bin", b"next")
    assert disk.read("a.bin") == b"good+next"
    disk.close()


def test_a_removed_file_is_gone_even_while_it_is_open_for_appending(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    disk.append("a.bin", b"x")
    disk.remove("a.bin")
    disk.remove("a.bin")
    assert disk.names() == []
    disk.append("a.bin", b"y")
    assert disk.read("a.bin") == b"y"
    disk.close()


def test_two_servers_cannot_use_one_folder(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path)
    with pytest.raises(BackendError, match="another server is using it"):
        FolderDisk(tmp_path)
    disk.close()
    FolderDisk(tmp_path).close()


def test_the_folder_is_free_again_when_its_process_was_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from psyche.server.journal.disk import FolderDisk;"
        "d = FolderDisk(Path(sys.argv[1])); d.append('a.bin', b'kept'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode < 0
    disk = FolderDisk(tmp_path)
    assert disk.read("a.bin") == b"kept"
    disk.close()


def test_what_an_interrupted_replacement_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "snapshot-1.bin.tmp").write_bytes(b"half")
    disk = FolderDisk(tmp_path)
    assert disk.names() == []
    disk.close()


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"")
    with pytest.raises(BackendError, match="--state-dir"):
        FolderDisk(tmp_path / "state")
