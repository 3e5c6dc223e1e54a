"""Pictures of a screen and a page, as docs/watch.md shows them: `scripts/take_pictures.py` puts them there."""

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.run_files import write_model, write_run
from kits.testnet import CalledTestnet, call_testnet
from PIL import Image
from textual.pilot import Pilot
from watch.browser_kit import open_browser, open_tab
from watch.page_kit import run_command
from watch.test_screen import pilot, read_screen, wait_until

from psyche.watch.screen.app import WatchScreen
from psyche.watch.sources import LogSource

pytestmark = pytest.mark.whole

ROUNDS = 40
MAX_BYTES = 100_000
COLOURS = 64


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The logs of a run of three clients, which goes on."""
    tmp_path = tmp_path_factory.mktemp("run")
    run = write_run(tmp_path / "config", write_model(tmp_path / "model"), total_steps=400, rounds_per_epoch=40)
    with call_testnet(tmp_path / "testnet", run, "--num-clients", "3") as testnet:
        testnet.wait_for("rounds", lambda: count_rounds(testnet) >= ROUNDS)
        yield testnet.folder / "events"


def count_rounds(testnet: CalledTestnet) -> int:
    is_there = (testnet.folder / "events" / "client-1" / "events.jsonl").exists()
    return sum(one["kind"] == "applied" for one in testnet.read("client-1")) if is_there else 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the pictures go."""
    return Path(os.environ.get("PSYCHE_PICTURES", tmp_path))


def test_a_picture_of_the_screen(events: Path, folder: Path) -> None:
    path = folder / "watch-screen.svg"

    async def act(screen: WatchScreen, driver: Pilot[None]) -> None:
        await wait_until(driver, lambda: "loss, step" in read_screen(screen))
        svg = screen.export_screenshot(title="psyche watch runs/demo --tui")
        path.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))  # which the net would serve

    pilot(LogSource(events), act, size=(100, 30))
    text = path.read_text()
    assert "client-1" in text
    assert "http" not in text.replace("http://www.w3.org", "").replace("https://www.textualize.io", "")
    assert len(text) < MAX_BYTES


def test_a_picture_of_the_page(events: Path, folder: Path) -> None:
    path = folder / "watch-page.png"
    with run_command(events) as address, open_browser() as browser:
        shown = {"viewport": {"width": 1_000, "height": 900}, "color_scheme": "light"}
        tab = open_tab(browser, f"{address}#/run/0", [], **shown)
        tab.locator("#chart-loss canvas").wait_for()
        tab.get_by_role("link", name="client-3").wait_for()
        taken = Image.open(io.BytesIO(tab.screenshot()))
        tab.context.close()
    taken.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    assert len(taken.convert("RGB").getcolors(1 << 20) or []) > COLOURS, "it is not blank"
    assert path.stat().st_size < MAX_BYTES
