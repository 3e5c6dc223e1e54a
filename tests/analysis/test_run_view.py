"""One fold of all that is known of a run: bounded, and harmless whatever strangers say."""

import math
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.log import make

from psyche.analysis.run_view import LAST_ROUNDS, MAX_LINES, RunView
from psyche.core.state.enums import ClientState, RunState
from psyche.telemetry import types
from psyche.telemetry.events import Entry
from psyche.wire.backend import MemberInfo, Members, RunStatus
from psyche.wire.history import MAX_POINTS, HistoryPoint
from psyche.wire.report import SelfReport

KEY: Final = bytes(range(32))
WILD: Final = ["\x1b[2J\x1b]0;x\x07", "\u202eevil", "a" * 10_000, "two\nlines", "nul\0", "<script>"]


def play(view: RunView, rounds: int, *nodes: str, first: int = 0, epoch: int = 0, server: bool = True) -> None:
    """Rounds of ten seconds; the loss is 10 less a hundredth a step."""
    for height in range(first, first + rounds):
        t, place = 1_000.0 + 10 * height, {"epoch": epoch, "height": height, "step": height + 1}
        for node in ("server", *nodes) if server else nodes:
            view.take(Entry(t, node, make(types.StateChanged, run_state=RunState.ROUND_TRAIN, members=2, **place)))
        for index, node in enumerate(nodes):
            view.take(Entry(t, node, make(types.Member, index=index, members=len(nodes))))
            view.take(Entry(t, node, make(types.RoundStarted, **place)))
            view.take(Entry(t + 4, node, make(types.Trained, loss=10 - height / 100, tokens=50, seconds=4.0, **place)))
            view.take(Entry(t + 5, node, make(types.Decided, height=height, members=(0,))))
        if server:
            view.take(Entry(t + 9, "server", make_over(height)))


def make_over(height: int, **fields: Any) -> types.RoundOver:
    known = {
        "epoch": 0, "height": height, "step": height + 2, "total_steps": 5_000, "seconds": 9.0, "members": 2,
        "results": 2, "loss": 10 - height / 100, "least": 1.0, "greatest": 11.0, "tokens_per_s": 11.0,
        "unix": 1_009 + 10 * height, "tokens": 100 * height, "waited_for": (KEY,),
    }  # fmt: skip
    return types.RoundOver(**(known | fields))


def make_status(**fields: Any) -> RunStatus:
    known = {
        "run_id": "run", "run_uid": KEY, "program": "p", "now_unix": 1_000, "nonce": 1,
        "run_state": RunState.ROUND_TRAIN, "state_start_unix": 990, "pending_pause": False, "epoch": 1, "height": 2,
        "step": 10, "total_steps": 100, "healthy": 2, "members": 2, "waiting": 0, "min_clients": 1,
        "init_min_clients": 1, "limit_unix": 1_100,
    }  # fmt: skip
    return RunStatus(**(known | fields))


def make_point(step: int, **fields: Any) -> HistoryPoint:
    known = {"unix": 10 * step, "seconds": 9.0, "members": 2, "results": 2, "loss": 3.0, "least": 2.0, "greatest": 4.0}
    return HistoryPoint(step=step, **(known | {"tokens_per_s": 5.0, "tokens": step} | fields))


def test_one_member_s_log_tells_what_all_of_them_trained() -> None:
    view = RunView()
    for height in range(4):
        place = {"epoch": 0, "height": height, "step": height}
        view.take(Entry(10.0 * height, "ada", make(types.StateChanged, members=4, **place)))
        view.take(Entry(10.0 * height, "ada", make(types.RoundStarted, **place)))
        trained = make(types.Trained, tokens=64, run_tokens=256 * (height + 1), seconds=4.0, learning_rate=0.1, **place)
        view.take(Entry(10.0 * height + 4, "ada", trained))
    assert [(one.tokens, one.members, one.tokens_per_s) for one in view.curve] == [
        (256, 4, 6.4), (512, 4, 25.6), (768, 4, 25.6),
    ]  # fmt: skip
    assert view.curve.last is not None
    assert (view.curve.last.height, view.curve.last.learning_rate) == (2, 0.1)


