"""`psyche run info --watch`: the state of a run in place, through gaps, to its end or Ctrl-C; and as JSON."""

import io
import json
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from psyche.analysis.run_view import RunView
from psyche.backends.port import TargetOptions
from psyche.backends.tcp.target import ServerTarget
from psyche.cli.helpers import watching
from psyche.cli.helpers.common import say
from psyche.cli.helpers.watching import JsonView, ask_once, format_run, get_plain_run, watch_until_signal
from psyche.core.state.state import RunState
from psyche.errors import BackendError
from psyche.telemetry.console import Console
from psyche.watch.app import ConsoleView, watch
from psyche.watch.page import format_view
from psyche.watch.sources import ASK_S, RunSource
from psyche.wire.backend import MemberInfo, Members, NotOwner, RunStatus
from psyche.wire.history import HistoryPoint
from psyche.wire.report import SelfReport

PAGE = Path(__file__).resolve().parents[2] / "docs" / "owner.md"
KEY = bytes(range(32))
TRAINING = RunStatus(
    "my-run", KEY, "psyche", 1_000, 5, RunState.ROUND_TRAIN, 990, False, 2, 7, 61, 161, 2, 3, 1, 2, 2, 4,
    checkpoint_step=41, checkpoint_sources=("LOCAL /a/long/path/to/the/folder/that/all/share", "LOCAL " + "/path" * 9),
    loss=2.5, tokens_per_s=9_800.0, reporting=3, failing=1,
)  # fmt: skip
FINISHED = msgspec.structs.replace(TRAINING, run_state=RunState.FINISHED, step=161, members=0)
MEMBERS = Members(
    1_000,
    (
        MemberInfo(KEY, 0, 0, True, SelfReport("ada", "training", "", 2, 7, 61, 2.5, 4_900.0), 3),
        MemberInfo(KEY[::-1], 1, 1, False, SelfReport("ben", "warmup", error="no disk: " + "x" * 99), 90, True, 95),
    ),
)

POINTS = tuple(
    HistoryPoint(
        step=step, unix=20 * step, seconds=19.0, members=3, results=3, loss=9 - step / 10, least=1.0, greatest=9.0,
        tokens_per_s=9_000.0, tokens=9 * step,
    )
    for step in range(2, 62)
)  # fmt: skip


