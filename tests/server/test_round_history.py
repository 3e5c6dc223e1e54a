"""The server remembers what its rounds came to, and tells everybody: figures of the whole only."""

import itertools
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.clocks import SteadyClock
from kits.log import Log
from kits.server import Members, build_file, build_handler
from server.live_kit import RATE, follow_all, is_finished, open_scripts, open_server
from server.live_kit import build_file as build_live_file

from psyche.analysis.series import NEWEST, Series
from psyche.backends.tcp.owner import TcpAdministration
from psyche.server.rounds import RoundHistory
from psyche.telemetry import types
from psyche.telemetry.events import EventLog
from psyche.testing.builders import build_identity
from psyche.wire import backend as wire
from psyche.wire.history import MAX_POINTS, Claim, HistoryPoint, encode_claim, read_claim

STRANGER = build_identity("stranger")


def build_members(sink: Log | None = None, **config: Any) -> Members:
    members = Members(build_handler(build_file(**({"total_steps": 50} | config)).build_state(), sink=sink))
    members.join_all()
    members.warm_up()
    return members


def claim(*says: float) -> dict[str, bytes]:
    return {"metadata": encode_claim(Claim(1, *says))}


def look(members: Members, after_step: int = 0) -> tuple[HistoryPoint, ...]:
    answer = members.ask(STRANGER.public, wire.HistoryRequest(after_step)).body
    assert isinstance(answer, wire.History)
    return answer.points


def make_point(step: int, **fields: Any) -> HistoryPoint:
    known = {"unix": 1_000 + step, "seconds": 1.0, "members": 3, "results": 3, "loss": 3.0, "least": 2.0}
    return HistoryPoint(
        step=step, **(known | {"greatest": 4.0, "tokens_per_s": 9.0, "tokens": 64 * step, "height": step} | fields)
    )


def make_event(step: int, **fields: Any) -> types.RoundOver:
    point = make_point(step, **fields)
    shared = {name: getattr(point, name) for name in HistoryPoint.__struct_fields__ if name != "is_claimed"}
    return types.RoundOver(total_steps=50, **shared)


def test_each_round_with_data_is_a_point_with_what_its_witnesses_say() -> None:
    sink = Log()
    members = build_members(sink, witness_nodes=3)
    step = members.state.progress.step
    for loss in (3.5, 2.5):
        members.wait(1)
        for member, says in enumerate((loss, loss - 1)):  # a quorum: it is over then
            members.submit(members.key(member), members.build_witness(member, **claim(says, 10.0)))
        members.settle()
    first, second = look(members)
    assert (first.step, first.members, first.results) == (step + 1, 3, 0), "with overlap results count a round later"
    assert (second.step, second.results, second.seconds) == (step + 2, 3, 1.0)
    assert (second.loss, second.least, second.greatest) == (2.0, 1.5, 2.5)
    assert second.tokens_per_s == pytest.approx(30.0)
    assert second.tokens == 2 * first.tokens > 0
    assert (first.epoch, first.height, second.height) == (0, 0, 1)
    assert first.learning_rate == second.learning_rate == 0.001
    assert [one.step for one in sink.get(types.RoundOver)] == [step + 1, step + 2]
    assert look(members, first.step) == (second,)
    status = members.handler.get_status()
    assert (status.tokens, status.learning_rate > 0) == (second.tokens, True)


def test_who_is_not_heard_is_who_was_waited_for_last() -> None:
    members = build_members()
    for _ in range(3):
        members.run_round(silent=[2])
    answer = members.ask(members.key(0), wire.MembersRequest()).body
    assert isinstance(answer, wire.Members)
    silent = answer.members[2]
    assert silent.waited >= 2
    assert (silent.credits, silent.due) == (0, 2)
    assert (answer.members[0].credits, answer.members[0].due) == (2, 2)


@given(st.binary(max_size=16))
def test_no_metadata_of_a_stranger_reaches_the_curve_unless_it_is_a_claim(raw: bytes) -> None:
    found = read_claim(raw)
    assert found is None or (len(raw) >= 12 and 0 <= found.loss <= 1e9 and 0 <= found.tokens_per_s <= 1e15)


def test_losses_that_are_no_numbers_leave_the_round_without_a_loss() -> None:
    members = build_members()
    members.run_round(**claim(math.nan, 1.0))
    members.run_round(metadata=bytes(11))
    assert [one.loss for one in look(members)] == [None, None]


def test_a_run_that_goes_back_repeats_steps_and_the_first_ones_are_cut() -> None:
    history = RoundHistory()
    history.restore(make_event(step, loss=float(step)) for step in (1, 2, 3, 4, 3, 4, 5))
    assert [one.step for one in history.points] == [1, 2, 3, 4, 5]
    assert history.points.cut == 2


def test_the_log_of_a_former_process_goes_on_across_its_rotated_files(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for start in (1, 31):
        log = EventLog(path, node="server", max_bytes=2_000)
        for step in range(start, start + 30):
            log.emit(types.Access(is_open=True, allowed=step))
            log.emit(make_event(step))
        log.close()
    path.write_bytes(path.read_bytes()[:-20])  # cut off in a write
    history = RoundHistory()
    history.restore(EventLog(path, node="server").read_kind(types.RoundOver))
    steps = [one.step for one in history.points]
    assert steps == list(range(steps[0], 60))
    assert len(steps) > 20, "more than one file's"
    assert history.points.last == make_point(59)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(2, 9))
def test_a_series_is_small_rises_and_keeps_the_newest(steps: list[int], most: int) -> None:
    series = Series((make_point(step) for step in steps), most)
    found = [one.step for one in series]
    assert found == sorted(set(found))
    assert len(found) <= most
    assert found[-1:] == steps[-1:]


def test_of_a_long_run_every_second_fourth_eighth_step_is_left_and_all_of_the_newest() -> None:
    series = Series(make_point(step) for step in range(1, 20_001))
    found = [one.step for one in series]
    assert 1_000 < len(found) <= MAX_POINTS
    assert found[-NEWEST:] == list(range(20_001 - NEWEST, 20_001))
    gaps = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert max(gaps[1:]) <= series.stride


def test_an_answer_with_all_points_fits_a_frame() -> None:
    whole = wire.History(tuple(make_point(10**9 + step, tokens=10**17) for step in range(MAX_POINTS)))
    assert len(wire.encode_message(wire.Reply(1, body=whole))) < wire.MAX_SERVER_FRAME_BYTES / 4


async def test_whoever_comes_after_a_restart_is_shown_the_whole_curve(tmp_path: Path, clock: SteadyClock) -> None:
    log = Log()
    file, read = build_live_file(total_steps=8), partial(log.get, types.RoundOver)
    async with open_server(tmp_path, file, read_history=read, sink=log) as server, open_scripts(server) as scripts:
        await follow_all(scripts, lambda state: state.progress.step >= 4)
        await server.stop()
        await server.start()
        await follow_all(scripts, is_finished)
        points = await TcpAdministration(server.address, STRANGER, 60.0 * RATE).get_history()
        status = await TcpAdministration(server.address, STRANGER, 60.0 * RATE).get_status()
    assert [one.step for one in points] == list(range(2, status.step + 1))
    assert all(one.members == 3 for one in points)