@pytest.mark.parametrize("server", [True, False])
def test_the_same_curve_comes_from_the_server_s_log_and_from_the_members(server: bool) -> None:
    view = RunView()
    play(view, 30, "ada", "ben", server=server)
    steps = [point.step for point in view.curve]
    assert steps == list(range(2, 32 if server else 31))
    assert view.curve.last is not None
    assert view.curve.last.loss == pytest.approx(10 - (steps[-1] - 2) / 100)
    assert (view.step, view.phase, view.members) == (30, "training", 2)
    assert view.step_s == pytest.approx(10, abs=1)
    if server:
        assert view.left_s == pytest.approx(10 * (5_000 - 30), rel=0.1)


def test_members_are_counted_their_rounds_and_how_often_they_were_waited_for() -> None:
    view = RunView()
    view.take(Entry(999.0, "ada", make(types.ClientStarted, identity=KEY, run_id="run", pid=1)))
    play(view, 120, "ada", "ben")
    ada, ben = view.get_members()
    assert (ada.name, ada.rounds_done, ada.rounds_missed) == ("ada", 120, 0)
    assert (ben.name, ben.rounds_done, ben.rounds_missed) == ("ben", 0, 120)
    assert (ada.waited, ben.waited) == (LAST_ROUNDS, 0)
    assert view.run_id == "run"


@pytest.mark.whole
def test_nothing_grows_with_the_run() -> None:
    view = RunView()
    play(view, 5_000, "ada", "ben")
    assert len(view.curve) <= MAX_POINTS
    assert len(view.rounds) == LAST_ROUNDS
    assert len(view.get_lines()) <= MAX_LINES
    ada = view.accounts.nodes["ada"]
    assert len(ada.present) <= LAST_ROUNDS
    assert max(len(spans) for spans in ada.spans.values()) <= LAST_ROUNDS + 1
    assert all(member.curve is None or len(member.curve) <= MAX_POINTS for member in view.get_members())
    assert ada.rounds_done + len(ada.present) == 5_000


def test_nothing_grows_with_the_names_and_places_that_logs_and_servers_tell() -> None:
    view = RunView()
    for number in range(1_500):
        key = number.to_bytes(32, "big")
        view.take(Entry(1.0, "server", types.ErrorReported(key=key, name="n", phase="", error="e")))
        view.take(Entry(1.0, "server", types.ClientDisconnected(key=key, reason="", is_member=True)))
        view.take(Entry(1.0, "ada", make(types.Trained, epoch=number, loss=1.0, seconds=1.0)))
        view.take(Entry(1.0, f"node-{number}", make(types.ClientStarted, identity=key)))
        view.take(Entry(1.0, "ada", make(types.PayloadReceived, height=number)))
        view.take(Entry(1.0, "ada", make(types.WaitStarted, what=str(number))))
        said = SelfReport("ada", step=number, loss=1.0)
        view.take_members(Members(1, (MemberInfo(key, 0, 0, True, said),)))
    accounts, troubles = view.accounts, view._troubles
    kept = (
        view.nodes, view._curves, view._open, view.nodes["ada"].waits, troubles._reported, troubles._gone,
        accounts.nodes, accounts.keys, accounts._transfers._arrived,
    )  # fmt: skip
    assert [len(one) for one in kept] == [1_024, 1, 16, 64, 512, 512, 1_024, 1_023, 64]


def test_a_run_that_goes_back_shows_its_later_course_alone() -> None:
    view = RunView()
    play(view, 20, "ada")
    play(view, 5, "ada", first=10, epoch=1)
    assert [point.step for point in view.curve] == list(range(2, 17))
    remote = RunView()
    remote.take_history([make_point(step) for step in range(1, 30)])
    remote.take_status(make_status(step=12))
    assert remote.curve.last is not None
    assert remote.curve.last.step == 12


