"""CHANGELOG.md keeps the form of Keep a Changelog: releases, five headings, a line for each change."""

import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
HEADINGS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
RELEASES = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
LONGEST = 220


def test_the_newest_changes_stand_first_and_releases_have_numbers() -> None:
    names = [release.splitlines()[0] for release in RELEASES]
    assert names[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\](?: - \d{4}-\d\d-\d\d)?", name) for name in names[1:])


def test_every_change_stands_under_a_heading_that_occurs_once() -> None:
    for release in RELEASES:
        parts = re.split(r"^### ", release, flags=re.MULTILINE)
        found = [part.splitlines()[0] for part in parts[1:]]
        assert len(set(found)) == len(found)
        assert set(found) <= set(HEADINGS), found
        assert "- " not in parts[0], "a change without a heading"
        assert all(re.search(r"^- ", part, re.MULTILINE) for part in parts[1:]), "an empty heading"


def test_a_change_is_one_line_and_ends_as_a_sentence() -> None:
    lines = [line for release in RELEASES for line in release.splitlines()[1:] if line and not line.startswith("### ")]
    assert [line for line in lines if not line.startswith("- ")] == []
    assert [line for line in lines if not line.endswith(".") or len(line) > LONGEST] == []
