"""The documentation as a site: it builds, has every page, and a link that leads nowhere stops it."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def get_pages(nav: list[dict[str, Any]]) -> list[str]:
    values = [value for entry in nav for value in entry.values()]
    return [page for value in values for page in (get_pages(value) if isinstance(value, list) else [value])]


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_the_site_is_built_with_every_page_and_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "build" / "site"
    names = {page.removesuffix(".md") for page in PAGES} - {"index"}
    assert [name for name in names if not (site / name / "index.html").is_file()] == []
    assert (site / "index.html").is_file()
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.write("\n[nowhere](tutorial.md#no-such-heading)\n")
    refused = build(tmp_path)
    assert refused.returncode != 0
    assert "anchor does not exist" in refused.stdout + refused.stderr


def test_every_page_can_be_chosen_and_is_on_the_first_page() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(get_pages(nav)) == PAGES
    linked = LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert sorted([*linked, "index.md"]) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_site_links_to_nothing_outside_it(page: str) -> None:
    links = LINK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert [link for link in links if link.startswith(("..", "/"))] == []
