"""Plays the named scenarios at full size and prints whether each reaches its target figure.

python scripts/named_scenarios.py  all: 16 clients, 100 rounds, seed 1
python scripts/named_scenarios.py --names F6 F9 --clients 8 --rounds 40 --seeds 1 2 3
python scripts/named_scenarios.py --names F24 --rounds 960 --hours 24  a day, with this process's memory by the hour
python scripts/named_scenarios.py --list

Scenarios that are more telling at another size run at that size (--list shows it), unless an option sets it.
The exit code is 1 if a scenario misses its figure; the reason, and how to replay it, go to stderr.
"""

import argparse
import dataclasses
import itertools
import logging
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # the tests have them too

import trio
from scenarios.base import Size
from scenarios.named import SCENARIOS, get_command, play_named
from scenarios.trend import compute_trends
from soak import LARGEST_SEED, MOST_PROCESSES, MOST_ROUNDS, bounded, run_for_reader

from psyche.core.state.limits import MAX_CLIENTS
from psyche.sim.scenarios.report import describe_replay, find_cause, get_report
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.world import Outcome, World

HOUR_S = 3_600.0
MOST_HOURS = 10_000


@dataclass(frozen=True)
class Played:
    """The result of one scenario."""

    name: str
    size: Size
    seen: str
    holds: bool
    seconds: float
    memory_mib: int
    failure: str = ""

    def describe(self) -> str:
        """One line of a Markdown table."""
        named, size = SCENARIOS[self.name], self.size
        how = f"{size.clients} x {size.rounds}, seed {size.seed}"
        holds = "yes" if self.holds else "**no**"
        cells = (self.name, named.title, how, named.expected, self.seen, holds, f"{self.seconds:.0f} s")
        return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} | {self.memory_mib} MiB |"


class Meter:
    """The memory of this process, by hours of simulated time."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, dict[str, int]]] = []

    def watch(self, world: World) -> None:
        """Measure at every logged event."""

        def listen(_node: str, _event: object) -> None:
            now = trio.current_time()
            if now >= HOUR_S * len(self.samples):
                self.samples.append((now, {"memory": get_memory_bytes()}))

        world.trace.listeners.append(listen)

    def describe(self) -> str:
        """The trend, if there are enough hours."""
        trends = compute_trends(self.samples)
        return "".join(f"; memory {t.slope:+.2%} ± {2 * t.error:.2%} an hour" for t in trends)


def get_memory_bytes() -> int:
    """The present memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def play(name: str, size: Size) -> Played:
    meter, started, failure = Meter(), time.monotonic(), ""
    try:
        outcome, judgement = play_named(name, size, prepare=meter.watch if size.hours else lambda _world: None)
        seen, holds = judgement.seen + meter.describe(), judgement.holds
        if not holds:
            failure = outcome.describe() if outcome.violations else describe_miss(outcome)
    except Exception as error:  # noqa: BLE001 - any exception of a simulation is a finding
        seen, holds = f"ended with {find_cause(error)!r}", False
        failure = get_report(error, Scenario(seed=size.seed, name=name).with_origin(get_command(name, size)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024
    return Played(name, size, seen, holds, time.monotonic() - started, memory, failure)


def describe_miss(outcome: Outcome) -> str:
    """Describe a scenario without violations that misses its figure."""
    return "\n".join([f"{outcome.scenario.name} does not hold", *describe_replay(outcome.scenario)])


def get_size(name: str, given: argparse.Namespace, seed: int) -> Size:
    names = ("clients", "rounds", "hours", "points")
    changes: dict[str, Any] = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    return dataclasses.replace(SCENARIOS[name].full, seed=seed, **changes)


def play_all(work: Sequence[tuple[str, Size]], processes: int) -> bool:
    names, sizes = zip(*work, strict=True)
    with ProcessPoolExecutor(
        processes, max_tasks_per_child=1, initializer=logging.disable
    ) as pool:  # a new process for each, so that its memory is measured alone
        found = list[bool]()
        for played in pool.map(play, names, sizes):
            print(played.describe(), flush=True)
            if played.failure:
                print(played.failure, file=sys.stderr, flush=True)
            found.append(played.holds)
    return all(found)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", choices=sorted(SCENARIOS), default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--clients", type=bounded(3, MAX_CLIENTS))
    parser.add_argument("--rounds", type=bounded(1, MOST_ROUNDS))
    parser.add_argument("--hours", type=bounded(0, MOST_HOURS), help="of simulated time, for scenarios about time")
    parser.add_argument(
        "--points", type=bounded(0, MOST_ROUNDS), help="of what a scenario enumerates, only so many; 0: all"
    )
    parser.add_argument("--seeds", type=bounded(0, LARGEST_SEED), nargs="+", default=[1])
    parser.add_argument("--processes", type=bounded(1, MOST_PROCESSES), default=1)
    parser.add_argument("--list", action="store_true", help="the scenarios and their sizes")
    return parser


def main() -> int:
    given = build_parser().parse_args()
    work = [(name, get_size(name, given, seed)) for name, seed in itertools.product(given.names, given.seeds)]
    if given.list:
        for name, size in work:
            print(f"{name:4} {size.clients:>4} clients {size.rounds:>4} rounds  {SCENARIOS[name].title}")
        return 0
    print("| name | what happens | clients x rounds | expected | seen | holds | took | memory |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    return 0 if play_all(work, given.processes) else 1


if __name__ == "__main__":
    sys.exit(run_for_reader(main))
