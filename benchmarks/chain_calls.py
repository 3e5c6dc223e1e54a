"""How often members of a run on a chain call their RPC endpoint, counted in each of them.

    python benchmarks/chain_calls.py [--json FILE] [--quick]

Whole clients with trainers that take no time, so that rounds are as short as the chain lets them be: the most calls in
a second. Subscriptions are on another connection, and are not counted. `busiest` is the most calls of one member within
ten seconds, its start and its join included.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import trio
from _table import build_parser, finish, print_table
from kits.chain.counted import CountedMember, open_counted, play

from psyche.testing.builders import build_config

CASES: Final = ((3, 400), (3, 100), (8, 400))  # members, ms of a slot


async def measure(members: int, slot_ms: int, rounds: int) -> list[CountedMember]:
    """Play an epoch of so many rounds."""
    config = build_config(
        init_min_clients=members, min_clients=members, rounds_per_epoch=rounds, total_steps=rounds + 1,
        entropy_delay=4, warmup_time=60, max_round_train_time=60, cooldown_time=1, global_batch_size_start=members,
        global_batch_size_end=members,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        async with open_counted(members, config, Path(folder), slot_ms=slot_ms) as opened:
            await play(opened)
            return opened


def describe(found: list[CountedMember]) -> dict[str, float]:
    """The figures of one case."""
    seconds = [(one.rounds[-1] - one.rounds[0]) / (len(one.rounds) - 1) for one in found]
    return {
        "round_s": statistics.median(seconds),
        "calls_per_round": statistics.mean(one.count_per_round() for one in found),
        "busiest": float(max(one.count_busiest() for one in found)),
    }


async def measure_all(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure every case."""
    rounds = 8 if args.quick else 24
    return {f"{n} members, slots of {ms} ms": describe(await measure(n, ms, rounds)) for n, ms in CASES}


def main() -> None:
    """Measure and print."""
    args = build_parser(__doc__).parse_args()
    result = trio.run(measure_all, args)
    rows = [(name, *found.values()) for name, found in result.items()]
    print_table("Calls of one member", ["run", "round, s", "calls a round", "most in 10 s"], rows)
    finish(args, result)


if __name__ == "__main__":
    main()
