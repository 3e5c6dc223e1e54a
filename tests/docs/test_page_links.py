"""Links between the pages lead to files and headings that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def get_anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, no punctuation, hyphens for blanks."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings_and_files_that_are_there(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        found = page.parent / target if target else page
        assert found.exists(), target
        assert not anchor or anchor in get_anchors(found), f"{target}#{anchor}"
