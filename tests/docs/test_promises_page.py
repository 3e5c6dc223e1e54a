"""docs/promises.md promises what tests show, and leaves out no named scenario."""

import ast
import re
from pathlib import Path

from scenarios.named import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
SHOWN_BY = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


def get_functions(path: Path) -> set[str]:
    return {
        n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_promise_names_a_test_that_there_is() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| | what")]
    assert len(rows) > 25
    for line in rows:
        assert SHOWN_BY.search(line.rsplit("|", 2)[1]), line
    for path, name in SHOWN_BY.findall(TEXT):
        assert name in get_functions(ROOT / path), name


def test_every_named_test_is_written_so_that_it_is_looked_up() -> None:
    assert len(SHOWN_BY.findall(TEXT)) == TEXT.count("::test_")


def test_every_named_scenario_is_promised() -> None:
    promised = set(re.findall(r"\b[FB]\d+\b", TEXT))
    assert {re.sub(r"[a-z]+$", "", row) for row in SCENARIOS} <= promised
