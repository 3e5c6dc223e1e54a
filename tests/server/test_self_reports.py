"""K8: the server shows what clients say of themselves, to whom it may, and lets it decide nothing."""

import math
from typing import Any

from kits.log import Log
from kits.server import CLIENTS, OWNER, Members, build_file, build_handler

from psyche.core.encoding.account import encode_state
from psyche.core.state.state import ClientState
from psyche.server.reports import GONE_SHOWN_S, MAX_REPORTS, MAX_SHOWN, TOLD_AGAIN_S, ReportBoard
from psyche.telemetry import types
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_identity, build_state
from psyche.wire import backend as wire
from psyche.wire.access import OPEN, Access, Authorization
from psyche.wire.report import MAX_ERROR_BYTES, MAX_NAME_BYTES, MAX_PHASE_BYTES, MAX_WAIT_BYTES, SelfReport

STRANGER = build_identity("stranger").public
ERROR = "cannot load the weights: no room on the disk"
NEWCOMER = CLIENTS[5].public
CLOSED = Access(authorizations=tuple(Authorization(one.public) for one in (*CLIENTS[:3], CLIENTS[5])))


def build_members(sink: Log | None = None, **options: Any) -> Members:
    members = Members(build_handler(build_file(total_steps=50).build_state(), sink=sink, **options))
    members.join_all()
    members.warm_up()
    return members


def report(members: Members, member: int, **fields: Any) -> wire.Reply:
    said = SelfReport(**({"name": f"client-{member}", "phase": "training"} | fields))
    return members.ask(members.key(member), wire.ReportRequest(said))


def look(members: Members, key: bytes) -> tuple[wire.MemberInfo, ...]:
    answer = members.ask(key, wire.MembersRequest()).body
    assert isinstance(answer, wire.Members)
    return answer.members


def test_the_last_report_of_each_member_is_shown_beside_what_the_record_says() -> None:
    members = build_members()
    report(members, 1, step=3, loss=4.0)
    members.now += 7
    report(members, 1, step=4, loss=3.5)
    members.now += 2
    rows = look(members, OWNER.public)
    assert [(row.key, row.index, row.state, row.is_connected) for row in rows] == [
        (members.key(index), index, ClientState.HEALTHY, True) for index in range(3)
    ]
    assert rows[0].report is None
    assert rows[1].report == SelfReport("client-1", "training", step=4, loss=3.5)
    assert rows[1].report_age_s == 2


def test_errors_are_for_the_owner_and_the_join_authority() -> None:
    members = build_members()
    report(members, 2, error=ERROR)
    members.now += 5
    for key, text in ((OWNER.public, ERROR), (members.key(0), ""), (members.key(2), "")):
        row = look(members, key)[2]
        assert row.report is not None
        assert (row.report.error, row.has_error, row.error_age_s) == (text, True, 5)
        assert row.report.name == "client-2"


def test_strangers_neither_see_the_members_nor_write_to_the_table() -> None:
    for access in (OPEN, CLOSED):
        members = build_members(access=access)
        assert members.ask(STRANGER, wire.MembersRequest()).code == "NotOwner"
        assert members.ask(STRANGER, wire.ReportRequest(SelfReport("mallory", error="!"))).code == "NotOwner"
        assert members.handler.get_status().failing == 0


def test_an_allowed_key_that_waits_for_the_next_epoch_is_shown() -> None:
    members = build_members(access=CLOSED)
    members.handler.connected(NEWCOMER)
    assert members.ask(NEWCOMER, wire.ReportRequest(SelfReport("new", wait="the next epoch"))).code == ""
    row = look(members, NEWCOMER)[-1]
    assert (row.key, row.index, row.state, row.is_connected) == (NEWCOMER, None, None, True)
    assert row.report == SelfReport("new", wait="the next epoch")