@pytest.mark.parametrize("text", WILD)
def test_texts_of_strangers_become_one_harmless_line(text: str) -> None:
    view = RunView()
    view.take(Entry(1.0, "server", types.ErrorReported(key=KEY, name=text, phase=text, error=text)))
    view.take(Entry(1.0, text, make(types.Error, message=text)))
    view.take_status(make_status(run_id="r", checkpoint_sources=(text,)))
    view.take_members(Members(1_000, (MemberInfo(KEY, 0, 0, True, SelfReport(text, text, text, error=text), 0, True),)))
    (member,) = view.get_members()
    shown = [member.name, member.phase, member.error, member.wait.what if member.wait else "", *view.checkpoints]
    shown += [field for one in view.get_troubles(1_000.0) for field in (one.who, one.text)]
    shown += [field for line in view.get_lines() for field in (line.node, line.text)]
    assert all(one.isprintable() and len(one) <= 480 for one in shown), shown


@given(st.floats(), st.floats(), st.floats())
def test_numbers_that_no_round_can_have_reach_no_curve(loss: float, rate: float, seconds: float) -> None:
    view = RunView()
    view.take_history([make_point(5, loss=loss, least=loss, tokens_per_s=rate, seconds=seconds)])
    view.take(Entry(1.0, "ada", make(types.Trained, loss=loss, tokens=1, seconds=1.0)))
    view.take_members(Members(1, (MemberInfo(KEY, 0, 0, True, SelfReport("a", step=3, loss=loss)),)))
    (point,) = view.curve
    (member,) = view.get_members()
    for number in (point.loss, point.least, point.tokens_per_s, point.seconds, member.loss):
        assert number is None or 0 <= number <= 1e15
    assert all(math.isfinite(one.loss) for one in member.curve or ())


def test_trouble_lasts_as_long_as_its_cause() -> None:
    view = RunView()
    view.take_status(make_status(), 1_000.0)
    assert view.get_troubles(1_005.0) == []
    view.take_problem("no answer", 1_006.0)
    view.take_problem("no answer still", 1_008.0)
    (still,) = view.get_troubles(1_009.0)
    assert (still.cause, still.text, still.since) == ("still", "no answer still", 1_006.0)
    view.take_status(make_status(), 1_010.0)
    assert view.get_troubles(1_011.0) == []
    (late,) = view.get_troubles(1_300.0)
    assert (late.cause, late.who) == ("still", "")
    view.take_status(make_status(run_state=RunState.PAUSED), 1_301.0)
    assert view.get_troubles(9_000.0) == []


def test_wrong_weights_a_full_disk_and_an_error_are_told_apart() -> None:
    view = RunView()
    play(view, 2, "ada", "ben")
    view.take(Entry(1_020.0, "ada", types.Diverged(height=1, digest=KEY, agreed=KEY)))
    view.take(Entry(1_020.0, "ben", make(types.Error, message="OSError: No space left on device")))
    view.take(Entry(1_020.0, "server", types.ErrorReported(key=KEY, name="cleo", phase="", error="lost its trainer")))
    assert sorted((one.cause, one.who) for one in view.get_troubles(1_021.0)) == [
        ("disk", "ben"), ("error", "cleo"), ("slow", "ben"), ("weights", "ada"),
    ]  # fmt: skip
    view.take(Entry(1_022.0, "ada", types.Healed(height=2)))
    view.take(Entry(1_022.0, "server", types.ErrorOver(key=KEY, name="cleo")))
    assert {one.who for one in view.get_troubles(1_023.0)} == {"ben"}


def find_troubles(view: RunView) -> list[tuple[str, str]]:
    return [one[:2] for one in view.get_troubles(view.updated)]


