"""What a round costs beyond training: dummy trainers of a fixed pace, the rest is real.

    python benchmarks/round_overhead.py [--json FILE] [--quick] [--run-dir FOLDER]

On two transports: simulated links in memory, with all clients in this process, and libp2p over
loopback, with each client and the server in a process of its own. `overhead` is the time from one
round's start to the next less the trainers' fixed time; `CPU` is that of all clients, divided by
rounds and clients, with connecting to each other in it. Where the CPU bounds a round, clients on
machines of their own wait less; over libp2p they share this machine's cores.
With `--run-dir` only the event logs of a real run are read (`bash
scripts/demo` says where they are): the share of a round spent in forward and backward, and the
seconds from a client's start to its place in the run.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import trio
from _process_swarm import run_processes
from _table import build_parser, finish, print_table

from psyche.core.state.state import Config
from psyche.telemetry import types
from psyche.telemetry.events import Entry, read_entries
from psyche.testing.builders import build_config
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.testing.swarm import open_swarm

TRAIN_S = 0.2
LIMIT_S = 300.0
SKIPPED = 3  # the first rounds fill the pipeline


def get_round_times(told: Iterable[Entry]) -> list[float]:
    """Seconds from round to round within each epoch, drains left out."""
    starts: dict[int, list[float]] = {}
    for t, _, event in told:
        if isinstance(event, types.RoundStarted) and not event.drain:
            starts.setdefault(event.epoch, []).append(t)
    pairs = (zip(times[SKIPPED:], times[SKIPPED + 1 :], strict=False) for times in starts.values())
    return [b - a for epoch in pairs for a, b in epoch]


def measure(clients: int, over: str, rounds: int) -> dict[str, float]:
    """One swarm: median overhead in ms and CPU in ms per round and client."""
    config = build_config(
        init_min_clients=clients, min_clients=clients, total_steps=rounds + 1, rounds_per_epoch=rounds,
        global_batch_size_start=2 * clients, global_batch_size_end=2 * clients, max_round_train_time=60,
        warmup_time=120, cooldown_time=1, waiting_for_members_extra_time=2,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if over == "libp2p":
            cpu_s, logs = play_processes(clients, Path(folder), config)
        else:
            cpu_s, logs = trio.run(play_here, clients, Path(folder), config)
    round_s = statistics.median(t for events in logs for t in get_round_times(events))
    return {
        "round_ms": round_s * 1e3,
        "overhead_ms": (round_s - TRAIN_S) * 1e3,
        "cpu_ms": cpu_s / rounds / clients * 1e3,
    }


def play_processes(clients: int, folder: Path, config: Config) -> tuple[float, list[list[Entry]]]:
    """CPU seconds of all clients, and their events."""
    members = run_processes(
        clients, folder, config=config, make_trainer=lambda: DummyTrainer(train_s=TRAIN_S), limit_s=LIMIT_S
    )
    check({member.digest for member in members})
    return sum(member.cpu_s for member in members), [member.events for member in members]


async def play_here(clients: int, folder: Path, config: Config) -> tuple[float, list[list[Entry]]]:
    """The same with all clients on simulated links."""
    async with open_swarm(
        clients, folder, config=config, make_trainer=lambda _: DummyTrainer(train_s=TRAIN_S)
    ) as swarm:
        started = time.process_time()
        await swarm.run()
        cpu_s = time.process_time() - started
        check({member.digest for member in swarm.members} | {swarm.coordinator.state.certified.digest})
        return cpu_s, [member.events.drain() for member in swarm.members]


def check(digests: set[bytes | None]) -> None:
    """A benchmark of a run that went wrong measures nothing."""
    assert len(digests) == 1, "digests differ"
    assert digests != {None}, "nobody holds weights"


def read_run(folder: Path) -> dict[str, float]:
    """Share of rounds spent in forward and backward, and seconds from start to joined, of a real run's clients."""
    computing, rounds, joined = 0.0, 0.0, []
    for path in sorted(folder.rglob("events.jsonl")):
        told = list(read_entries(path))
        times = get_round_times(told)
        computing += sum(e.compute_seconds for _, _, e in told if isinstance(e, types.Trained)) / max(1, len(times))
        rounds += sum(times) / max(1, len(times))
        starts = [t for t, _, e in told if isinstance(e, types.ClientStarted)]
        joins = [t for t, _, e in told if isinstance(e, types.Joined)]
        joined += [min((j for j in joins if j >= s), default=s) - s for s in starts[:1] if joins]
    return {"compute_share": computing / rounds if rounds else 0.0, "start_to_joined_s": statistics.median(joined)}


def measure_swarms(quick: bool) -> dict[str, object]:
    """The table of overheads."""
    rounds = 8 if quick else 24
    result: dict[str, object] = {}
    rows: list[tuple[object, ...]] = []
    for over in ("memory", "libp2p"):
        for clients in (3, 8) if quick else (3, 8, 16):
            print(f"{clients} clients over {over}, {rounds} rounds ...", file=sys.stderr)
            seen = measure(clients, over, rounds)
            result[f"{over}_{clients}"] = seen
            rows.append((over, clients, seen["round_ms"], seen["overhead_ms"], seen["cpu_ms"]))
    title = f"Rounds of {TRAIN_S * 1e3:.0f} ms of training, {rounds} of them"
    print_table(title, ("network", "clients", "round ms", "overhead ms", "CPU ms / round / client"), rows)
    return result


def show_run(folder: Path) -> dict[str, object]:
    """The table of a real run."""
    seen = read_run(folder)
    rows = [("forward and backward, share of a round", seen["compute_share"])]
    rows.append(("start to joined, s", seen["start_to_joined_s"]))
    print_table(f"A real run: {folder}", ("what", "value"), rows)
    return {"run": seen}


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--run-dir", type=Path, metavar="FOLDER", help="read a real run's event logs instead")
    args = parser.parse_args()
    finish(args, measure_swarms(args.quick) if args.run_dir is None else show_run(args.run_dir))


if __name__ == "__main__":
    main()