def test_everybody_sees_what_the_reports_come_to() -> None:
    members = build_members()
    before, seq = encode_state(members.handler.state), members.handler.journal.last_seq
    for member, (loss, speed) in enumerate(((3.0, 100.0), (math.nan, 50.0), (2.0, 25.0))):
        report(members, member, loss=loss, tokens_per_s=speed, error=ERROR if member == 1 else "")
    status = members.ask(STRANGER, wire.StatusRequest()).body
    assert isinstance(status, wire.RunStatus)
    assert (status.loss, status.tokens_per_s, status.reporting, status.failing) == (2.5, 175.0, 3, 1)
    report(members, 1, loss=1e300)
    assert members.handler.get_status().loss == 3.0, "one false report does not move it far"
    assert encode_state(members.handler.state) == before
    assert members.handler.journal.last_seq == seq


def test_who_is_gone_counts_no_more_and_its_last_error_is_shown_for_a_while() -> None:
    members = build_members()
    report(members, 0, loss=3.0, tokens_per_s=10.0, error=ERROR)
    members.handler.disconnected(members.key(0), members.now)
    status = members.handler.get_status()
    assert (status.loss, status.tokens_per_s, status.reporting, status.failing) == (None, 0.0, 0, 1)
    row = look(members, OWNER.public)[0]
    assert row.report is not None
    assert (row.is_connected, row.report.error) == (False, ERROR)
    assert row.report.tokens_per_s == 0, "who is away trains nothing"
    members.now += GONE_SHOWN_S + 1
    members.handler.tick(members.now)
    assert members.handler.get_status().failing == 0


def test_an_error_is_told_once_and_its_end_too() -> None:
    sink = Log()
    members = build_members(sink)
    for _ in range(3):
        report(members, 1, error=ERROR)
        members.now += 1
    report(members, 1)
    (told,), (over,) = sink.get(types.ErrorReported), sink.get(types.ErrorOver)
    assert (told.key, told.name, told.phase, told.error) == (members.key(1), "client-1", "training", ERROR)
    assert (over.key, over.name) == (members.key(1), "client-1")


def test_errors_that_change_at_every_report_fill_no_log() -> None:
    sink = Log()
    board = ReportBoard(sink)
    for second in range(2 * TOLD_AGAIN_S + 1):
        board.put(STRANGER, SelfReport(error=f"error {second}"), START_UNIX + second)
        board.put(STRANGER, SelfReport(), START_UNIX + second)
    assert [one.error for one in sink.get(types.ErrorReported)] == ["error 0", "error 30", "error 60"]
    assert len(sink.get(types.ErrorOver)) == 3


def test_texts_are_cleaned_before_anybody_sees_them() -> None:
    sink = Log()
    members = build_members(sink)
    report(members, 0, name="a\x1b[2Jda", wait="for\nyou", error="\x07bad\u202e")
    row = look(members, OWNER.public)[0]
    assert row.report is not None
    assert (row.report.name, row.report.wait, row.report.error) == ("a [2Jda", "for you", "bad")
    assert sink.get(types.ErrorReported)[0].error == "bad"


def test_the_table_is_bounded_and_fits_a_frame() -> None:
    board = ReportBoard(Log())
    long = SelfReport("n" * MAX_NAME_BYTES, "p" * MAX_PHASE_BYTES, "w" * MAX_WAIT_BYTES, error="e" * MAX_ERROR_BYTES)
    keys = [build_hash("key", number) for number in range(MAX_REPORTS + 100)]
    for key in keys:
        board.put(key, long, START_UNIX)
    rows = board.list_clients(build_state(build_config()), START_UNIX, frozenset(keys), with_errors=True)
    assert len(rows) == min(MAX_REPORTS, MAX_SHOWN)
    assert {row.key for row in rows} == {*keys[100:]}, "who reported longest ago made room"
    raw = wire.encode_message(wire.Reply(1, body=wire.Members(START_UNIX, rows)))
    assert len(raw) < wire.MAX_SERVER_FRAME_BYTES
