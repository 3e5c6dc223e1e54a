"""Files of evidence that a client keeps (V13)."""

import os
from pathlib import Path

from psyche.client.runtime.audit_tasks import _write_evidence


def test_the_newest_files_are_kept_and_what_else_is_in_the_folder_stays(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    for number in range(4):
        path = folder / f"{9 - number}.evidence"
        _write_evidence(path, b"raw", 2)
        os.utime(path, (number, number))
        (folder / "notes.txt").touch()
    assert sorted(path.name for path in folder.iterdir()) == ["6.evidence", "7.evidence", "notes.txt"]
