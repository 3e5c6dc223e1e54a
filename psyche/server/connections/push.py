"""State pushes to subscribers (K5): full states and deltas, without I/O; `backends.tcp.push` decodes them.

A full state takes up to 165 KB, a delta about 600 bytes for a witness. The server remembers the version that
each subscriber got last; a slow subscriber gets fewer and larger deltas, never a queue.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import zstandard

from psyche.core.state.state import Coordinator, RunState
from psyche.wire.backend import STATE_HASH_BYTES, ChangedBytes, FullState, StateDelta
from psyche.wire.crypto import blake3_hash

COALESCE_S: Final = 0.1  # K5: the least pause between pushes, unless the run's phase changes
CLOCK_GRAIN_S: Final = 1e-3  # shorter waits may round to zero
MAX_DELTA_BYTES: Final = 32_768  # above this the compressed full state is smaller
_BLOCK_BYTES: Final = 1_024  # more than the equal bytes kept within a run, so no run spans an equal block
_COMPRESSION_LEVEL: Final = 1  # the state is mostly zeros: more effort gains nothing
# A run has about 9 bytes of overhead, so up to that many equal bytes between two changes are kept in it.
_CHANGED: Final = re.compile(rb"[^\0](?:\0{0,8}[^\0]++)*+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StateVersion:
    """One encoded state of the run, and the journal record that must be on disk before anybody may see it."""

    seq: int
    now: int  # Unix seconds of the event that produced it
    nonce: int
    phase: tuple[RunState, int, int]  # run state, epoch, height: when they change, the state is pushed at once
    raw: bytes
    hash: bytes  # BLAKE3, 32 bytes


def make_version(seq: int, now: int, state: Coordinator, raw: bytes) -> StateVersion:
    phase = (state.run_state, state.progress.epoch, state.current.height)
    return StateVersion(seq, now, state.nonce, phase, raw, blake3_hash(raw))


def compute_runs(before: bytes, after: bytes) -> tuple[ChangedBytes, ...]:
    return tuple(run for start, end in _find_changed(before, after) for run in _compare(before, after, start, end))


def _find_changed(before: bytes, after: bytes) -> list[tuple[int, int]]:
    """Find the blocks that differ, merging adjacent ones: most blocks are equal, and comparing blocks is fast."""
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
    compressed = zstandard.compress(version.raw, _COMPRESSION_LEVEL)
    return FullState(version.nonce, now, version.hash[:STATE_HASH_BYTES], compressed)


def make_push(sent: StateVersion | None, version: StateVersion, now: int) -> FullState | StateDelta:
    """Build the push that updates a subscriber from the version it was `sent` (None: nothing yet) to `version`."""
    if sent is None:
        return make_full(version, now)
    runs = compute_runs(sent.raw, version.raw)
    if sum(len(run.data) for run in runs) > MAX_DELTA_BYTES:
        return make_full(version, now)
    return StateDelta(sent.nonce, version.nonce, now, version.hash[:STATE_HASH_BYTES], runs)


def compute_delay_s(sent: StateVersion, version: StateVersion, since_push_s: float) -> float:
    """Compute how many seconds to delay the push of `version`, so that others join it; 0 means now."""
    if sent.phase != version.phase:
        return 0.0
    left_s = COALESCE_S - since_push_s
    return left_s if left_s > CLOCK_GRAIN_S else 0.0
