"""What measuring known tasks costs the training that it waits for: the demo with and without it.

    python benchmarks/eval_cost.py [--json FILE] [--quick] [--clients N] [--pairs N]

- Rounds: the median time from a round's start to the next one's, of runs of N members, every other one with tasks.
- Digests: two trainers train and apply the same batches, and one of them is always scoring when a batch comes. Whole
  runs cannot be compared: their servers draw who trains what.
- Held up: how much longer a batch takes, as its client sees it, than the trainer needs for it; in both trainers.

Use it on a machine with a free core for each member and one more: on a busy one rounds wait for the machine.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import trio
from _table import build_parser, finish, print_table
from kits.storage.tasks import write_data

from psyche.config.load import load_run
from psyche.config.rewrite import KeyPath, Value, set_values
from psyche.modeling.model import init_model
from psyche.modeling.trainer.process import TrainerProcess
from psyche.telemetry import types
from psyche.telemetry.console import Console
from psyche.telemetry.events import read_event, read_lines
from psyche.testnet.settings import Layout, TestnetSettings
from psyche.testnet.supervisor import run_testnet
from psyche.wire.crypto import compute_state_digest
from psyche.wire.trainer import ApplyRequest, LoadRequest, ScoreRequest, ScoreRow, TrainRequest

DEMO: Final = Path(__file__).resolve().parents[1] / "config" / "demo"
SKIPPED: Final = 2  # the first rounds of an epoch fill the pipeline
SAMPLES: Final = 8  # of a batch of one member
DOCUMENTS: Final = 640
ROWS: Final = (ScoreRow(context=tuple(range(1, 97)), choices=(tuple(range(1, 17)), tuple(range(17, 33)))),) * 1_000


class Played(NamedTuple):
    """A run of the demo: seconds of its rounds, and blocks of documents."""

    rounds: list[float]
    blocks: int


class Trained(NamedTuple):
    """What a trainer did: seconds that each batch waited for it, and the weights after each."""

    held: list[float]
    roots: list[bytes]


def play(folder: Path, clients: int, rounds: int, *, with_tasks: bool) -> Played:
    """Run the demo, shorter, and read its members' logs."""
    config = folder / "config"
    config.mkdir(parents=True)
    values: dict[KeyPath, Value] = {("config", "rounds_per_epoch"): rounds, ("config", "total_steps"): 2 * rounds + 1}
    values |= {("config", name): SAMPLES * clients for name in ("global_batch_size_start", "global_batch_size_end")}
    values[("config", "min_clients")] = 1
    for path in DEMO.iterdir():
        (config / path.name).write_bytes(path.read_bytes())
    (config / "run.toml").write_text(set_values((DEMO / "run.toml").read_text(), values))
    tasks = write_data(folder / "tasks", DOCUMENTS, words=4)
    options = {"EVAL_TASKS": "piqa", "EVAL_TASK_DATA": str(tasks), "PROMPT_TASK": "true"}
    os.environ |= options if with_tasks else {}
    settings = TestnetSettings(
        num_clients=clients, config_path=config, run_dir=folder / "run", cache_dir=folder.parent / "cache",
        sample=False, wait_for_all=True, threads=1, device="cpu",
    )  # fmt: skip
    try:
        assert trio.run(run_testnet, settings, Console(sys.stderr)) == 0, "a run that went wrong measures nothing"
    finally:
        for name in options:
            os.environ.pop(name, None)
    layout = Layout(folder / "run", folder / "run" / "events")
    return read_events([layout.events_of(f"client-{number}") for number in range(1, clients + 1)])


def read_events(logs: list[Path]) -> Played:
    found = Played([], 0)
    for log in logs:
        last: float | None = None
        for line in read_lines(log):
            match read_event(line):
                case types.RoundStarted(height=height, drain=drain):
                    if last is not None and height > SKIPPED and not drain:
                        found.rounds.append(line["t"] - last)
                    last = None if drain else line["t"]
                case types.EvalScored():
                    found = found._replace(blocks=found.blocks + 1)
                case _:
                    pass
    return found


def make_batches(tokens: int) -> Iterator[TrainRequest]:
    random = Random(0)
    for step in range(1, 1 << 30):
        rows = b"".join(random.randrange(256).to_bytes(4, "little") for _ in range(SAMPLES * tokens))
        yield TrainRequest(
            epoch=0, height=step, step=step, lr=1e-4, lookahead_lr=0.0, tokens=rows, samples=SAMPLES,
            sequence_length=tokens, decided=(), in_flight=False,
        )  # fmt: skip


async def train(folder: Path, count: int, *, is_scoring: bool) -> Trained:
    """Train and apply `count` batches, each after a pause; the first ones make what is kept, and are not timed."""
    model, found, random = load_run(DEMO).model, Trained([], []), Random(1)
    trainer = TrainerProcess(threads=1)
    try:
        loaded = await trainer.load(
            LoadRequest(
                path=str(folder), is_snapshot=False, model=model, micro_batch_size=SAMPLES, device="cpu", scores=True
            )
        )  # fmt: skip
        asked = ScoreRequest(rows=ROWS, digest=compute_state_digest(loaded.chain, loaded.weight_root))
        for batch in islice(make_batches(model.max_seq_len), count + SKIPPED):
            async with trio.open_nursery() as nursery:
                if is_scoring:
                    nursery.start_soon(trainer.score, asked)
                await trio.sleep(random.uniform(0.1, 0.3))
                started = time.perf_counter()
                reply = await trainer.train(batch)
                found.held.append(time.perf_counter() - started - reply.seconds)
            applied = await trainer.apply(
                ApplyRequest(
                    height=batch.height, lr=batch.lr, payloads=(reply.payload,), run_update=True, full_digest=True,
                    random_seed=0,
                )
            )  # fmt: skip
            found.roots.append(applied.weight_part)
        return found._replace(held=found.held[SKIPPED:])
    finally:
        await trainer.stop()


def main() -> None:
    """Measure, and print the figures."""
    parser = build_parser(__doc__)
    parser.add_argument("--clients", type=int, default=3, help="members of the runs whose rounds are timed")
    parser.add_argument("--pairs", type=int, default=3, help="so many runs with tasks, and as many without")
    args = parser.parse_args()
    rounds, pairs, count = (10, 1, 20) if args.quick else (80, args.pairs, 200)
    timed: dict[bool, list[Played]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(2 * pairs):
            tasks = bool(number % 2)
            timed[tasks].append(play(folder / f"run-{number}", args.clients, rounds, with_tasks=tasks))
        init_model(DEMO / "model.json", folder / "model", 0)
        idle, scoring = (trio.run(partial(train, folder / "model", count, is_scoring=one)) for one in (False, True))
    without, beside = (statistics.median(one for run in timed[tasks] for one in run.rounds) for tasks in (False, True))
    figures: dict[str, float] = {
        "round without tasks, s": without, "round with tasks, s": beside, "longer, %": 100 * (beside / without - 1),
        "blocks of 32 documents done": sum(run.blocks for run in timed[True]),
        "batches": len(idle.roots),
        "with equal digests": sum(one == other for one, other in zip(idle.roots, scoring.roots, strict=True)),
        "held up by scoring, at most, ms": 1e3 * max(scoring.held),
        "in the median, ms": 1e3 * statistics.median(scoring.held),
        "held up by an idle trainer, ms": 1e3 * max(idle.held),
    }  # fmt: skip
    print_table("What measuring tasks costs", ["figure", "value"], [[key, value] for key, value in figures.items()])
    finish(args, figures)


if __name__ == "__main__":
    main()
