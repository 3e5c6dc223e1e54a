"""Held-out loss at equal tokens: AdamW, DisTrO, and DisTrO with the overlap of a run, on the demo's data.

`--plot FILE` draws the curves. All three see the same samples in the same order; DisTrO's peers are
simulated in one process, each with its own momentum.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from _table import build_parser, finish, print_table

from psyche.cli.helpers.progress import ProgressBar
from psyche.data.corpus import build_demo_corpus
from psyche.standalone.report import describe_step
from psyche.standalone.settings import OptimizerName, ScheduleName, ScheduleSettings, TrainSettings
from psyche.standalone.train import TrainResult, train_model
from psyche.watch.saved import Losses, write_losses

ROOT = Path(__file__).parents[1]
STEPS, QUICK_STEPS = 200, 4
PEERS = 3


def parse() -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "psyche-benchmark-corpus")
    parser.add_argument("--model", type=Path, default=ROOT / "config" / "demo" / "model.json")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_runs(args: argparse.Namespace) -> dict[str, TrainSettings]:
    corpus = build_demo_corpus(args.data)
    steps = QUICK_STEPS if args.quick else STEPS
    rates = ScheduleSettings(name=ScheduleName.WSD, warmup_steps=10, decay_steps=steps // 5)
    distro = TrainSettings(
        model=args.model, data=(corpus.train_folder,), eval_data=(corpus.held_out,), steps=steps, peers=PEERS,
        total_batch=8 * PEERS, schedule=rates, seed=args.seed, threads=1,
        eval_sequences=32 if args.quick else 256, eval_every=max(1, steps // 4),
    )  # fmt: skip
    adamw = replace(
        distro, optimizer=OptimizerName.ADAMW, peers=1, weight_decay=0.1, schedule=replace(rates, lr=3e-3)
    )  # fmt: skip
    return {
        "AdamW, lr 3e-3": adamw,
        "DisTrO, lr 2e-3": replace(distro, schedule=replace(rates, lr=2e-3)),
        "DisTrO with overlap, lr 1e-3": replace(distro, overlap=True, schedule=replace(rates, lr=1e-3)),
    }


def summarize(result: TrainResult) -> dict[str, object]:
    return {
        "held_out": {str(step): round(loss, 4) for step, loss in result.held_out.items()},
        "tokens": result.tokens,
        "seconds": round(result.seconds, 1),
        "bits_per_parameter_and_step": round(8 * result.sent_bytes / result.parameters, 3),
    }


def main() -> None:
    args = parse()
    results: dict[str, TrainResult] = {}
    for name, settings in make_runs(args).items():
        with ProgressBar(f"{name}, step", show=str) as bar:
            results[name] = train_model(settings, lambda at, bar=bar: bar.set(at.step, at.steps, describe_step(at)))
    steps = sorted(step for step in next(iter(results.values())).held_out if step)
    rows = [
        [name, *(result.held_out[step] for step in steps), 8 * result.sent_bytes / result.parameters]
        for name, result in results.items()
    ]
    columns = ["run", *(f"step {step}" for step in steps), "bits sent / parameter / step"]
    print_table("Held-out loss at equal tokens, nats per byte", columns, rows)
    if args.plot is not None:
        write_losses(args.plot, [Losses(name, one.losses, one.held_out) for name, one in results.items()])
    finish(args, {name: summarize(result) for name, result in results.items()})


if __name__ == "__main__":
    main()
