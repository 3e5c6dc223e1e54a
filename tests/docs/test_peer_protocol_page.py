"""docs/peer-protocol.md says what the code does: its tables and examples are drawn from it."""

from pathlib import Path

from kits.scripts import load

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "peer-protocol.md"


def test_the_tables_and_examples_are_those_of_the_code() -> None:
    script = load("draw_peer_protocol")
    assert script.page_blocks.find_stale([PAGE], script.BLOCKS) == {}, "stale: run scripts/draw_peer_protocol.py"
