"""docs/configuration.md says which keys there are, what they take and what they are when left out."""

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "configuration.md"
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)


@cache
def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_settings", ROOT / "scripts" / "draw_settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def read_rows(heading: str) -> dict[str, tuple[str, ...]]:
    """The rows of the table below a heading, by key."""
    block = PAGE.read_text(encoding="utf-8").partition(f"### {heading}\n")[2].partition("\n#")[0]
    return {row[0]: row[1:] for row in ROW.findall(block)}


def test_the_page_is_that_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert load_script().draw_page(text) == text, "stale: run `python scripts/draw_settings.py`"


@pytest.mark.parametrize(
    ("heading", "key", "row"),
    [
        ("`[config]`", "straggler_percent",
         ("whole number", "`150`", "percent of the pace of two thirds; 0: wait for all")),
        ("`[config]`", "total_steps", ("whole number", "**needed**", "step at which the run ends, above 0")),
        ("`[config]`", "data_root", ("hex digits", "none", "hash of the training data, 64 hex digits in quotes")),
        ("`[model.LLM.data_location.Http]`", "shuffle",
         ("one of `DontShuffle`, `Seeded`", "**needed**", '"DontShuffle" or { Seeded = [32 numbers] }')),
        ("`[[access.authorization]]`", "delegates",
         ("list of texts of hex digits", "none", "public keys of its machines, each 64 hex digits")),
        ("`[[class]]`", "apply_s", ("number", "`0.2`", "seconds to apply a round's results")),
    ],
)  # fmt: skip
def test_a_row_tells_kind_default_and_meaning(heading: str, key: str, row: tuple[str, ...]) -> None:
    assert read_rows(heading)[key] == row


def test_a_table_that_stands_at_two_places_is_drawn_once() -> None:
    assert "final_lr" in read_rows("`[model.LLM.lr_schedule.Linear]`, `[model.LLM.lr_schedule.Cosine]`")
