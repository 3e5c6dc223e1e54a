"""What measuring known tasks costs the training that it waits for: the demo with and without it.

    python benchmarks/eval_cost.py [--json FILE] [--quick] [--clients N] [--runs N]

- Rounds: the median time from a round's start to the next one's, of runs whose members have tasks, and do them in
  every other ten rounds.
- Digests: two trainers train and apply the same batches by turns, and one of them is always scoring when a batch comes.
- Held up: how much longer a batch takes, as its client sees it, than the trainer needs for it; in both trainers.

Use it on a machine with a free core for each member and one more: on a busy one rounds wait for the machine. A run
takes two minutes there, the batches one.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import trio
from _table import build_parser, finish, print_table
from kits.storage.tasks import make_row, to_parquet

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
SPAN: Final = 10  # so many rounds without tasks, then as many with; of each the first one is not counted
SAMPLES: Final = 8  # of a batch of one member
DOCUMENTS: Final = 20_000  # more than a run does
ROWS: Final = (ScoreRow(context=tuple(range(1, 97)), choices=(tuple(range(1, 17)), tuple(range(17, 33)))),) * 1_000
# At the start of each client; whatever else it does is not changed.
TURNS: Final = f"""
import sys
if "client" in sys.orig_argv:
    from psyche.client.runtime.evals.evaluating import Evaluating
    find = Evaluating._find_worker
    Evaluating._find_worker = lambda self: find(self) if self._x.state.current.height // {SPAN} % 2 else None
"""


class Trained(NamedTuple):
    """What a trainer did: seconds that each batch waited for it, and the weights after each."""

    held: list[float]
    roots: list[bytes]


class Rounds(NamedTuple):
    """Seconds of rounds without tasks and of those with, and the blocks of documents done."""

    without: list[float]
    beside: list[float]
    blocks: list[int]


def play(folder: Path, clients: int, rounds: int, found: Rounds) -> None:
    """Run the demo, one epoch of it, and read its members' logs."""
    config, tasks = folder / "config", folder / "tasks" / "ybisk" / "piqa" / "plain_text" / "validation"
    config.mkdir(parents=True)
    values: dict[KeyPath, Value] = {("config", "rounds_per_epoch"): rounds, ("config", "total_steps"): rounds + 1}
    values |= {("config", name): SAMPLES * clients for name in ("global_batch_size_start", "global_batch_size_end")}
    values[("config", "min_clients")] = 1
    for path in DEMO.iterdir():
        (config / path.name).write_bytes(path.read_bytes())
    (config / "run.toml").write_text(set_values((DEMO / "run.toml").read_text(), values))
    tasks.mkdir(parents=True)
    rows = [make_row("piqa", number, Random(number), 4) for number in range(DOCUMENTS)]
    (tasks / "0000.parquet").write_bytes(to_parquet(rows))
    (folder / "sitecustomize.py").write_text(TURNS)
    os.environ |= {"EVAL_TASKS": "piqa", "EVAL_TASK_DATA": str(folder / "tasks"), "PYTHONPATH": str(folder)}
    settings = TestnetSettings(
        num_clients=clients, config_path=config, run_dir=folder / "run", cache_dir=folder.parent / "cache",
        sample=False, wait_for_all=True, threads=1, device="cpu",
    )  # fmt: skip
    assert trio.run(run_testnet, settings, Console(sys.stderr)) == 0, "a run that went wrong measures nothing"
    layout = Layout(folder / "run", folder / "run" / "events")
    for number in range(1, clients + 1):
        read_events(layout.events_of(f"client-{number}"), found)


def read_events(log: Path, found: Rounds) -> None:
    last: tuple[int, float] | None = None
    for line in read_lines(log):
        match read_event(line):
            case types.RoundStarted(height=height, drain=drain):
                if last is not None and last[0] > SKIPPED and last[0] % SPAN and not drain:
                    (found.beside if last[0] // SPAN % 2 else found.without).append(line["t"] - last[1])
                last = None if drain else (height, line["t"])
            case types.EvalScored():
                found.blocks.append(1)
            case _:
                pass


def make_batches(tokens: int) -> Iterator[TrainRequest]:
    random = Random(0)
    for step in range(1, 1 << 30):
        rows = b"".join(random.randrange(256).to_bytes(4, "little") for _ in range(SAMPLES * tokens))
        yield TrainRequest(
            epoch=0, height=step, step=step, lr=1e-4, lookahead_lr=0.0, tokens=rows, samples=SAMPLES,
            sequence_length=tokens, decided=(), in_flight=False,
        )  # fmt: skip


async def train(folder: Path, count: int) -> tuple[Trained, Trained]:
    """Train and apply `count` batches with an idle trainer and one that scores.

    The first batches make what is kept, and are not timed.
    """
    model, random, both = load_run(DEMO).model, Random(1), (Trained([], []), Trained([], []))
    request = LoadRequest(
        path=str(folder), is_snapshot=False, model=model, micro_batch_size=SAMPLES, device="cpu", scores=True
    )
    async with AsyncExitStack() as stack:
        trainers = [TrainerProcess(threads=1) for _ in both]
        for trainer in trainers:
            stack.push_async_callback(trainer.stop)
        loaded, _ = [await trainer.load(request) for trainer in trainers]
        asked = ScoreRequest(rows=ROWS, digest=compute_state_digest(loaded.chain, loaded.weight_root))
        for batch in islice(make_batches(model.max_seq_len), count + SKIPPED):
            for trainer, found, is_scoring in zip(trainers, both, (False, True), strict=True):
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
            if batch.height % 10 == 0:
                tell(f"batch {batch.height} of {count}: held up by at most {describe(both[1].held[SKIPPED:])}")
    idle, scoring = (one._replace(held=one.held[SKIPPED:]) for one in both)
    return idle, scoring


def describe(seconds: Sequence[float]) -> str:
    return f"{1e3 * max(seconds):.1f} ms, {1e3 * statistics.median(seconds):.1f} ms in the median"


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, and print the figures."""
    parser = build_parser(__doc__)
    parser.add_argument("--clients", type=int, default=3, help="members of the runs whose rounds are timed")
    parser.add_argument("--runs", type=int, default=1)
    args = parser.parse_args()
    rounds, runs, count = (32, 1, 20) if args.quick else (102, args.runs, 60)
    timed = Rounds([], [], [])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        init_model(DEMO / "model.json", folder / "model", 0)
        idle, scoring = trio.run(partial(train, folder / "model", count))
        for number in range(runs):
            play(folder / f"run-{number}", args.clients, rounds, timed)
            tell(f"run {number + 1} of {runs}: {len(timed.without)} rounds without tasks, {len(timed.beside)} with")
    without, beside = statistics.median(timed.without), statistics.median(timed.beside)
    figures: dict[str, float] = {
        "round without tasks, s": without, "round with tasks, s": beside, "longer, %": 100 * (beside / without - 1),
        "blocks of 32 documents done": len(timed.blocks),
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
