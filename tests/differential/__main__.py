"""Plays random events in core and in the Rust rules until they differ; prints what came about, or the shortest trace.

cargo build --profile host -p psyche-replay --manifest-path programs/Cargo.toml
PYTHONPATH=tests python -m differential --library programs/target/host/libpsyche_replay.so --events 1000000
"""

import argparse
import secrets
import sys
import time
from pathlib import Path

from differential.backends import LibraryBackend, ProgramBackend
from differential.facts import NEEDED
from differential.pair import Difference
from differential.players import play_events


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="differential", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--library", type=Path, help="the rules as a library of this machine (default: the program)")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    args = parser.parse_args()
    backend = LibraryBackend(args.library) if args.library else ProgramBackend()
    began = time.monotonic()
    print(f"seed {args.seed}", flush=True)
    try:
        tally = play_events(args.seed, args.events, backend)
    except Difference as difference:
        print(difference)
        return 1
    for name, count in sorted(tally.facts.items()):
        print(f"{count:9,}  {name}")
    print(f"did not come about: {', '.join(sorted(NEEDED - tally.facts.keys())) or 'nothing'}")
    print(
        f"{tally.events:,} events, all equal, in {time.monotonic() - began:.0f} s; {len(tally.seen)} kinds of answers"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
