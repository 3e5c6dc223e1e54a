"""Pictures, the list of events and the README follow the code."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMITTERS = frozenset({"emit", "log", "_log", "_emit", "Log"})
LINK = re.compile(r"\]\(([^)#:]+)\)")


def get_emitted() -> Iterator[str]:
    for path in (ROOT / "psyche").rglob("*.py"):
        if path.relative_to(ROOT / "psyche").parts[0] == "sim":  # what befalls simulated machines is in no real log
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name) and node.args:
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                first = node.args[0]
                if name in EMITTERS and isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value


def get_documented() -> set[str]:
    rows = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "docs" / "events.md").read_text(), re.MULTILINE)
    return {kind for row in rows for kind in re.findall(r"`(\w+)`", row)}


def test_every_kind_of_event_is_explained() -> None:
    assert set(get_emitted()) - get_documented() == set()


def test_no_event_is_explained_that_nobody_writes() -> None:
    assert get_documented() - set(get_emitted()) == set()


def test_the_pictures_are_those_of_the_code() -> None:
    script = ROOT / "scripts" / "draw_architecture.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "page", ["README.md", "docs/architecture.md", "docs/tutorial.md", "docs/events.md", "docs/promises.md"]
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    missing = [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert missing == []


def test_the_places_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", text)
    assert len(named) > 20
    missing = [name for name in named if not any((folder / name).exists() for folder in (ROOT, ROOT / "psyche"))]
    assert missing == []