@dataclass
class FakeBackend:
    """Answers with these states in turn; an error among them is raised."""

    answers: Iterator[RunStatus | BackendError]
    members: Members | NotOwner = field(default_factory=lambda: MEMBERS)
    on_ask: Callable[[], object] = lambda: None

    async def get_status(self) -> RunStatus:
        await trio.lowlevel.checkpoint()
        self.on_ask()
        answer = next(self.answers)
        if isinstance(answer, BackendError):
            raise answer
        return answer

    async def get_members(self) -> Members:
        await trio.lowlevel.checkpoint()
        if isinstance(self.members, NotOwner):
            raise self.members
        return self.members

    async def get_history(self, after_step: int = 0) -> tuple[HistoryPoint, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(one for one in POINTS if one.step > after_step)

    def name_key(self, key: bytes) -> str:
        return key.hex()

    async def get_record(self) -> Any:
        raise AssertionError("nobody asks")

    async def command(self, message: object) -> Any:
        raise AssertionError("nobody commands")


def draw(status: RunStatus, members: Members | None = None, points: Sequence[HistoryPoint] = ()) -> str:
    view = RunView()
    view.take_history(points)
    view.take_status(status)
    if members is not None:
        view.take_members(members)
    return format_view(view, status.now_unix)


async def watch_run(
    backend: FakeBackend, stream: io.StringIO, *, as_json: bool = False, live: bool = True, with_members: bool = True
) -> None:
    """What `psyche run info --watch` does."""
    source = RunSource(backend, shows_members=with_members, say=say)
    console = Console(stream, live=live)
    await watch([source], console, make_view=JsonView if as_json else ConsoleView)


def test_the_page_of_a_run_has_loss_speed_members_and_errors_and_fits_80_columns() -> None:
    page = draw(TRAINING, MEMBERS)
    assert max(map(len, page.splitlines())) <= 80
    for words in ("run 'my-run': training for 10 s", "epoch 2, round 7, step 61 of 161, 9.8k tok/s",
                  "2 of 3 members healthy", "1 client reports an error", "ada", "dropped, away", "no disk",
                  "3 s ago", "1 min 30 s ago"):  # fmt: skip
        assert words in page
    assert "--state-dir" in " ".join(draw(TRAINING).split()), "the way to the errors"
    assert "no disk" not in draw(TRAINING)


def test_the_page_says_how_far_the_run_is_how_long_it_takes_and_who_holds_it_up() -> None:
    status = msgspec.structs.replace(
        TRAINING, tokens=1_250_000, learning_rate=4e-4, epoch_rounds=40, limit_unix=1_120
    )  # fmt: skip
    ada, ben = MEMBERS.members
    waits = SelfReport("ben", "training", "member 0 to finish round 7")
    work = SelfReport("ada", "training", "this client to train its part of round 7", bytes_sent=3_000_000)
    others = (
        msgspec.structs.replace(ada, report=work, due=9, credits=9),
        msgspec.structs.replace(ben, report=waits, due=9, credits=4, waited=12, is_connected=True, has_error=False),
    )
    page = draw(status, Members(1_000, others), POINTS)
    assert max(map(len, page.splitlines())) <= 80
    wanted = (
        "38 % done, about 33 min 20 s left (20 s a step)", "round 8 of 40 in this epoch; it ends at ",
        "1.2M tokens so far, learning rate 4.00e-04", "loss 8.800 █", "2.900", "9/9", "4/9",
        "waited for last: ben in 12 of the last 50 rounds", "ben waits for ada to finish round 7",
    )  # fmt: skip
    for words in wanted:
        assert words in page, page
    assert "ada waits" not in page, "who trains does not wait"


def test_a_step_that_is_only_told_late_is_not_shown_as_behind() -> None:
    ada, ben = MEMBERS.members
    assert ada.report is not None
    assert ben.report is not None
    # Step 61 begins at 1,220, step 41 at 820: ada spoke after 60 began, and was there; ben was at 35 while 41 ran.
    members = Members(
        1_230,
        (
            msgspec.structs.replace(ada, report=msgspec.structs.replace(ada.report, step=60), report_age_s=25),
            msgspec.structs.replace(ben, report=msgspec.structs.replace(ben.report, step=35), report_age_s=400),
        ),
    )
    _, first, second = (
        draw(msgspec.structs.replace(TRAINING, now_unix=1_230), members, POINTS)
        .partition("member  ")[2]
        .splitlines()[:3]
    )
    assert first.split()[5] == "61"
    assert "35 (-5)" in second


async def test_watching_redraws_in_place_outlives_gaps_and_ends_with_the_run(autojump_clock: MockClock) -> None:
    stream = io.StringIO()
    backend = FakeBackend(iter([TRAINING, BackendError("server x:1: cannot be reached"), TRAINING, FINISHED]))
    await watch_run(backend, stream)
    assert trio.current_time() == pytest.approx(3 * ASK_S)
    drawn = stream.getvalue()
    assert "! the run stands still for " in drawn
    assert "server x:1: cannot be reached" in drawn
    last = re.split(r"\x1b\[2K", drawn)[-1].strip("\n").splitlines()
    assert last[0].startswith("run 'my-run': finished for "), "the last state stays, once"
    assert "Ctrl-C" not in "".join(last)


async def test_a_page_that_is_longer_than_the_terminal_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "10")
    stream, view = io.StringIO(), RunView()
    view.take_status(TRAINING)
    view.take_members(Members(1_000, tuple(MEMBERS.members[0] for _ in range(256))))
    ConsoleView([view], Console(stream, live=True)).refresh()
    assert stream.getvalue().count("\n") == 8
    assert "more lines do not fit on this terminal" in stream.getvalue()


async def test_a_server_that_never_answered_is_an_error(autojump_clock: MockClock) -> None:
    with pytest.raises(BackendError, match="gave up"):
        await watch_run(FakeBackend(iter([BackendError("gave up")])), io.StringIO())


async def test_programs_get_a_line_of_json_for_each_state_with_the_keys_of_the_page(autojump_clock: MockClock) -> None:
    stream = io.StringIO()
    backend = FakeBackend(iter([TRAINING, FINISHED]))
    await watch_run(backend, stream, as_json=True, live=False)
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [one["run_state"] for one in told] == ["round_train", "finished"]
    assert told[0]["loss"] == 2.5
    assert [one["state"] for one in told[0]["clients"]] == ["healthy", "dropped"]
    assert json.loads(await ask_once(FakeBackend(iter([TRAINING])), with_members=False, as_json=True)) == get_plain_run(
        TRAINING
    )


