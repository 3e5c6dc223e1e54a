"""What holds for all pages: links, the site, the form of the change log, promises that tests show, plain messages."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from scenarios.named import SCENARIOS

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = sorted(path.name for path in DOCS.glob("*.md"))
LINK: Final = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_tables_of_benchmarks_are_there_and_a_script_makes_each() -> None:
    folder = ROOT / "benchmarks"
    scripts = "".join(map(read, folder.glob("*.py")))
    blocks = re.findall(r"<!-- BEGIN (.+?) -->\n(.+?)<!-- END \1 -->", read(folder / "README.md"), re.DOTALL)
    assert blocks
    for name, table in blocks:
        assert f'"{name}"' in scripts
        assert table.strip(), name


# --- links and the site -------------------------------------------------------------------------------------


def get_anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, no punctuation, hyphens for blanks."""
    headings = HEADING.findall(read(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *DOCS.glob("*.md")], ids=lambda page: page.name)
def test_links_lead_to_headings_and_files_that_are_there(page: Path) -> None:
    for target, anchor in LINK.findall(read(page)):
        found = page.parent / target if target else page
        assert found.exists(), target
        assert not anchor or anchor in get_anchors(found), f"{target}#{anchor}"
        assert page.parent == ROOT or not target.startswith(("..", "/")), "the site has nothing outside it"


def get_pages(nav: list[dict[str, Any]]) -> list[str]:
    values = [value for entry in nav for value in entry.values()]
    return [page for value in values for page in (get_pages(value) if isinstance(value, list) else [value])]


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.whole
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
    linked = [target for target, _ in LINK.findall(read(DOCS / "index.md")) if target]
    assert sorted([*linked, "index.md"]) == PAGES


# --- the change log ----------------------------------------------------------------------------------------

HEADINGS: Final = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
RELEASES: Final = re.split(r"^## ", read(ROOT / "CHANGELOG.md"), flags=re.MULTILINE)[1:]
LONGEST: Final = 220


def test_the_newest_changes_stand_first_and_releases_have_numbers() -> None:
    names = [release.splitlines()[0] for release in RELEASES]
    assert names[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\](?: - \d{4}-\d\d-\d\d)?", name) for name in names[1:])


def test_every_change_stands_under_a_heading_that_occurs_once() -> None:
    for release in RELEASES:
        parts = re.split(r"^### ", release, flags=re.MULTILINE)
        found = [part.splitlines()[0] for part in parts[1:]]
        assert len(set(found)) == len(found)
        assert set(found) <= HEADINGS, found
        assert "- " not in parts[0], "a change without a heading"
        assert all(re.search(r"^- ", part, re.MULTILINE) for part in parts[1:]), "an empty heading"


def test_a_change_is_one_line_and_ends_as_a_sentence() -> None:
    lines = [line for release in RELEASES for line in release.splitlines()[1:] if line and not line.startswith("### ")]
    assert [line for line in lines if not line.startswith("- ")] == []
    assert [line for line in lines if not line.endswith(".") or len(line) > LONGEST] == []


# --- promises and messages ----------------------------------------------------------------------------------

PROMISES: Final = read(DOCS / "promises.md")
SHOWN_BY: Final = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


@cache
def get_functions(path: Path) -> set[str]:
    return {
        n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_promise_names_a_test_that_there_is() -> None:
    rows = [line for line in PROMISES.splitlines() if line.startswith("| ") and not line.startswith("| | what")]
    assert len(rows) > 25
    for line in rows:
        assert SHOWN_BY.search(line.rsplit("|", 2)[1]), line
    for path, name in SHOWN_BY.findall(PROMISES):
        assert name in get_functions(ROOT / path), name


def test_every_named_test_is_written_so_that_it_is_looked_up() -> None:
    assert len(SHOWN_BY.findall(PROMISES)) == PROMISES.count("::test_")


def test_every_named_scenario_is_promised() -> None:
    promised = set(re.findall(r"\b[FB]\d+\b", PROMISES))
    assert {re.sub(r"[a-z]+$", "", row) for row in SCENARIOS} <= promised


RULE: Final = re.compile(r"\([A-Z]\d{1,2}(, [A-Z]\d{1,2})*\)")
# What peers and their builders read: the rules of the record, its messages, and the worlds that check them.
FOR_BUILDERS: Final = ("core", "wire", "sim", "testing")


def find_texts(path: Path) -> Iterator[str]:
    """The texts of a file that are not its documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def test_no_message_to_a_user_has_the_number_of_a_rule() -> None:
    files = [path for path in (ROOT / "psyche").rglob("*.py") if path.relative_to(ROOT).parts[1] not in FOR_BUILDERS]
    assert len(files) > 150
    numbered = [path for path in files if RULE.search(read(path))]
    assert [(path.name, text) for path in numbered for text in find_texts(path) if RULE.search(text)] == []