def test_a_member_that_the_server_lost_is_gone_until_it_is_back_or_an_epoch_forms_without_it() -> None:
    view = RunView()
    view.take(Entry(999.0, "ada", make(types.ClientStarted, identity=KEY)))
    play(view, 2, "ada")
    other = KEY[::-1]
    for key, is_member in ((KEY, True), (other, True), (bytes(32), False)):
        view.take(Entry(1_020.0, "server", types.ClientDisconnected(key=key, reason="reset", is_member=is_member)))
    assert find_troubles(view) == [("gone", "ada"), ("gone", other.hex()[:8])]
    view.take(Entry(1_021.0, "server", types.ClientConnected(key=KEY)))
    assert find_troubles(view) == [("gone", other.hex()[:8])]
    play(view, 1, "ada", first=5, epoch=1)
    assert find_troubles(view) == []
    view.take(Entry(1_060.0, "testnet", make(types.ProcessKilled, name="ada")))
    assert find_troubles(view) == [("gone", "ada")]


def test_a_member_that_is_late_again_and_again_is_too_slow_and_one_that_is_lost_is_gone() -> None:
    view = RunView()
    play(view, 3, "ada", "ben")  # whose sets have ada's results alone
    assert find_troubles(view) == [("slow", "ben")]
    remote = RunView()
    remote.take_status(make_status(), 1_000.0)

    def show(**fields: Any) -> list[tuple[str, str]]:
        said = fields.pop("said", SelfReport("ada", "training"))
        known = {"index": 0, "state": ClientState.HEALTHY, "is_connected": True}
        remote.take_members(Members(1_000, (MemberInfo(KEY, report=said, **(known | fields)),)))
        return find_troubles(remote)

    assert show() == show(late=1) == show(missed=1) == []
    assert show(late=2) == show(missed=3) == [("slow", "ada")]
    assert show(is_connected=False) == show(state=ClientState.DROPPED) == [("gone", "ada")]
    assert show(state=ClientState.WITHDRAWN, is_connected=False) == [("gone", "ada")]
    assert show(state=ClientState.WITHDRAWN, is_connected=False, said=SelfReport("ada", "ended")) == []
    assert show(index=None, state=None, is_connected=False) == []
    assert show(said=SelfReport("ada", error="holds different weights than the others, heals")) == [("weights", "ada")]


def test_a_server_that_none_of_its_members_reaches_is_told_from_their_logs() -> None:
    view = RunView()
    play(view, 2, "ada", "ben", server=False)
    for member in ("ada", "ben"):
        assert ("still", "") not in find_troubles(view)
        view.take(Entry(1_020.0, member, types.BackendLost(reason="refused", tries=1)))
    assert ("still", "") in find_troubles(view)
    view.take(Entry(1_022.0, "ben", make(types.BackendConnected)))
    assert ("still", "") not in find_troubles(view)


def test_who_leaves_because_its_user_wants_it_to_is_no_error() -> None:
    view = RunView()
    play(view, 2, "ada", "ben")
    for node, cause in (("ada", types.LeaveCause.STOPPED), ("ben", types.LeaveCause.TRAINER_LOST)):
        view.take(Entry(1_020.0, node, types.ClientEnded(reason="x", code=0, cause=cause)))
    assert [one.who for one in view.get_troubles(1_021.0)] == ["ben"]


def test_a_member_that_went_away_is_shown_as_the_record_has_it() -> None:
    view = RunView()
    view.take_status(make_status())
    gone = MemberInfo(KEY, 1, ClientState.DROPPED, False, due=9, credits=4, waited=3)
    view.take_members(Members(1_000, (gone,)), lambda key: key.hex())
    (member,) = view.get_members()
    assert (member.state, member.rounds_done, member.rounds_missed, member.waited) == ("dropped, away", 4, 5, 3)


def test_events_of_other_versions_are_passed_over_and_counted() -> None:
    view = RunView()
    view.take(Entry(1.0, "ada", types.Unknown(name="from_the_future", fields={})))
    assert (view.passed.unknown, view.get_members()) == (1, [])
