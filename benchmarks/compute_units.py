"""The compute units of the rules on a chain: every kind of message and every phase of a tick, each in the state that
costs most, with 2, 32 and 256 members.

The figures are those of the test program `psyche_replay`: the rules alone. The coordinator adds a few thousand units
for its accounts. The script ends with code 1 if an event costs more than its limit. --quick leaves the 256 members out.
"""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from _table import build_parser, finish, print_table
from differential.backends import ProgramBackend, get_replay_path
from differential.dear_events import list_dear_events, measure_units

SIZES = (2, 32, 256)


def read_args() -> Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--program", type=Path, metavar="FILE", help="another build of psyche_replay.so")
    args = parser.parse_args()
    if args.program is not None and not args.program.is_file():
        parser.error(f"--program {args.program}: there is no such file; build one with scripts/build-programs --out")
    return args


def main() -> None:
    args = read_args()
    backend = ProgramBackend(args.program or get_replay_path())
    sizes = SIZES[:-1] if args.quick else SIZES
    units: dict[str, dict[int, int]] = {}
    limits: dict[str, int] = {}
    for members in sizes:
        for event in list_dear_events(members):
            units.setdefault(event.name, {})[members] = measure_units(backend, event)
            limits[event.name] = event.limit
    rows = [(name, *(found.get(size, "") for size in sizes), limits[name]) for name, found in units.items()]
    print_table("Compute units by the number of members", ["event", *map(str, sizes), "limit"], rows)
    finish(args, units)
    over = [name for name, found in units.items() if max(found.values()) > limits[name]]
    if over:
        sys.exit(f"above the limit: {', '.join(over)}")


if __name__ == "__main__":
    main()
