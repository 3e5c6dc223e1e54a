"""Finds names that nothing uses. A name that only tests use is dead as well; use by the tests' kits counts.

Names with uses that the check cannot see are in `scripts/used_unseen.toml`, each with the reason.
"""

import sys
import tomllib
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).resolve().parent.parent
USERS = ["psyche", "scripts", "benchmarks", "tests"]
TESTS = ["*/test_*.py", "*/conftest.py"]
JUDGED = ("psyche", "scripts", "benchmarks")
KIT = Path("psyche/testing")  # test code, ours and other people's
ALLOWED = ROOT / "scripts" / "used_unseen.toml"


def read_allowed() -> dict[str, str]:
    """Name -> why it is not dead."""
    tables = tomllib.loads(ALLOWED.read_text())["used"]
    return {name: table["by"] for table in tables for name in table["names"]}


def find_unused() -> list[tuple[str, str]]:
    """(name, location) of everything that nothing uses."""
    vulture = Vulture(ignore_decorators=["@rpc_method"])  # which puts the function into a table
    vulture.scavenge([ROOT / folder for folder in USERS], exclude=TESTS)
    found: list[tuple[str, str]] = []
    for item in vulture.get_unused_code():
        path = Path(item.filename).relative_to(ROOT)
        if path.parts[0] in JUDGED and not path.is_relative_to(KIT):
            found.append((item.name, f"{path}:{item.first_lineno}: {item.typ} {item.name}"))
    return found


def main() -> int:
    allowed, unused = read_allowed(), find_unused()
    dead = [place for name, place in unused if name not in allowed]
    stale = sorted(set(allowed) - {name for name, _ in unused})
    for place in dead:
        print(f"{place}: nothing uses it; delete it, or say in {ALLOWED.name} what does")
    for name in stale:
        print(f"{ALLOWED.name}: {name} is used visibly, or is gone; it may go from this list")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
