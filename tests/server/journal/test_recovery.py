"""Recovery (K2, F5): a server killed after any record goes on as if nothing had happened, or says why it cannot."""

from dataclasses import dataclass, field

import pytest
from kits.log import Log
from kits.server import (
    CLIENTS,
    OWNER,
    Members,
    MemoryDisk,
    RunFile,
    build_file,
    build_handler,
    build_restarted,
    recover_run,
)

from psyche.core.encoding.account import encode_state
from psyche.core.state.messages import Pause, Resume, SetRates, Tick
from psyche.core.state.state import ClientState, RunState
from psyche.errors import ConfigError
from psyche.server.handler import CoordinatorHandler
from psyche.server.journal import journal as j
from psyche.server.journal.changes import Change, decode_change
from psyche.server.journal.recovery import create_journal, recover
from psyche.server.run import compute_run_uid, open_run
from psyche.testing.builders import START_UNIX, build_config, build_hash
from psyche.wire.crypto import blake3_hash

OP = bytes(range(16))


@dataclass
class Recording:
    """A whole run: for each record, the disk right after it was synced and the state's bytes."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    images: dict[int, dict[str, bytes]] = field(default_factory=dict)
    states: dict[int, bytes] = field(default_factory=dict)
    records: dict[int, j.Record] = field(default_factory=dict)


def record_run(**config: int) -> Recording:
    """Three members, two epochs, with a pause in between."""
    recording = Recording()
    handler = build_handler(build_file(**config).build_state(), recording.disk)
    append = handler.journal.append

    def append_and_sync(now: int, change: object, state_hash: bytes) -> int:
        seq = append(now, change, state_hash)
        handler.journal.flush()
        recording.images[seq] = dict(recording.disk.files)
        recording.states[seq] = encode_state(handler.state)
        return seq

    handler.journal.append = append_and_sync
    members = Members(handler)
    for steps, _ in enumerate(members.finish()):
        if steps == 2:
            members.command(Pause())
            members.command(SetRates(90, 4), OP[1:] + b"r")
        if members.run_state is RunState.PAUSED:
            members.command(Resume(), OP[::-1])
    for image in recording.images.values():
        for first in j.get_numbers(list(image), "journal-"):
            found = j.scan_segment(image[j.get_segment_name(first)], first).records
            recording.records |= {record.seq: record for record in found}
    return recording


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record_run()


def test_a_server_killed_after_any_record_has_the_same_bytes_when_it_is_back(recording: Recording) -> None:
    assert len(recording.states) > 40
    last = max(recording.states)
    for seq, image in recording.images.items():
        found = recover_run(MemoryDisk(image))
        assert encode_state(found.state) == recording.states[seq], f"after record {seq}"
        assert found.journal.last_seq == seq
        for later in range(seq + 1, last + 1):
            record = recording.records[later]
            decode_change(record.kind, record.body).process(found.state, record.now)
        assert encode_state(found.state) == recording.states[last], f"continued from record {seq}"


def test_a_server_killed_while_it_writes_any_byte_of_the_last_record_has_the_state_before(
    recording: Recording,
) -> None:
    for seq in (min(recording.images) + 1, max(recording.images)):
        image, before = recording.images[seq], recording.images[seq - 1]
        name = next(n for n in image if image[n] != before.get(n) and n.startswith("journal-"))
        start = len(before.get(name, b""))
        for size in range(start + 1, len(image[name])):
            disk = MemoryDisk(image | {name: image[name][:size]})
            found = recover_run(disk)
            assert encode_state(found.state) == recording.states[seq - 1], f"record {seq} cut at byte {size}"
            assert len(disk.files[name]) == start, "the torn tail is cut from the file"
            assert "torn tail" in found.notes[0]


def test_an_empty_folder_holds_no_run() -> None:
    assert recover(MemoryDisk()) is None


def test_a_broken_newest_snapshot_costs_nothing_because_the_one_before_is_kept(recording: Recording) -> None:
    seq = max(recording.images)
    image = recording.images[seq]
    snapshots = j.get_numbers(list(image), "snapshot-")
    assert len(snapshots) == 2
    newest = j.get_snapshot_name(snapshots[-1])
    disk = MemoryDisk(image | {newest: image[newest][:-1] + b"?"})
    found = recover_run(disk)
    assert encode_state(found.state) == recording.states[seq]
    assert newest in found.notes[0]
    assert newest not in disk.files


def spoil(image: dict[str, bytes], what: str) -> str:
    """Damage a folder; return what is said of it."""
    older, newer = j.get_numbers(list(image), "snapshot-")
    first, second = j.get_segment_name(older + 1), j.get_segment_name(newer + 1)
    image[j.get_snapshot_name(newer)] = b""
    match what:
        case "snapshots":
            image[j.get_snapshot_name(older)] = image[j.get_snapshot_name(older)][:1_000]
            return "no good snapshot"
        case "a missing segment":
            del image[first]
            return rf"{second}, byte 0: record {older + 1} is broken or missing"
        case _:
            image[first] = image[first][:-1]
            return f"{first}.*is broken"


@pytest.mark.parametrize("what", ["snapshots", "a missing segment", "a torn segment before the newest"])
def test_what_is_missing_before_the_tail_is_a_clear_error(what: str, recording: Recording) -> None:
    image = dict(recording.images[max(recording.images)])
    with pytest.raises(j.JournalError, match=spoil(image, what)):
        recover(MemoryDisk(image))


def test_a_broken_record_in_the_middle_is_a_clear_error_and_never_a_wrong_state(recording: Recording) -> None:
    image = recording.images[max(recording.images)]
    first = j.get_numbers(list(image), "journal-")[-1]
    name = j.get_segment_name(first)
    middle = len(image[name]) // 2
    for place in range(middle, middle + 120):
        damaged = bytearray(image[name])
        damaged[place] ^= 0x10
        with pytest.raises(j.JournalError, match=rf"{name}, byte \d+: record \d+ is broken"):
            recover(MemoryDisk(image | {name: bytes(damaged)}))


def record_long_run(records: int) -> tuple[dict[str, bytes], list[bytes]]:
    """A run that is paused and resumed again and again, in one segment; the state after each record."""
    disk, state = MemoryDisk(), RunFile().build_state()
    states = [encode_state(state)]
    journal = create_journal(disk, START_UNIX, states[0])
    for number in range(1, records + 1):
        op_id = number.to_bytes(16, "little")
        change = Change(Pause() if number % 2 else Resume(), op_id=op_id)
        change.process(state, START_UNIX + number)
        states.append(encode_state(state))
        journal.append(START_UNIX + number, change, blake3_hash(states[-1]))
    journal.flush()
    return disk.files, states


def make_hole(image: dict[str, bytes], record: int, hole_bytes: int) -> tuple[dict[str, bytes], int]:
    """Zeros from the start of a record on, in the first segment; and where they start."""
    name = j.get_segment_name(1)
    data = image[name]
    start = sum(len(j.encode_record(r)) for r in j.scan_segment(data, 1).records[: record - 1])
    return image | {name: data[:start] + bytes(hole_bytes) + data[start + hole_bytes :]}, start


def test_acknowledged_records_behind_a_hole_are_never_cut_without_the_owners_word() -> None:
    image, _ = record_long_run(1_000)
    damaged, offset = make_hole(image, record=4, hole_bytes=32_768)
    disk = MemoryDisk(damaged)
    with pytest.raises(j.JournalError, match=rf"byte {offset}: record 4 .*whole records lie.*1000.*--accept-loss"):
        recover(disk)
    assert disk.files == damaged, "nothing was cut"


@pytest.mark.parametrize("record", [1, 4], ids=["from the segment's start", "in its middle"])
def test_a_loss_that_is_accepted_is_said_exactly_and_the_broken_file_is_kept(record: int) -> None:
    image, states = record_long_run(1_000)
    damaged, offset = make_hole(image, record, hole_bytes=32_768)
    behind = len(j.scan_segment(damaged[j.get_segment_name(1)], 1).behind)
    disk = MemoryDisk(damaged)
    found = recover_run(disk, accept_loss=True)
    assert encode_state(found.state) == states[record - 1]
    assert f"records {record} to 1000 are given up ({behind} whole records lie" in found.notes[0]
    aside = f"broken-1-{j.get_segment_name(1)}"
    assert aside in found.notes[0]
    assert disk.files[aside] == damaged[j.get_segment_name(1)]
    assert len(disk.files.get(j.get_segment_name(1), b"")) == offset
    found.journal.append(found.now, Change(Tick(bytes(32))), build_hash("state"))
    found.journal.flush()
    scan = j.scan_segment(disk.files[j.get_segment_name(1)], 1)
    assert (scan.records[-1].seq, scan.behind) == (record, ()), "the journal goes on from there"


def test_an_accepted_loss_in_an_older_segment_names_the_newest_round_that_is_lost(recording: Recording) -> None:
    image = dict(recording.images[max(recording.images)])
    older, newer = j.get_numbers(list(image), "snapshot-")
    image[j.get_snapshot_name(newer)] = b""
    name = j.get_segment_name(older + 1)
    image[name] = bytes(len(image[name]))
    later = j.get_segment_name(newer + 1)
    disk = MemoryDisk(image)
    found = recover_run(disk, accept_loss=True)
    assert encode_state(found.state) == recording.states[older]
    assert "of epoch 1, height " in found.notes[0]
    assert later not in disk.files
    assert disk.files[f"broken-1-{later}"] == image[later]
    assert recover(MemoryDisk(disk.files)) is not None, "what is left is whole"


@pytest.mark.parametrize(
    ("is_refused", "words"), [(False, "gives a different state"), (True, "cannot be applied again")]
)
def test_a_record_that_cannot_be_replayed_is_a_clear_error(is_refused: bool, words: str) -> None:
    disk, state, pause = MemoryDisk(), RunFile().build_state(), Change(Pause(), op_id=OP)
    if is_refused:
        pause.process(state, START_UNIX)
    journal = create_journal(disk, START_UNIX, encode_state(state))
    journal.append(START_UNIX, pause, build_hash("not the state after a pause"))
    journal.flush()
    with pytest.raises(j.JournalError, match=words):
        recover(disk)


def restart(disk: MemoryDisk, now: int, sink: Log | None = None) -> tuple[CoordinatorHandler, Members]:
    handler = build_restarted(disk, sink=sink)
    handler.recover(now)
    handler.journal.flush()
    members = Members(handler)
    return handler, members


def build_training(disk: MemoryDisk, **config: int) -> Members:
    members = Members(build_handler(build_file(total_steps=1_000, **config).build_state(), disk))
    members.join_all()
    members.warm_up()
    members.wait(7)
    return members


def test_a_restart_is_not_a_time_out_and_is_journaled() -> None:
    disk = MemoryDisk()
    before = build_training(disk)
    state = before.handler.state
    started = state.current.started_unix
    handler, members = restart(disk, before.now + 3_600)
    assert handler.state.run_state is RunState.ROUND_TRAIN
    gap_s = before.now + 3_600 - before.handler.version.now
    assert handler.state.current.started_unix == started + gap_s
    assert handler.state.state_start_unix == state.state_start_unix + gap_s
    assert encode_state(recover_run(MemoryDisk(disk.files)).state) == encode_state(handler.state)
    members.now = before.now + 3_600
    members.wait(14)
    assert handler.state.run_state is RunState.ROUND_TRAIN, "at least 15 s remain for reconnecting"


def test_after_a_restart_whoever_does_not_come_back_is_withdrawn_after_fifteen_seconds() -> None:
    disk = MemoryDisk()
    before = build_training(disk)
    handler, members = restart(disk, before.now + 100)
    members.now = before.now + 100
    handler.connected(members.key(0))
    handler.connected(members.key(2))
    members.wait(14)
    assert [c.state for c in handler.state.clients] == [ClientState.HEALTHY] * 3
    members.wait(1)
    assert [c.state for c in handler.state.clients] == [
        ClientState.HEALTHY,
        ClientState.WITHDRAWN,
        ClientState.HEALTHY,
    ]


def test_a_clock_that_went_back_over_a_restart_stands_still_until_it_is_past() -> None:
    disk = MemoryDisk()
    before = build_training(disk)
    last = before.handler.version.now
    handler, _ = restart(disk, last - 500)
    assert handler.now == last
    assert handler.state.run_state is RunState.ROUND_TRAIN


def test_op_ids_outlive_the_segment_they_were_written_to() -> None:
    disk = MemoryDisk()
    handler = build_handler(disk=disk)
    members = Members(handler)
    members.command(Pause())
    members.command(Resume(), OP[::-1])
    members.join_all()
    members.warm_up()
    found = recover_run(disk)
    assert found.op_ids == (OP, OP[::-1])
    assert found.records < handler.journal.last_seq, "the snapshot at Warmup carries them"


def test_a_run_is_opened_again_only_with_the_configuration_it_was_made_with() -> None:
    disk = MemoryDisk()
    made = open_run(disk, RunFile(), OWNER.public, "test", lambda: START_UNIX)
    assert made.is_new
    assert made.state.run_uid == compute_run_uid(OWNER.public, "test-run", START_UNIX)
    again = open_run(disk, RunFile(), OWNER.public, "test", lambda: START_UNIX + 50)
    assert not again.is_new
    assert again.state.run_uid == made.state.run_uid
    with pytest.raises(ConfigError, match="max_round_train_time"):
        open_run(disk, RunFile(config=build_config(max_round_train_time=99)), OWNER.public, "test", lambda: 0)
    with pytest.raises(ConfigError, match="'test-run', not 'other'"):
        open_run(disk, RunFile(run_id="other"), OWNER.public, "test", lambda: 0)
    file = RunFile()
    file.model.max_seq_len = 32
    with pytest.raises(ConfigError, match="max_seq_len"):
        open_run(disk, file, OWNER.public, "test", lambda: 0)


def test_a_run_may_be_told_to_pause_when_its_first_epoch_ends() -> None:
    opened = open_run(MemoryDisk(), RunFile(pending_pause=True), OWNER.public, "test", lambda: START_UNIX)
    members = Members(build_handler(opened.state, journal=opened.journal))
    while members.run_state is not RunState.PAUSED:
        members.step()
    assert members.handler.state.progress.epoch == 1


def test_a_run_made_again_under_its_name_has_another_uid() -> None:
    one, other = (compute_run_uid(OWNER.public, "run", now) for now in (1, 2))
    assert one != other
    assert compute_run_uid(CLIENTS[0].public, "run", 1) != one
