"""Checks that a fresh server process finds the record in the files (I8, I10)."""

from typing import Final

from psyche.core.encoding.account import encode_state
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.state import Coordinator
from psyche.server.journal.journal import SNAPSHOT_EVERY_BYTES
from psyche.server.journal.recovery import recover
from psyche.sim.disk import DiskHandle, ServerFiles
from psyche.sim.invariants.views import Check
from psyche.wire.crypto import blake3_hash

MAX_SNAPSHOT_BYTES: Final = 1_000_000
MAX_JOURNAL_BYTES: Final = 3 * (SNAPSHOT_EVERY_BYTES + STATE_BYTES)  # two snapshots with later records, a new snapshot


def check_recovery(files: ServerFiles, expected: Coordinator, check: Check) -> None:
    wanted = f"the files give {_describe(expected)}"
    try:
        found = recover(DiskHandle(files.copy()))
    except Exception as error:  # noqa: BLE001 - whatever the error, a server would not restart
        check(False, "I10", wanted, f"recovery ends with {error!r}")
        return
    raw = b"" if found is None else encode_state(found.state)
    seen = "no run" if found is None else _describe(found.state)
    check(raw == encode_state(expected), "I10", wanted, seen)


def _describe(state: Coordinator) -> str:
    """A state in a few words; it must not fail for an invalid state, which is reported as well."""
    where = f"epoch {state.progress.epoch} {state.run_state.name} height {state.current.height}"
    return f"{where} step {state.progress.step}, state {blake3_hash(encode_state(state)).hex()[:16]}"
