"""The command: search worlds, show how far it is, tell what was found."""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Final

from model_checker.invariants import get_names
from model_checker.search import Outcome, Search, Settings
from model_checker.worlds import World, build_worlds
from psyche.telemetry.console import Console

EVERY_S: Final = 0.2
PLAIN_EVERY_S: Final = 20.0


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m model_checker", description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[3], choices=[2, 3, 4], help="participants (3)")
    names = list(build_worlds(3, overlap=True))
    parser.add_argument("--world", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--overlap", choices=["on", "off", "both"], default="both", help="which timeline (both)")
    parser.add_argument("--states", type=int, default=0, metavar="N", help="stop each world after N states (all)")
    parser.add_argument("--sample", type=int, default=1, metavar="N",
                        help="check bytes, refusals and healing in one of N states only (1)")  # fmt: skip
    parser.add_argument("--recheck", type=int, default=50, metavar="N",
                        help="compare futures of states of one form for one of N forms; 0 for none (50)")  # fmt: skip
    return parser


class Progress:
    """Says now and then how far a search is: `liar, 3 members: depth 21, 40,112 states, 3,050 to go through`."""

    def __init__(self, world: World, console: Console) -> None:
        self._title, self._console, self._shown = format_title(world), console, time.monotonic()

    def __call__(self, outcome: Outcome, waiting: int) -> None:
        now = time.monotonic()
        if now - self._shown < (EVERY_S if self._console.live else PLAIN_EVERY_S):
            return
        self._shown = now
        text = f"{self._title}: depth {outcome.depth}, {outcome.states:,} states, {waiting:,} to go through"
        (self._console.set_status if self._console.live else self._console.print)(text)


def format_title(world: World) -> str:
    """Name, members and timeline."""
    return f"{world.name}, {world.members} members, overlap {'on' if world.config['overlap'] else 'off'}"


def format_outcome(outcome: Outcome) -> str:
    """One line, and below it what was found."""
    ends = ", ".join(f"{count:,} {name}" for name, count in sorted(outcome.ends.items())) or "none"
    how = "complete" if outcome.is_complete else "VIOLATED" if outcome.violation else "cut off"
    line = (
        f"{format_title(outcome.world):<44} {how}: {outcome.states:,} states, {outcome.steps:,} steps, "
        f"{outcome.refused:,} refused, depth {outcome.depth}, ends: {ends}; {outcome.compared:,} futures compared, "
        f"{outcome.healed:,} healed; {outcome.seconds:.1f} s"
    )
    return line if outcome.violation is None else f"{line}\n{outcome.violation}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Search; 1 if an invariant broke."""
    options = build_parser().parse_args(arguments)
    every = options.sample
    settings = Settings(options.states, every, every, every, options.recheck)
    console = Console()
    broken = 0
    timelines = {"on": [True], "off": [False], "both": [True, False]}[options.overlap]
    worlds = [
        build_worlds(members, overlap=overlap)[name]
        for members in options.members
        for name in options.world
        for overlap in timelines
    ]
    for world in worlds:
        outcome = Search(world, settings, Progress(world, console)).run()
        console.clear_status()
        sys.stdout.write(format_outcome(outcome) + "\n")
        sys.stdout.flush()
        broken += outcome.violation is not None
    sys.stdout.write("checked in every state and over every step:\n")
    sys.stdout.write("".join(f"  {name}\n" for name in get_names()))
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stdout.write("\nStopped.\n")
        sys.exit(130)
