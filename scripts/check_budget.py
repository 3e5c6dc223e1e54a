"""Checks the size budget: functions p90 <= 35 lines and none over 70, files <= 500 lines, everything annotated.

A folder of psyche has at most 16 files and one of tests 20, so that readers can survey it.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FUNCTION_LINES = 70
P90_FUNCTION_LINES = 35
MAX_FILE_LINES = 500
MAX_FILES = {"psyche": 16, "tests": 20}  # Python files in one folder, besides __init__.py
Function = ast.FunctionDef | ast.AsyncFunctionDef


def get_functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def get_length(function: Function) -> int:
    """Lines from `def` to the end of the function."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def get_unannotated(function: Function) -> list[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    missing = [one.arg for one in named if one.annotation is None and one.arg not in ("self", "cls")]
    return missing + ([] if function.returns is not None else ["the result"])


def find_crowded_folders(root: Path) -> list[str]:
    """Folders with too many files."""
    counts = Counter(
        path.parent for top in MAX_FILES for path in (root / top).rglob("*.py") if path.name != "__init__.py"
    )
    found = [(folder.relative_to(root), count) for folder, count in sorted(counts.items())]
    return [
        f"{folder}: {count} files, at most {MAX_FILES[folder.parts[0]]}: give a subject of them a folder"
        for folder, count in found
        if count > MAX_FILES[folder.parts[0]]
    ]


def main() -> int:
    lengths: list[int] = []
    problems: list[str] = find_crowded_folders(ROOT)
    for path in sorted((ROOT / "psyche").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT)
        lines = text.count("\n")
        if lines > MAX_FILE_LINES:
            problems.append(f"{name}: {lines} lines, at most {MAX_FILE_LINES}: split it where its subject splits")
        for function in get_functions(ast.parse(text)):
            length = get_length(function)
            lengths.append(length)
            if length > MAX_FUNCTION_LINES:
                problems.append(
                    f"{name}:{function.lineno} {function.name}: {length} lines, at most {MAX_FUNCTION_LINES}"
                )
            if unannotated := get_unannotated(function):
                problems.append(f"{name}:{function.lineno} {function.name}: not annotated: {', '.join(unannotated)}")
    lengths.sort()
    p90 = lengths[len(lengths) * 9 // 10] if lengths else 0
    if p90 > P90_FUNCTION_LINES:
        problems.append(f"functions: the 90th percentile is {p90} lines, at most {P90_FUNCTION_LINES}")
    for problem in problems:
        print(problem)
    median = lengths[len(lengths) // 2] if lengths else 0
    print(f"{len(lengths)} functions: median {median}, p90 {p90}, longest {lengths[-1] if lengths else 0} lines")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
