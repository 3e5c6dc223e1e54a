"""One name for one thing: no public class or function of the package has the name of another one."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "psyche"
# Kinds of events are read as `kinds.Applied`, with their module's name before them.
KINDS = ROOT / "telemetry" / "kinds"
# The function of a command has the command's name, which may be that of the function it calls: `psyche data tokenize`.
COMMANDS = ROOT / "cli" / "commands"
SHARED_CLASSES = {"Log"}  # what the engine asks for, and the port that the runtime does it through
SHARED_FUNCTIONS = {"main"}  # where a process begins
TYPES = {"class": ast.ClassDef, "function": (ast.FunctionDef, ast.AsyncFunctionDef)}


def find_places(what: str, *apart: Path) -> dict[str, list[str]]:
    """The files in which a public class or function of each name is defined, except those in the folders `apart`."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        if set(path.parents).isdisjoint(apart):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, TYPES[what]) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(ROOT)))
    return found


def find_doubled(places: dict[str, list[str]], shared: set[str]) -> dict[str, list[str]]:
    return {name: files for name, files in places.items() if len(files) > 1 and name not in shared}


def test_no_two_classes_have_one_name() -> None:
    found = find_places("class", KINDS)
    assert len(found) > 500
    assert find_doubled(found, SHARED_CLASSES) == {}


def test_no_two_functions_have_one_name() -> None:
    found = find_places("function", COMMANDS)
    assert len(found) > 700
    assert find_doubled(found, SHARED_FUNCTIONS) == {}
