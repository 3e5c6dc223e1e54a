"""What a subscriber is sent of the state (K5), as plain computation; `backends.tcp.push` reads it.

A full state costs up to 165 KB, a delta about 600 bytes for a witness. The server keeps for each
subscriber which version it got last; one who is slow gets fewer and larger deltas, never a queue.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import zstandard

from psyche.core.state.state import Coordinator, RunState
from psyche.wire.backend import STATE_HASH_BYTES, ChangedBytes, FullState, StateDelta
from psyche.wire.crypto import blake3_hash

COALESCE_S: Final = 0.1  # K5: pushes are at least this far apart, but for a change of the run's phase
CLOCK_GRAIN_S: Final = 1e-3  # what is left of a wait: less may round to no time at all
MAX_DELTA_BYTES: Final = 32_768  # above this the compressed whole is the smaller one
_BLOCK_BYTES: Final = 1_024  # more than the equal bytes that stay in a run, so no run reaches over an equal block
_COMPRESSION_LEVEL: Final = 1  # the state is mostly zeros: more effort gains nothing
# A run costs about 9 bytes of its own, so equal bytes up to that many between two changes stay in.
_CHANGED: Final = re.compile(rb"[^\0](?:\0{0,8}[^\0]++)*+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StateVersion:
    """One state of the run in bytes, and what the journal needs to have on disk before anybody may see it."""

    seq: int
    now: int  # unix seconds of the event that made it
    nonce: int
    phase: tuple[RunState, int, int]  # run state, epoch, height: a change of these is pushed at once
    raw: bytes
    hash: bytes  # BLAKE3, 32 bytes


def make_version(seq: int, now: int, state: Coordinator, raw: bytes) -> StateVersion:
    """The version of `state`, whose bytes are `raw`, after the journal's record `seq`."""
    phase = (state.run_state, state.progress.epoch, state.current.height)
    return StateVersion(seq, now, state.nonce, phase, raw, blake3_hash(raw))


def compute_runs(before: bytes, after: bytes) -> tuple[ChangedBytes, ...]:
    """The byte runs in which two states of equal length differ."""
    return tuple(run for start, end in _find_changed(before, after) for run in _compare(before, after, start, end))


def _find_changed(before: bytes, after: bytes) -> list[tuple[int, int]]:
    """Where blocks differ, those side by side as one: most of a state stays as it is, and blocks compare quickly."""
    found: list[tuple[int, int]] = []
    for start in range(0, len(before), _BLOCK_BYTES):
        end = start + _BLOCK_BYTES
        if before[start:end] != after[start:end]:
            found.append((found.pop()[0] if found and found[-1][1] == start else start, end))
    return found


def _compare(before: bytes, after: bytes, start: int, end: int) -> Iterator[ChangedBytes]:
    old, new = before[start:end], after[start:end]
    changed = (int.from_bytes(old, "little") ^ int.from_bytes(new, "little")).to_bytes(len(old), "little")
    for match in _CHANGED.finditer(changed):
        yield ChangedBytes(start + match.start(), new[match.start() : match.end()])


def make_full(version: StateVersion, now: int) -> FullState:
    """The whole state, compressed."""
    compressed = zstandard.compress(version.raw, _COMPRESSION_LEVEL)
    return FullState(version.nonce, now, version.hash[:STATE_HASH_BYTES], compressed)


def make_push(sent: StateVersion | None, version: StateVersion, now: int) -> FullState | StateDelta:
    """What brings a subscriber from the version it was `sent` (None: nothing yet) to `version`."""
    if sent is None:
        return make_full(version, now)
    runs = compute_runs(sent.raw, version.raw)
    if sum(len(run.data) for run in runs) > MAX_DELTA_BYTES:
        return make_full(version, now)
    return StateDelta(sent.nonce, version.nonce, now, version.hash[:STATE_HASH_BYTES], runs)


def compute_delay_s(sent: StateVersion, version: StateVersion, since_push_s: float) -> float:
    """How long `version` may wait for others to be pushed with it; 0 is now."""
    if sent.phase != version.phase:
        return 0.0
    left_s = COALESCE_S - since_push_s
    return left_s if left_s > CLOCK_GRAIN_S else 0.0
