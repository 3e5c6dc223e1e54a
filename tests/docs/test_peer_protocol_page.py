"""The pages for builders of peers say what the code does: their tables and examples are drawn from it."""

from pathlib import Path

import pytest
from kits.scripts import load

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", ["peer_protocol", "peer_training"])
def test_the_tables_and_examples_are_those_of_the_code(name: str) -> None:
    script, page = load(f"draw_{name}"), DOCS / f"{name.replace('_', '-')}.md"
    assert script.page_blocks.find_stale([page], script.BLOCKS) == {}, f"stale: run scripts/draw_{name}.py"
