"""docs/peer-protocol.md says what the code does: its tables and examples are drawn from it."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "peer-protocol.md"


def test_the_tables_and_examples_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("draw_peer_protocol", ROOT / "scripts" / "draw_peer_protocol.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)
    spec.loader.exec_module(script)
    text = PAGE.read_text(encoding="utf-8")
    assert script.draw_page(text) == text, "stale: run `python scripts/draw_peer_protocol.py`"
