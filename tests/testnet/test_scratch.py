"""What a killed testnet leaves below /tmp goes at the next start, and nothing else does."""

import signal
import subprocess
import sys
from pathlib import Path

from psyche.testnet.scratch import PREFIX, Scratch

HOLD = """
import sys, time
from pathlib import Path
from psyche.testnet.scratch import Scratch
print(Scratch(Path(sys.argv[1])).path, flush=True)
time.sleep(600)
"""


def test_the_folder_of_a_killed_process_goes_at_the_next_start(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        own = Scratch(tmp_path)
        assert held.is_dir(), "its process lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
    again = Scratch(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([own.path, again.path])
    for scratch in (own, again, again):
        scratch.remove()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}mine").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "lock").touch()
    (tmp_path / f"{PREFIX}linked").mkdir()
    (tmp_path / f"{PREFIX}linked" / "lock").symlink_to(tmp_path / "other" / "lock")
    Scratch(tmp_path).remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", f"{PREFIX}linked", f"{PREFIX}mine"]
