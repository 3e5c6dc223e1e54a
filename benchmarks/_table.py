"""What every benchmark shares: arguments, a table for people, JSON for comparisons."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of every benchmark: `json` (a path or None) and `quick` (fewer repetitions)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: shows that it runs, measures badly")
    return parser


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their columns: text to the left, numbers to the right, floats to 4 digits."""
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(columns, *cells, strict=True)]
    numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    print(f"\n{title}")
    for line in (columns, ["-" * width for width in widths], *cells):
        aligned = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(aligned).rstrip())


def finish(args: argparse.Namespace, result: Mapping[str, object]) -> None:
    """Write `result` where `--json` says."""
    if args.json is not None:
        args.json.write_text(json.dumps(dict(result), indent=2, sort_keys=True) + "\n", encoding="utf-8")
