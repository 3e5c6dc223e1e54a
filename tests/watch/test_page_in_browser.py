"""The page in a real browser: served by the command and saved, with strangers' texts, keys, colours and widths."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.commands import call
from kits.log import make
from watch.browser_kit import open_browser, open_tab
from watch.page_kit import Logs, run_command

from psyche.telemetry import types

EVIL = '<img src=x onerror="hacked=1"></script><script>hacked=1</script>'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    found = Logs(tmp_path / "logs", "<b>run</b>")
    for height in range(4):
        found.play(height)
    found.wait("ada", found.unix + 30)
    return found


def test_the_page_says_who_is_waited_for_and_follows_the_run(browser: Any, logs: Logs) -> None:
    problems: list[str] = []
    with run_command(logs.folder) as address:
        tab = open_tab(browser, address, problems)
        now = tab.get_by_label("now", exact=True)
        now.get_by_text("Waiting for").wait_for()
        assert "Waiting for ben to finish round 3 (ada waits) until" in now.inner_text()
        assert "then report without it" in now.inner_text()
        assert "<b>run</b>" in now.inner_text()
        assert "loss (nats per token): greatest 5.500" in tab.locator("#chart-loss").get_attribute("aria-label")
        assert tab.locator("#chart-loss canvas").count() == 1
        logs.play(4)
        logs.emit("ben", make(types.Error, message=EVIL))
        tab.get_by_text("5 of 100").wait_for()
        tab.get_by_role("alert").get_by_text("ben reports an error").wait_for()
        tab.get_by_role("region", name="log").get_by_text(EVIL).first.wait_for()
        assert tab.evaluate("typeof hacked") == "undefined"
        assert tab.locator("img").count() == 0
        tab.context.close()
    assert problems == []


def test_a_member_is_reached_by_keys_and_its_credits_are_explained(browser: Any, logs: Logs) -> None:
    problems: list[str] = []
    with run_command(logs.folder) as address:
        tab = open_tab(browser, f"{address}#/run/0", problems)
        tab.get_by_role("link", name="ada #0").wait_for()
        for _ in range(10):
            tab.keyboard.press("Tab")
            if "member/ada" in (tab.evaluate("document.activeElement.href") or ""):
                break
        tab.keyboard.press("Enter")
        tab.get_by_text("Its result counted in").wait_for()
        assert tab.get_by_role("region", name="credits by round").locator("tr").count() == 5
        tab.keyboard.press("Escape")
        tab.get_by_role("region", name="rounds").wait_for()
        tab.context.close()
    assert problems == []


def test_two_runs_stand_side_by_side_and_are_compared(browser: Any, logs: Logs, tmp_path: Path) -> None:
    other, problems = Logs(tmp_path / "other", "other"), list[str]()
    other.play(0)
    with run_command(logs.folder, other.folder) as address:
        tab = open_tab(browser, address, problems)
        tab.get_by_text("2 runs").wait_for()
        for box in tab.get_by_role("checkbox").all():
            box.check()
        tab.get_by_role("button", name="compare the two chosen").click()
        figures = tab.get_by_role("region", name="figures of both")
        figures.wait_for()
        assert "4 of 100" in figures.inner_text()
        tab.get_by_label("over").select_option("tokens")
        tab.locator("#chart-loss canvas").wait_for()
        tab.context.close()
    assert problems == []


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_saved_page_is_whole_without_a_net_also_on_a_narrow_screen(
    browser: Any, logs: Logs, tmp_path: Path, scheme: str
) -> None:
    path, problems = tmp_path / "run.html", list[str]()
    call("watch", logs.folder, "--once", "--save", path)
    shown = {"color_scheme": scheme, "viewport": {"width": 360, "height": 740}, "offline": True}
    tab = open_tab(browser, path.as_uri(), problems, **shown)
    tab.get_by_text("Who did what when").wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) > 380) == (scheme == "light")
    bars = tab.evaluate("[...bars.getContext('2d').getImageData(0, 0, bars.width, bars.height).data].some(Boolean)")
    assert bars
    tab.get_by_role("link", name="ben #1").click()
    tab.get_by_text("Its result counted in").wait_for()
    tab.context.close()
    assert problems == []
