"""Plays simulated runs from fresh seeds until time is up, or replays one seed or plan; reports violations.

python scripts/soak.py --minutes 60                  two processes, fresh seeds
python scripts/soak.py --from 0 --rounds 10000       seeds 0, 1, 2 ... until that many rounds are done
python scripts/soak.py --backend solana --minutes 10     on a chain instead of a server
python scripts/soak.py --seed 7                      one seed again, with its last events
python scripts/soak.py --seed 7 --shrink             and the smallest plan that still fails
python scripts/soak.py --plan tests/sim/corpus/name.toml
"""

import argparse
import itertools
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from psyche.cli.helpers.outputs import drop_stdout
from psyche.errors import ConfigError
from psyche.forecast.inputs import load_scenario
from psyche.sim.scenarios.plan import write_scenario
from psyche.sim.scenarios.report import get_report
from psyche.sim.scenarios.scenario import BACKENDS, CHAIN, TCP, Scenario
from psyche.sim.scenarios.swarm import draw_chain_scenario, draw_scenario
from psyche.sim.shrink import fails_alike, shrink
from psyche.sim.world import Outcome, simulate

LARGEST_SEED = 1 << 32
MOST_ROUNDS = 10_000_000
MOST_PROCESSES = 256
BOTH = "both"
CHAIN_EVERY_SEEDS = 32
AHEAD = 4  # seeds queued for each process
PROGRESS_S = 15.0


@dataclass(frozen=True)
class Played:
    """The result of a seed that was played."""

    seed: int
    rounds: int
    wall_s: float
    failure: str


def bounded(least: int, most: int) -> Callable[[str], int]:
    """A parser of whole numbers within these bounds, for argparse."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return number

    return parse


def draw(seed: int, backend: str) -> Scenario:
    """The scenario of a seed. With both backends, few seeds play on a chain: a round takes longer there."""
    is_on_chain = backend == CHAIN or (backend == BOTH and seed % CHAIN_EVERY_SEEDS == 0)
    return draw_chain_scenario(seed) if is_on_chain else draw_scenario(seed)


def play_seed(seed: int, backend: str = TCP) -> Played:
    try:
        outcome = simulate(draw(seed, backend), keep_lines=False)
    except Exception as error:  # noqa: BLE001 - any exception of a simulation is a finding
        again = f"python scripts/soak.py --backend {backend} --seed {seed}"
        drawn = Scenario(seed=seed).with_origin(again)  # if it could not be drawn
        return Played(seed, 0, 0.0, get_report(error, drawn))
    return Played(seed, outcome.rounds, outcome.wall_s, outcome.describe() if outcome.violations else "")


@dataclass
class Counter:
    """Counts what has been played since `started`; prints failures as they come, and the progress now and then."""

    started: float
    rounds: int = 0
    seeds: int = 0
    failures: int = 0
    told: float = 0.0

    def add(self, played: Played) -> None:
        self.rounds, self.seeds = self.rounds + played.rounds, self.seeds + 1
        if played.failure:
            self.failures += 1
            print(played.failure, flush=True)

    def tell(self, now: float) -> None:
        if now - max(self.told, self.started) > PROGRESS_S:
            self.told = now
            print(self.describe(now), flush=True)

    def describe(self, now: float) -> str:
        wall_s = now - self.started
        return f"{self.rounds} rounds of {self.seeds} seeds in {wall_s:.0f} s, {self.failures} seeds with violations"


def play_all(seeds: Iterator[int], backend: str, minutes: float, rounds: int, processes: int) -> int:
    counter = Counter(time.monotonic())
    with ProcessPoolExecutor(processes, initializer=logging.disable) as pool:
        running = [pool.submit(play_seed, next(seeds), backend) for _ in range(processes * AHEAD)]
        while running:
            try:
                counter.add(running.pop(0).result())
                counter.tell(time.monotonic())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # nobody would see the results of queued seeds
                raise
            over = counter.rounds >= rounds if rounds else time.monotonic() - counter.started > 60 * minutes
            if not over:
                running.append(pool.submit(play_seed, next(seeds), backend))
    print(counter.describe(time.monotonic()), flush=True)
    return counter.failures


def play_one(scenario: Scenario, *, is_shrunk: bool, events: Path | None) -> int:
    write_events(events, [])  # learn early whether the file can be written
    try:
        outcome = simulate(scenario)
    except Exception as error:  # noqa: BLE001 - any exception of a simulation is a finding
        print(get_report(error, scenario), flush=True)
        failure: Outcome | Exception | None = error
    else:
        print(outcome.describe(), flush=True)
        write_events(events, outcome.lines)
        failure = outcome if outcome.violations else None
    if failure is not None and is_shrunk:
        print_smallest(scenario, failure)
    return int(failure is not None)


def write_events(path: Path | None, lines: list[bytes]) -> None:
    """Write the event log, if a path is given."""
    if path is not None:
        try:
            path.write_bytes(b"".join(lines))
        except OSError as error:
            raise ConfigError(f"--events {path}: cannot be written: {error.strerror}") from error


def print_smallest(scenario: Scenario, failure: Outcome | Exception) -> None:
    print("\nthe smallest plan that still fails:\n", flush=True)
    print(write_scenario(shrink(scenario, fails_alike(failure))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to play fresh seeds")
    parser.add_argument(
        "--rounds", type=bounded(0, MOST_ROUNDS), default=0, help="play until so many rounds are done instead"
    )
    parser.add_argument(
        "--from", dest="first", type=bounded(0, LARGEST_SEED), help="the first seed; a random one if not given"
    )
    parser.add_argument("--processes", type=bounded(1, MOST_PROCESSES), default=os.cpu_count() or 1)
    parser.add_argument(
        "--backend",
        choices=(*BACKENDS, BOTH),
        default=TCP,
        help="what keeps the record; both: few of the seeds on a chain",
    )
    parser.add_argument("--seed", type=bounded(0, LARGEST_SEED), help="play this seed alone")
    parser.add_argument("--plan", type=Path, help="play this plan alone")
    parser.add_argument("--shrink", action="store_true", help="make what fails as small as it goes")
    parser.add_argument("--events", type=Path, help="write the event log there")
    given = parser.parse_args()
    try:
        return play(given)
    except ConfigError as error:
        parser.exit(2, f"soak.py: {error}\n")


def play(given: argparse.Namespace) -> int:
    if given.plan is not None:
        return play_one(load_scenario(given.plan), is_shrunk=given.shrink, events=given.events)
    if given.seed is not None:
        return play_one(draw(given.seed, given.backend), is_shrunk=given.shrink, events=given.events)
    first = secrets.randbelow(LARGEST_SEED) if given.first is None else given.first
    print(f"seeds from {first} on", flush=True)
    return min(1, play_all(itertools.count(first), given.backend, given.minutes, given.rounds, given.processes))


def run_for_reader(main: Callable[[], int]) -> int:
    """Run a script; end quietly if the reader of its output stops early, as `head` does."""
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        return 1


if __name__ == "__main__":
    sys.exit(run_for_reader(main))
