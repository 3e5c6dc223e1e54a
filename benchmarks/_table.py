"""What every benchmark shares: arguments, a table for people and for README.md, JSON for comparisons."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

import page_blocks

README: Final = Path(__file__).resolve().parent / "README.md"
_blocks: Final[dict[str, list[str]]] = {}  # of README.md, by name: what this run has measured


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of every benchmark: `json` (a path or None) and `quick` (fewer repetitions)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: shows that it runs, measures badly")
    parser.add_argument(
        "--update-docs", action="store_true", help="also put what it measures into benchmarks/README.md"
    )
    return parser


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], block: str = "") -> None:
    """Print rows under their columns: text to the left, numbers to the right, floats to 4 digits.

    README.md has the table too if it has a block of this name, between `<!-- BEGIN block -->` and its END.
    """
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    if block:
        _blocks.setdefault(block, []).extend(page_blocks.format_table(columns, cells))
    widths = [max(len(cell) for cell in column) for column in zip(columns, *cells, strict=True)]
    numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    print(f"\n{title}")
    for line in (columns, ["-" * width for width in widths], *cells):
        aligned = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(aligned).rstrip())


def print_facts(facts: Sequence[str], block: str) -> None:
    """Print what a table rests on; README.md has them in the block of this name."""
    print("\n" + "\n".join(facts))
    _blocks.setdefault(block, []).extend(f"- {fact}" for fact in facts)


def finish(args: argparse.Namespace, result: Mapping[str, object]) -> None:
    """Write `result` where `--json` says, and tables into README.md if `--update-docs` says so."""
    if args.update_docs:
        blocks = {name: lambda lines=lines: lines for name, lines in _blocks.items()}
        for page, text in page_blocks.find_stale([README], blocks).items():
            page.write_text(text, encoding="utf-8")
    if args.json is not None:
        save(args.json, result)


def save(path: Path, result: Mapping[str, object]) -> None:
    path.write_text(json.dumps(dict(result), indent=2, sort_keys=True) + "\n", encoding="utf-8")
