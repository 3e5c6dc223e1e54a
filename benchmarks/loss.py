"""Held-out loss at equal tokens: AdamW, DisTrO, and DisTrO with the overlap of a run, on the demo's data.

All see the same samples in the same order; peers are simulated in one process, each with its own momentum. `--small`
compares local steps too, with 4 peers and a model of 0.14 million parameters. `--plot FILE` draws the curves. What
the FILE of `--json` has already is not trained again, so that a long comparison can be stopped and gone on with.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, Final

from _table import build_parser, finish, print_table, save
from generate_architecture import IMAGES, draw_text, wrap_svg

from psyche.cli.helpers.progress import ProgressBar
from psyche.data.corpus import build_demo_corpus
from psyche.standalone.report import describe_step
from psyche.standalone.settings import LookaheadName, OptimizerName, ScheduleName, ScheduleSettings, TrainSettings
from psyche.standalone.train import TrainResult, train_model
from psyche.watch.saved import Losses, write_losses

Figures = dict[str, Any]  # of a training: `losses` and `held_out` by step, tokens, seconds, bits a parameter and step
ROOT = Path(__file__).parents[1]
STEPS, QUICK_STEPS = 200, 4
PEERS = 3
COLORS: Final = ("#1f2937", "#d97706", "#dc2626", "#059669", "#2563eb")
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
    parser.add_argument("--steps", type=int, default=SMALL_STEPS, metavar="N", help="with --small")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N", help="of weights and samples")
    return parser.parse_args()


def make_small_runs(args: argparse.Namespace) -> dict[str, TrainSettings]:
    corpus = build_demo_corpus(args.data)
    steps = 4 * INNER_STEPS if args.quick else args.steps
    model = args.data / "small.json"
    model.write_text(json.dumps(SMALL))
    rates = ScheduleSettings(lr=6e-3, warmup_steps=steps // 16)
    distro = TrainSettings(
        model=model, data=(corpus.train_folder,), eval_data=(corpus.held_out,), steps=steps, peers=SMALL_PEERS,
        total_batch=4 * SMALL_PEERS, sequence_length=64, schedule=replace(rates, lr=2e-3), threads=1,
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
        "local steps with overlap, merge 2": replace(local, overlap=True, merge_step=2),
    }


def make_runs(args: argparse.Namespace) -> dict[str, TrainSettings]:
    corpus = build_demo_corpus(args.data)
    steps = QUICK_STEPS if args.quick else STEPS
    rates = ScheduleSettings(name=ScheduleName.WSD, warmup_steps=10, decay_steps=steps // 5)
    distro = TrainSettings(
        model=args.model, data=(corpus.train_folder,), eval_data=(corpus.held_out,), steps=steps, peers=PEERS,
        total_batch=8 * PEERS, schedule=rates, threads=1,
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


def count_tokens(settings: TrainSettings) -> int:
    return settings.steps * settings.total_batch * settings.sequence_length


def summarize(settings: TrainSettings, result: TrainResult) -> Figures:
    """What a training gave, with steps that are inner ones where a round has several."""
    kinds = {"losses": result.losses, "held_out": result.held_out}
    return {
        **{k: {str(at * settings.inner_batches): round(v, 4) for at, v in all_.items()} for k, all_ in kinds.items()},
        "tokens": result.tokens,
        "seconds": round(result.seconds, 1),
        "bits": round(8 * result.sent_bytes / result.parameters / settings.inner_batches, 3),
    }


def train(name: str, settings: TrainSettings) -> Figures:
    with ProgressBar(f"{name}, step", show=str) as bar:
        return summarize(settings, train_model(settings, lambda at: bar.set(at.step, at.steps, describe_step(at))))


def make_rows(results: Mapping[str, Mapping[str, Figures]], steps: list[str]) -> list[list[str]]:
    """Losses of all seeds side by side, the last one above that of the first training, and what was sent."""
    last = {name: mean(one["held_out"][steps[-1]] for one in seeds.values()) for name, seeds in results.items()}
    base = next(iter(last.values()))
    return [
        [
            name,
            *(" / ".join(f"{one['held_out'][step]:.3f}" for one in seeds.values()) for step in steps),
            f"{(last[name] / base - 1) * 100:.1f} %",
            f"{mean(one['bits'] for one in seeds.values()):.3g}",
        ]
        for name, seeds in results.items()
    ]


def draw(results: Mapping[str, Mapping[str, Figures]], steps: list[str], tokens: int) -> str:
    """The held-out losses of all seeds over the tokens, as SVG."""
    left, top, width, height = 60, 20, 500, 300
    lines = {n: [[one["held_out"][step] for step in steps] for one in seeds.values()] for n, seeds in results.items()}
    every = [loss for seeds in lines.values() for losses in seeds for loss in losses]
    low, high = math.floor(min(every) * 10) / 10, math.ceil(max(every) * 10) / 10
    shares = [int(step) / int(steps[-1]) for step in steps]
    xs = [left + width * share for share in shares]
    parts = [draw_text(left + width * one, top + height + 18, f"{tokens * one / 1e3:,.0f}k") for one in shares]
    parts.append(draw_text(left + width / 2, top + height + 38, "tokens; held-out loss in nats a byte, a line a seed"))
    for tenth in range(round(low * 10), round(high * 10) + 1):
        y = top + height * (high - tenth / 10) / (high - low)
        parts.append(f"<line x1='{left}' y1='{y:g}' x2='{left + width}' y2='{y:g}' stroke='#dddddd'/>")
        parts.append(draw_text(left - 8, y + 4, f"{tenth / 10:.1f}", anchor="end"))
    for place, (name, seeds) in enumerate(lines.items()):
        color = COLORS[place % len(COLORS)]
        for losses in seeds:
            ys = [top + height * (high - loss) / (high - low) for loss in losses]
            points = " ".join(f"{x:g},{y:.1f}" for x, y in zip(xs, ys, strict=True))
            parts.append(f"<polyline points='{points}' fill='none' stroke='{color}' stroke-width='1.6'/>")
        y = top + 20 + 20 * place
        parts.append(f"<line x1='580' y1='{y - 4}' x2='604' y2='{y - 4}' stroke='{color}' stroke-width='3'/>")
        parts.append(draw_text(612, y, name, anchor="start"))
    return wrap_svg(top + height + 54, parts)


def main() -> None:
    args = parse()
    runs = make_small_runs(args) if args.small else make_runs(args)
    known = json.loads(args.json.read_text()) if args.json is not None and args.json.exists() else {}
    results: dict[str, dict[str, Figures]] = {name: {} for name in runs}
    for name, seed in product(runs, args.seeds):
        settings = replace(runs[name], seed=seed)
        found = known.get(name, {}).get(str(seed), {})
        is_known = found.get("tokens") == count_tokens(settings)
        results[name][str(seed)] = found if is_known else train(f"{name}, seed {seed}", settings)
        if args.json is not None:
            save(args.json, known | results)
    first = next(iter(runs.values()))
    steps = sorted(set(next(iter(results[next(iter(runs))].values()))["held_out"]) - {"0"}, key=int)
    tokens = count_tokens(first)
    columns = ["run", *(f"{tokens * int(step) // int(steps[-1]):,} tokens" for step in steps)]
    columns += ["above AdamW", "bits sent / parameter / step"]
    print_table("Held-out loss at equal tokens, nats per byte", columns, make_rows(results, steps), "loss" * args.small)
    if args.plot is not None:
        named = {f"{name}, seed {seed}": one for name, seeds in results.items() for seed, one in seeds.items()}
        write_losses(
            args.plot, [Losses(n, read_steps(one["losses"]), read_steps(one["held_out"])) for n, one in named.items()]
        )
    if args.small and args.update_docs:
        (IMAGES / "loss_local.svg").write_text(draw(results, steps, tokens), encoding="utf-8")
    finish(args, results)


def read_steps(losses: Mapping[str, float]) -> dict[int, float]:
    return {int(step): loss for step, loss in losses.items()}


if __name__ == "__main__":
    main()