async def test_a_key_that_may_not_see_members_sees_the_run_and_is_told_once(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    page = await ask_once(FakeBackend(iter([TRAINING]), NotOwner("not yours")), with_members=True, as_json=False)
    assert "run 'my-run': training" in page
    assert "ada" not in page
    assert capsys.readouterr().err == "warning: not yours\n"
    backend = FakeBackend(iter([TRAINING, TRAINING, FINISHED]), NotOwner("not yours"))
    await watch_run(backend, io.StringIO())
    assert capsys.readouterr().err == "warning: not yours\n"


async def test_watching_ends_when_nobody_reads_any_longer(autojump_clock: MockClock) -> None:
    class Unread(io.StringIO):
        def write(self, s: str, /) -> int:
            raise BrokenPipeError

    asked: list[int] = []
    backend = FakeBackend(iter([TRAINING] * 3), on_ask=lambda: asked.append(1))
    with pytest.raises(BrokenPipeError):
        await watch_run(backend, Unread(), as_json=True, live=False)
    assert asked == [1]


async def test_an_error_leaves_the_last_state_on_the_terminal_and_the_message_below_it(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    backend, stream = FakeBackend(iter([TRAINING, NotOwner("not yours")])), io.StringIO()
    monkeypatch.setattr(watching, "Console", lambda _: Console(stream, live=True))
    with pytest.raises(NotOwner) as raised:
        await watch_until_signal(backend, with_members=False, as_json=False)
    assert str(raised.value) == "not yours"
    last = re.split(r"\x1b\[2K", stream.getvalue())[-1]
    assert last.startswith("run 'my-run': training")
    assert last.endswith("\n")
    assert "Ctrl-C" not in last


async def test_ctrl_c_ends_watching_cleanly(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[int] = []

    def on_ask() -> None:
        asked.append(1)
        if len(asked) == 2:  # the first answer has been shown
            signal.raise_signal(signal.SIGINT)

    backend = FakeBackend(iter([TRAINING] * 9), on_ask=on_ask)
    with trio.fail_after(120):
        await watch_until_signal(backend, with_members=False, as_json=False)
    assert "my-run: epoch 2 round 7 step 61 of 161 | training" in capsys.readouterr().out


def test_the_page_of_a_halted_run_has_the_command_that_moves_it_in_one_piece_and_a_new_one_no_clock() -> None:
    options = TargetOptions(
        server_addr="127.0.0.1:19400", server_key="ab" * 32, state_dir=Path("/a/folder/of/the/server")
    )
    write = ServerTarget(options).write_command
    paused = msgspec.structs.replace(TRAINING, run_state=RunState.PAUSED, members=0)
    new = msgspec.structs.replace(paused, run_state=RunState.UNINITIALIZED, state_start_unix=0)
    assert f"goes on with {write('run resume')}; 4 connections\n" in format_run(paused, write=write)
    page = format_run(new, write=write)
    assert page.startswith("run 'my-run': not started\n")
    assert f"starts with {write('run resume')}" in page
    cut_off = format_run(msgspec.structs.replace(new, total_steps=0))
    assert "has no settings yet; `psyche run create --state FOLDER` completes it" in cut_off


def test_rates_are_amounts_of_the_token_that_the_run_pays_in() -> None:
    paying = msgspec.structs.replace(TRAINING, earning_rate=12_345_678, slashing_rate=5, decimals=6)
    page = " ".join(draw(paying).split())
    assert "pays 12.345678 for all its credits; an ejected member loses 0.000005" in page


def test_the_page_on_owning_lists_every_key_and_state_of_the_json() -> None:
    states = PAGE.read_text(encoding="utf-8").partition("| `run_state` |")[2].partition("\n")[0]
    assert {state.name.lower() for state in RunState} <= set(re.findall(r"`(\w+)`", states))
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert set(get_plain_run(TRAINING, MEMBERS)) <= listed
    (client, *_) = get_plain_run(TRAINING, MEMBERS)["clients"]
    assert set(client) | set(client["report"]) <= listed
