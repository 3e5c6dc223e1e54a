"""Pictures, the list of events and the README follow the code."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.log import make

from psyche.telemetry import types

ROOT = Path(__file__).resolve().parents[2]


def get_made() -> Iterator[str]:
    """The classes of events that the program makes."""
    for path in (ROOT / "psyche").rglob("*.py"):
        if path.parent.name == "types":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case (
                    ast.Call(func=ast.Attribute(value=ast.Name(id="types"), attr=name))
                    | ast.Call(func=ast.Name(id=name))
                ):
                    yield name
                case _:
                    pass


def test_every_kind_of_event_happens_somewhere() -> None:
    declared = {cls.__name__ for cls in types.get_types().values()}
    assert len(declared) > 80
    assert declared - set(get_made()) == set()


@pytest.mark.parametrize("script", ["generate_events", "generate_architecture", "generate_metrics"])
def test_what_is_drawn_from_the_code_is_new(script: str) -> None:
    """The tables of events and metrics, the dashboard, and the pictures."""
    command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", types.get_types().values(), ids=lambda kind: kind.__name__)
def test_what_is_emitted_reads_back_as_it_was(kind: type[types.Event]) -> None:
    event = make(kind)
    line = json.loads(json.dumps(types.get_plain_fields(event)))
    assert types.read_plain(types.get_type_name(kind), line) == event


def test_the_places_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", text)
    assert len(named) > 20
    missing = [name for name in named if not any((folder / name).exists() for folder in (ROOT, ROOT / "psyche"))]
    assert missing == []
