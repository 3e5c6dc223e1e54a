"""Held-out loss at equal tokens: AdamW, DisTrO, and DisTrO with the overlap of a run, on the demo's data.

`--plot FILE` draws the curves. All see the same samples in the same order; peers are simulated in one process, each
with its own momentum. `--small` compares local steps too, with 4 peers and a model of 0.14 million parameters.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from _table import build_parser, finish, print_table

from psyche.cli.helpers.progress import ProgressBar
from psyche.data.corpus import build_demo_corpus
from psyche.standalone.report import describe_step
from psyche.standalone.settings import LookaheadName, OptimizerName, ScheduleName, ScheduleSettings, TrainSettings
from psyche.standalone.train import TrainResult, train_model
from psyche.watch.saved import Losses, write_losses

ROOT = Path(__file__).parents[1]
STEPS, QUICK_STEPS = 200, 4
PEERS = 3
OWN: Final[dict[str, Any]] = {"overlap": True, "lookahead": LookaheadName.OWN}
SMALL_STEPS, SMALL_PEERS, INNER_STEPS = 1_024, 4, 8
SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64,
    "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 64, "initializer_range": 0.125, "tie_word_embeddings": False, "eos_token_id": 0,
}  # fmt: skip


def parse() -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "psyche-benchmark-corpus")
    parser.add_argument("--model", type=Path, default=ROOT / "config" / "demo" / "model.json")
    parser.add_argument("--small", action="store_true", help="a small model, 4 peers, and local steps too")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_small_runs(args: argparse.Namespace) -> dict[str, TrainSettings]:
    corpus = build_demo_corpus(args.data)
    steps = 2 * INNER_STEPS if args.quick else SMALL_STEPS
    model = args.data / "small.json"
    model.write_text(json.dumps(SMALL))
    rates = ScheduleSettings(lr=6e-3, warmup_steps=steps // 16)
    distro = TrainSettings(
        model=model, data=(corpus.train_folder,), eval_data=(corpus.held_out,), steps=steps, peers=SMALL_PEERS,
        total_batch=4 * SMALL_PEERS, sequence_length=64, schedule=replace(rates, lr=2e-3), seed=args.seed, threads=1,
        eval_sequences=32 if args.quick else 256, eval_every=max(1, steps // 4),
    )  # fmt: skip
    local = replace(
        distro, optimizer=OptimizerName.LOCAL, steps=steps // INNER_STEPS, total_batch=4 * SMALL_PEERS * INNER_STEPS,
        inner_steps=INNER_STEPS, chunk=64, topk=256, eval_every=max(1, steps // 4 // INNER_STEPS), weight_decay=0.1,
        schedule=replace(rates, warmup_steps=rates.warmup_steps // INNER_STEPS),
    )  # fmt: skip
    return {
        "AdamW, lr 6e-3": replace(distro, optimizer=OptimizerName.ADAMW, peers=1, weight_decay=0.1, schedule=rates),
        "DisTrO, lr 2e-3": distro,
        "DisTrO with overlap, lr 1e-3": replace(distro, overlap=True, schedule=replace(rates, lr=1e-3)),
        "the same, own look-ahead": replace(distro, schedule=replace(rates, lr=1e-3), **OWN),
        "local steps, lr 6e-3": local,
        "local steps with overlap": replace(local, overlap=True),
        "local steps with overlap, merge 2": replace(local, overlap=True, merge_step=2),
    }


def count_tokens(settings: TrainSettings, steps: int) -> int:
    return steps * settings.total_batch * settings.sequence_length


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
        "the same, own look-ahead": replace(distro, schedule=replace(rates, lr=1e-3), **OWN),
    }


def summarize(settings: TrainSettings, result: TrainResult) -> dict[str, object]:
    return {
        "held_out": {str(step): round(loss, 4) for step, loss in result.held_out.items()},
        "tokens": result.tokens,
        "seconds": round(result.seconds, 1),
        "bits_per_parameter_and_step": round(count_bits(settings, result), 3),
    }


def count_bits(settings: TrainSettings, result: TrainResult) -> float:
    """The bits that a peer sends for each parameter and step of training."""
    return 8 * result.sent_bytes / result.parameters / settings.inner_batches


def main() -> None:
    args = parse()
    results: dict[str, TrainResult] = {}
    runs = make_small_runs(args) if args.small else make_runs(args)
    for name, settings in runs.items():
        with ProgressBar(f"{name}, step", show=str) as bar:
            results[name] = train_model(settings, lambda at, bar=bar: bar.set(at.step, at.steps, describe_step(at)))
    first = next(iter(runs.values()))
    tokens = [count_tokens(first, step) for step in sorted(next(iter(results.values())).held_out) if step]
    rows = [
        [
            name,
            *(result.held_out[count // count_tokens(runs[name], 1)] for count in tokens),
            count_bits(runs[name], result),
        ]
        for name, result in results.items()
    ]
    columns = ["run", *(f"{count:,} tokens" for count in tokens), "bits sent / parameter / step"]
    print_table("Held-out loss at equal tokens, nats per byte", columns, rows)
    if args.plot is not None:
        write_losses(args.plot, [Losses(name, one.losses, one.held_out) for name, one in results.items()])
    finish(args, {name: summarize(runs[name], result) for name, result in results.items()})


if __name__ == "__main__":
    main()
