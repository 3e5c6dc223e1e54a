"""The page about runs over HTTP, and saved: what it says, to whom, and that it is only read."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import trio
from kits.commands import call, refuse
from kits.log import make
from watch.page_kit import Logs, open_page, read_data

from psyche.analysis.run_view import RunView
from psyche.telemetry import types
from psyche.watch import feed
from psyche.watch.document import describe_member
from psyche.watch.feed import make_batch
from psyche.watch.saved import Losses, write_losses
from psyche.watch.sources import LogSource

EVIL = '</script><img src=x onerror="hacked=1">\u202e\x1b[31m' + "a" * 10_000


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    found = Logs(tmp_path / "logs")
    for height in range(4):
        found.play(height, late="ben" if height == 2 else "")
    found.wait("ada", found.unix + 30)
    return found


async def test_the_routes_say_what_the_run_is_and_who_is_waited_for(logs: Logs) -> None:
    async with open_page(logs.folder) as (client, watcher):
        (run,) = (await client.get("/api/runs")).json()
        whole = (await client.get("/api/runs/0")).json()
        rounds = (await client.get("/api/runs/0/rounds", params={"after": 2})).json()
        member = (await client.get("/api/runs/0/members/ben")).json()
        bars = (await client.get("/api/runs/0/timeline")).json()
        view = watcher.views[0]
    (wait,) = run["waits"]
    assert wait == {
        "what": "ben to finish round 3",
        "until": logs.unix + 30,
        "then": "report without it",
        "who": ["ada"],
    }
    assert (run["name"], run["step"], run["loss"], run["left_s"]) == ("run", view.step, view.loss, view.left_s)
    assert [one["name"] for one in whole["people"]] == ["ada", "ben"]
    assert rounds["curve"]["step"] == [3, 4]
    assert rounds["curve"]["greatest"] == [5.5, 5.5]
    assert len(rounds["rounds"]) == 4
    assert len(member["curve"]["step"]) == 3
    assert bars["names"] == ["ada", "ben"]
    assert "train" in bars["rows"][0]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "words"),
    [
        ("POST", "/api/runs", {}, 405, "only read"),
        ("DELETE", "/", {}, 405, "only read"),
        ("GET", "/", {"host": "evil.example"}, 421, "Host"),
        ("GET", "/api/runs", {"host": "127.0.0.1.evil.example:80"}, 421, "--web-host"),
        ("GET", "/api/runs", {"host": "a@b"}, 421, "Host"),
        ("GET", "/api/runs", {"host": "[::1]:7"}, 200, "run"),
        ("GET", "/api/runs", {"host": "LOCALHOST"}, 200, "run"),
        ("GET", "/api/runs", {"origin": "https://evil.example"}, 403, "Origin"),
        ("GET", "/api/runs", {"origin": "null"}, 403, "Origin"),
        ("GET", "/api/runs/7", {}, 404, "no run 7"),
        ("GET", "/api/runs/0/members/eve", {}, 404, "no such member"),
        ("GET", "/api/runs/0/rounds?after=-1", {}, 400, "whole number"),
        ("GET", "/../page.py", {}, 404, "no such page"),
        ("GET", "/metrics", {}, 404, "no such page"),
    ],
)
async def test_who_may_ask_and_what_is_judged(
    logs: Logs, method: str, path: str, headers: dict[str, str], status: int, words: str
) -> None:
    async with open_page(logs.folder) as (client, _):
        answer = await client.request(method, path, headers=headers)
    assert answer.status_code == status
    assert words in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "access-control-allow-origin" not in answer.headers


async def take(lines: AsyncIterator[str], wanted: int) -> list[str]:
    """So many lines; the iterator stays open, and with it the answer."""
    return [await anext(lines) for _ in range(wanted)]


async def test_a_reader_goes_on_where_it_was_and_hears_that_the_line_stands(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "HEARTBEAT_S", 0.2)
    async with open_page(logs.folder) as (client, watcher):
        last = watcher.views[0].get_lines()[-1].number
        async with client.stream("GET", "/api/runs/0/events", headers={"last-event-id": str(last - 1)}) as answer:
            lines = answer.aiter_lines()
            found = await take(lines, 7)
            assert [line for line in found if line.startswith("id: ")] == [f"id: {last}"]
            assert found[0] == "event: run"
            logs.emit("ada", make(types.Error, message="out of cheese"))
            while "out of cheese" not in (line := await anext(lines)) or '"level"' not in line:
                pass
            assert json.loads(line.removeprefix("data: "))["node"] == "ada"
            while await anext(lines) != ": heartbeat":
                pass


async def test_who_asks_for_lines_of_json_gets_them(logs: Logs) -> None:
    async with open_page(logs.folder) as (client, watcher):
        most = len(watcher.views[0].get_lines())
        wanted = {"accept": "application/x-ndjson", "last-event-id": "99999"}  # of a watcher before this one
        async with client.stream("GET", "/api/runs/0/events", headers=wanted) as answer:
            found = [json.loads(line) for line in await take(answer.aiter_lines(), 1 + most)]
    assert [one["event"] for one in found] == ["run"] + ["line"] * most
    assert [one["id"] for one in found[1:]] == list(range(1, most + 1))


def test_a_slow_reader_loses_its_oldest_lines_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    view = RunView()
    for number in range(40):
        view.take((float(number), "ada", make(types.Error, message=f"number {number}")))
    monkeypatch.setattr(feed, "MAX_BATCH_BYTES", 1_000)
    newest, batch = make_batch(view, b"", 4, is_lines=True)
    told, *lines = [json.loads(line) for line in batch.splitlines()]
    assert newest == 40
    assert told == {"event": "lost", "data": {"lines": 36 - len(lines)}}
    assert [one["id"] for one in lines] == list(range(41 - len(lines), 41))
    assert len(batch) < 1_100
    assert make_batch(view, b"run", 40, is_lines=True) == (40, b"run")


async def test_one_reader_too_many_is_refused_until_another_one_goes(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MAX_READERS", 1)
    async with open_page(logs.folder) as (client, _):
        async with client.stream("GET", "/api/runs/0/events") as first:
            lines = first.aiter_lines()
            await take(lines, 2)
            assert (await client.get("/api/runs/0/events")).status_code == 503
        while True:  # the server learns of its end
            async with client.stream("GET", "/api/runs/0/events") as again:
                if again.status_code == 200:
                    break
            await trio.sleep(0.02)


def test_credits_are_explained_round_by_round(logs: Logs) -> None:
    view = read_view(logs)
    ben = next(one for one in view.get_members() if one.name == "ben")
    rounds = describe_member(view, ben)["rounds"]
    assert {one["credit"] for one in rounds} == {"not decided yet"}
    for one in view.rounds:
        one.is_decided, one.members = True, ("ada",)
    view.rounds[0].members = ("ada", "ben")
    view.rounds[1].is_void = True
    said = [one["credit"] for one in describe_member(view, ben)["rounds"]]
    assert said[0] == "yes: its result is in the set"
    assert said[1].startswith("no: the round is void")
    assert said[2] == "no: it did not finish its training for the set of 1"
    assert said[3] == "no: it trained, but its result came too late for the set of 1"


def read_view(logs: Logs) -> RunView:
    source = LogSource(logs.folder)
    while source.read():
        pass
    return source.view


def test_a_saved_page_needs_nothing_else_and_strangers_texts_stay_texts(logs: Logs, tmp_path: Path) -> None:
    logs.emit("ada", make(types.Error, message=EVIL))
    path = tmp_path / "run.html"
    call("watch", logs.folder, "--once", "--save", path)
    page = path.read_text()
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert not re.search(r"(src|href)=\"?(https?:|//)", page)
    runs = read_data(page)["runs"]
    assert isinstance(runs, list)
    assert runs[0]["member"]["ada"]["error"].startswith("</script><img")
    assert len(msgspec.json.encode(runs[0]["log"])) < 10_000
    assert page.count("</script>") == page.count("<script")
    assert list(tmp_path.glob("*.part")) == []


def test_a_page_that_cannot_be_is_refused_before_it_is_watched(logs: Logs, tmp_path: Path) -> None:
    assert "must end in .html" in refuse("watch", logs.folder, "--save", tmp_path / "run.png").stderr
    assert "there is no folder" in refuse("watch", logs.folder, "--save", tmp_path / "no" / "run.html").stderr
    assert "--once ends at once" in refuse("watch", logs.folder, "--once", "--web", 0).stderr


def test_a_training_s_page_has_its_losses_their_mean_and_those_held_out(tmp_path: Path) -> None:
    path = tmp_path / "loss.html"
    write_losses(path, [Losses("distro", {1: 3.0, 2: 2.0, 3: 1.0}, {0: 4.0, 2: 2.5})])
    (run,) = read_data(path.read_text())["runs"]
    assert run["history"]["curve"]["loss"] == [3.0, 2.5, 2.0]
    assert [one["loss"] for one in run["history"]["series"]] == [[3.0, 2.0, 1.0], [4.0, 2.5]]
    assert run["phase"] == "finished"
