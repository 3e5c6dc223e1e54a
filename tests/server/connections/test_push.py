"""Pushes (K5): what a subscriber rebuilds is the state, byte for byte, or it asks for the whole."""

import hashlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kits.server import Members, build_handler

from psyche.backends.tcp.push import apply_delta, read_full
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.state import RunState
from psyche.errors import WireError
from psyche.server.connections.push import COALESCE_S, StateVersion, compute_delay_s, compute_runs, make_push
from psyche.wire import backend as wire
from psyche.wire.crypto import blake3_hash

PHASE = (RunState.ROUND_TRAIN, 0, 3)


def build_version(raw: bytes, nonce: int, phase: tuple[RunState, int, int] = PHASE) -> StateVersion:
    return StateVersion(nonce, 100, nonce, phase, raw, blake3_hash(raw))


def change(raw: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    after = bytearray(raw)
    for offset, data in changes:
        after[offset : offset + len(data)] = data[: STATE_BYTES - offset]
    return bytes(after)


changes = st.lists(st.tuples(st.integers(0, STATE_BYTES - 1), st.binary(min_size=1, max_size=600)), max_size=12)


@given(changes, changes)
def test_a_delta_rebuilds_the_bytes_whatever_changed(
    first: list[tuple[int, bytes]], second: list[tuple[int, bytes]]
) -> None:
    before = change(bytes(STATE_BYTES), first)
    after = change(before, second)
    push = make_push(build_version(before, 5), build_version(after, 9), now=1)
    assert isinstance(push, wire.StateDelta)
    assert apply_delta(before, 5, push) == after
    assert wire.decode_server_message(wire.encode_message(push)) == push


def find_runs(before: bytes, after: bytes) -> list[tuple[int, int]]:
    """Byte by byte: runs of differing bytes, those up to eight equal bytes apart as one."""
    runs: list[tuple[int, int]] = []
    for place in [i for i in range(len(before)) if before[i] != after[i]]:
        if runs and place - runs[-1][1] <= 8:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


@given(st.lists(st.tuples(st.integers(0, 5_000), st.binary(min_size=1, max_size=40)), max_size=12))
def test_runs_are_the_same_wherever_blocks_of_comparison_begin(some: list[tuple[int, bytes]]) -> None:
    before = bytes(5_000)
    after = change(before, [*some, (1_020, b"over a border"), (2_040, b"1"), (2_049, b"2")])[:5_000]
    found = compute_runs(before, after)
    assert [(run.offset, run.offset + len(run.data)) for run in found] == find_runs(before, after)
    assert all(run.data == after[run.offset : run.offset + len(run.data)] for run in found)


def test_a_first_push_is_the_whole_state_compressed() -> None:
    version = build_handler().version
    push = make_push(None, version, now=77)
    assert isinstance(push, wire.FullState)
    assert (push.nonce, push.now_unix) == (version.nonce, 77)
    assert read_full(push) == version.raw
    assert len(push.compressed) < 4_096, "a state with few members is mostly zeros"


def test_a_change_of_almost_everything_is_pushed_as_the_whole_state() -> None:
    noise = b"".join(hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(STATE_BYTES // 32 + 1))
    after = build_version(noise[:STATE_BYTES], 2)
    push = make_push(build_version(bytes(STATE_BYTES), 1), after, now=1)
    assert isinstance(push, wire.FullState)
    assert read_full(push) == after.raw
    assert len(wire.encode_message(push)) <= wire.MAX_SERVER_FRAME_BYTES


def test_a_whole_run_can_be_followed_by_deltas_alone() -> None:
    handler = build_handler()
    members = Members(handler)
    sent, raw = handler.version, handler.version.raw
    for _ in members.finish():
        push = make_push(sent, handler.version, now=1)
        assert isinstance(push, wire.StateDelta)
        raw, sent = apply_delta(raw, sent.nonce, push), handler.version
        assert raw == encode_state(handler.state)
        assert decode_state(raw).nonce == handler.state.nonce
        if handler.state.in_round:
            members.ask(members.key(0), members.get_witness(0))
            push = make_push(sent, handler.version, now=1)
            assert len(wire.encode_message(push)) < 1_000, "a witness costs less than a kilobyte"


@pytest.mark.parametrize(
    ("nonce", "changes", "reason"),
    [(4, [], "from nonce 5, this client is at 4"), (5, [(9, b"y")], "hash")],
    ids=["another nonce", "other bytes"],
)
def test_a_delta_that_does_not_fit_is_refused(nonce: int, changes: list[tuple[int, bytes]], reason: str) -> None:
    raw = bytes(STATE_BYTES)
    push = make_push(build_version(raw, 5), build_version(change(raw, [(0, b"x")]), 6), now=1)
    assert isinstance(push, wire.StateDelta)
    with pytest.raises(WireError, match=reason):
        apply_delta(change(raw, changes), nonce, push)


def test_a_delta_that_leaves_the_state_is_refused() -> None:
    push = wire.StateDelta(5, 6, 1, bytes(16), (wire.ChangedBytes(STATE_BYTES - 1, b"ab"),))
    with pytest.raises(WireError, match="leaves the state"):
        apply_delta(bytes(STATE_BYTES), 5, push)


@pytest.mark.parametrize(
    ("compressed", "reason"),
    [
        (zstandard.compress(bytes(64 << 20)), "does not announce"),
        (b"no zstd at all", "cannot be decompressed"),
        (zstandard.compress(bytes(STATE_BYTES)), "hash"),
    ],
    ids=["gigabytes", "no zstd", "another hash"],
)
def test_a_full_state_that_is_none_is_refused_before_it_is_decompressed(compressed: bytes, reason: str) -> None:
    assert len(compressed) < 10_000
    with pytest.raises(WireError, match=reason):
        read_full(wire.FullState(1, 1, bytes(16), compressed))


def test_pushes_wait_for_each_other_unless_the_phase_has_changed() -> None:
    sent = build_version(bytes(STATE_BYTES), 1)
    later = build_version(bytes(STATE_BYTES), 2)
    assert compute_delay_s(sent, later, since_push_s=0.03) == pytest.approx(COALESCE_S - 0.03)
    assert compute_delay_s(sent, later, since_push_s=5) == 0
    for phase in ((RunState.ROUND_WITNESS, 0, 3), (RunState.ROUND_TRAIN, 0, 4), (RunState.ROUND_TRAIN, 1, 3)):
        assert compute_delay_s(sent, build_version(bytes(STATE_BYTES), 2, phase), since_push_s=0) == 0
