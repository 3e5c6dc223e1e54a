"""How much of what all tests see the first tier sees too: faults are planted, and both look for them.

    python scripts/power.py                       60 mutants of the core, 60 faults of the Rust rules, drawn by --seed
    python scripts/power.py --sample 300          more of each

Errors planted in the code of whole runs (tests/sim/test_planted.py) are each found by one test; the table counts how
many of these tests the first tier has. It prints a Markdown table, and fails where the first tier sees less than 95 %.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from kits.tier import VARIABLE  # noqa: E402

LEAST = 0.95
SURVIVOR = re.compile(r"^(\S+:\d+) (survived)\n((?:[-+].*\n)+)", re.MULTILINE)
NOTICED = re.compile(r"^(\S.*?\S) {2,}(\S+\.rs:\d+: .*)$", re.MULTILINE)
SECOND_TIER = "random events of the second tier"


def call(tier: str, *words: str) -> str:
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {VARIABLE: tier},
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stderr.write(ran.stderr)
    return ran.stdout


def count_mutants(sample: int, seed: int) -> tuple[int, int, int]:
    """Planted, seen by all tests, seen by the first tier: all tests are tried on what that does not see."""
    said = call("first", "scripts/mutants.py", "--sample", str(sample), "--seed", str(seed))
    total = int(re.findall(r"^all +([\d,]+)", said, re.MULTILINE)[0].replace(",", ""))
    left = {found[3]: found[1] for found in SURVIVOR.finditer(said)}
    if not left:
        return total, total, total
    words = ["scripts/mutants.py", "--tier", "whole", "--searches", "--longest", "600", "--only", *left.values()]
    survivors = left.keys() & {found[3] for found in SURVIVOR.finditer(call("whole", *words))}
    return total, total - len(survivors), total - len(left)


def count_faults(sample: int, seed: int) -> tuple[int, int, int]:
    found = [
        way
        for way, _ in NOTICED.findall(call("whole", "scripts/faults.py", "--sample", str(sample), "--seed", str(seed)))
    ]
    seen = [way for way in found if way != "NOTHING"]
    return len(found), len(seen), len(seen) - seen.count(SECOND_TIER)


def count_planted() -> tuple[int, int, int]:
    whole, first = (
        int(
            re.findall(
                r"^(\d+)(?:/\d+)? tests? collected",
                call(tier, "-m", "pytest", "--co", "-q", "tests/sim", "-k", "planted"),
                re.MULTILINE,
            )[0]
        )
        for tier in ("whole", "first")
    )
    return whole, whole, first


def print_table(rows: Sequence[tuple[str, tuple[int, int, int]]]) -> bool:
    print("| planted | how many | everything sees | the first tier sees | of it |\n|---|---|---|---|---|")
    for name, (planted, whole, first) in rows:
        print(f"| {name} | {planted} | {whole} | {first} | {first / (whole or 1):.1%} |")
    return all(first >= LEAST * whole for _, (_, whole, first) in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sample", type=int, default=60, metavar="N", help="mutants, and faults of the Rust rules (60)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the samples (0)")
    given = parser.parse_args()
    rows = [
        ("mutants of the core", count_mutants(given.sample, given.seed)),
        ("faults of the Rust rules", count_faults(given.sample, given.seed)),
        ("errors in whole runs", count_planted()),
    ]
    return 0 if print_table(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
