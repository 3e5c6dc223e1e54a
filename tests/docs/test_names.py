"""One name for one thing: no public class of the package has the name of another one."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "psyche"
# Kinds of events are read as `kinds.Applied`, with their module's name before them.
NAMESPACES = {ROOT / "telemetry" / "kinds"}
SHARED = {"Log"}  # what the engine asks for, and the port that the runtime does it through


def find_classes() -> dict[str, list[str]]:
    """The files in which a public class of this name is defined."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        if NAMESPACES.isdisjoint(path.parents):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_no_two_classes_have_one_name() -> None:
    found = find_classes()
    assert len(found) > 500
    assert {name: files for name, files in found.items() if len(files) > 1 and name not in SHARED} == {}
