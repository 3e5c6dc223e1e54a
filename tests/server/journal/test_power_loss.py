"""The journal on a real folder when the power fails: what was synced is there, and the server goes on from it."""

import os
from pathlib import Path
from typing import Any

import pytest
from kits.power_loss import Watch, watch_disk
from kits.server import RunFile

from psyche import durable
from psyche.core.encoding.account import encode_state
from psyche.core.state.messages import Pause, Resume
from psyche.core.state.state import Coordinator
from psyche.server.journal import disk as server_disk
from psyche.server.journal import journal as j
from psyche.server.journal.changes import Change
from psyche.server.journal.disk import FolderDisk
from psyche.server.journal.recovery import recover
from psyche.server.run import open_run
from psyche.testing.builders import START_UNIX
from psyche.wire.crypto import blake3_hash

STATE = "of/a/run"
RECORDS = 14


def write_run(root: Path) -> tuple[Watch, list[bytes]]:
    """A run is made, paused and resumed again and again; the state after each record. A snapshot comes every five."""
    root.mkdir()
    states: list[bytes] = []
    with watch_disk(root) as watch:
        disk = FolderDisk(root / STATE)
        run = open_run(disk, RunFile(), bytes(32), "test", lambda: START_UNIX)
        states.append(encode_state(run.state))
        watch.promise(0)
        for number in range(1, RECORDS + 1):
            _change(run.state, run.journal, number)
            states.append(encode_state(run.state))
            if number % 5 == 0:
                run.journal.snapshot(START_UNIX + number, states[-1], ())
            if number % 3:  # a batch of two now and then
                run.journal.flush()
                watch.promise(number)
        disk.close()
    return watch, states


def _change(state: Coordinator, journal: j.Journal, number: int) -> None:
    op_id = number.to_bytes(16, "little")
    change = Change(Pause() if number % 2 else Resume(), op_id=op_id)
    change.process(state, START_UNIX + number)
    journal.append(START_UNIX + number, change, blake3_hash(encode_state(state)))


def find_lost(watch: Watch, states: list[bytes], root: Path) -> list[str]:
    """Which power cuts lose what was promised, or leave a folder that no server starts from."""
    lost: list[str] = []
    for number, loss in enumerate(watch.losses):
        folder = root / str(number)
        folder.mkdir(parents=True)
        loss.restore(folder)
        disk = FolderDisk(folder / STATE)
        try:
            found = recover(disk)
        except j.JournalError as error:
            lost.append(f"{loss.moment}: {error}")
            continue
        finally:
            disk.close()
        last = -1 if found is None else found.journal.last_seq
        least = -1 if loss.promised is None else loss.promised
        is_right = found is None or encode_state(found.state) == states[last]
        if last < least or not is_right:
            lost.append(f"{loss.moment}: {last} of {least} records")
    return lost


def test_no_power_cut_loses_what_was_promised(tmp_path: Path) -> None:
    watch, states = write_run(tmp_path / "run")
    count = len(watch.losses)
    assert count > 3 * RECORDS
    assert find_lost(watch, states, tmp_path) == []


class _Without:
    """The module `os`, but one call does nothing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return (lambda _descriptor: None) if name == self._name else getattr(os, name)


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        (server_disk, "os", _Without("fdatasync")),
        (server_disk, "sync_folder", lambda _folder: None),
        (durable, "sync_folder", lambda _folder: None),
        (durable, "os", _Without("fsync")),
    ],
    ids=["records", "names", "folders", "snapshots"],
)
def test_a_disk_that_syncs_less_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, instead: object
) -> None:
    monkeypatch.setattr(module, name, instead)
    assert find_lost(*write_run(tmp_path / "run"), tmp_path)
