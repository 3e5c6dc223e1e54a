"""`psyche train`: one process, without a network."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from psyche.errors import ConfigError
from psyche.standalone.settings import OptimizerName, ScheduleName, ScheduleSettings, TrainSettings

EXAMPLES: Final = (
    "psyche train --model config/demo/model.json --data my-run/data --steps 10",
    "psyche train --model my-run/model --data my-run/data --optimizer adamw \\",
    "    --lr 3e-3 --steps 100 --out trained",
    "psyche train --model my-run/model --data my-run/data --peers 3 --overlap \\",
    "    --steps 30 --plot loss.png                   # as a run does it",
)
DEFAULT: Final = TrainSettings(model=Path(), data=())


def train(
    *,
    model: Annotated[Path, typer.Option(help="Model folder, or a config file (TOML or JSON) to make one from.")],
    data: Annotated[list[Path], typer.Option(help="Token file (.bin, .npy) or folder; may be repeated.")],
    eval_data: Annotated[list[Path] | None, typer.Option(help="Held-out tokens; default: the end of --data.")] = None,
    eval_tokens: Annotated[
        int | None, typer.Option(help="Tokens held out at the end of --data; default: a tenth, at most 200,000.")
    ] = DEFAULT.eval_tokens,
    eval_every: Annotated[
        int, typer.Option(help="Steps between evaluations; 0: only at the end.")
    ] = DEFAULT.eval_every,
    token_size: Annotated[
        int, typer.Option(help="Bytes of one token in the files: 2 or 4.")
    ] = DEFAULT.token_size_bytes,
    sequence_length: Annotated[int, typer.Option(help="Tokens of one sample.")] = DEFAULT.sequence_length,
    total_batch: Annotated[int, typer.Option(help="Samples per step, over all peers.")] = DEFAULT.total_batch,
    micro_batch: Annotated[int | None, typer.Option(help="Samples at a time; fewer need less memory.")] = None,
    steps: Annotated[int, typer.Option(help="How many steps.")] = DEFAULT.steps,
    optimizer: Annotated[OptimizerName, typer.Option(help="The optimizer.")] = DEFAULT.optimizer,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = DEFAULT.schedule.lr,
    schedule: Annotated[
        ScheduleName, typer.Option(help="The rate after warm-up; wsd: constant, then falling.")
    ] = DEFAULT.schedule.name,
    final_lr: Annotated[float | None, typer.Option(help="Learning rate at the end; default: a tenth.")] = None,
    warmup_steps: Annotated[
        int, typer.Option(help="Steps in which the rate rises from 0.")
    ] = DEFAULT.schedule.warmup_steps,
    decay_steps: Annotated[int | None, typer.Option(help="wsd: steps in which it falls; default: a fifth.")] = None,
    clip: Annotated[float, typer.Option(help="Clip gradients to this global norm; 0: never.")] = DEFAULT.clip or 0.0,
    weight_decay: Annotated[float, typer.Option(help="Weight decay per step, times the rate.")] = DEFAULT.weight_decay,
    chunk: Annotated[int, typer.Option(help="DisTrO: edge of a chunk of the transform.")] = DEFAULT.chunk,
    topk: Annotated[int, typer.Option(help="DisTrO: coefficients sent per chunk.")] = DEFAULT.topk,
    decay: Annotated[float, typer.Option(help="DisTrO: decay of the momentum per step.")] = DEFAULT.decay,
    values: Annotated[bool, typer.Option("--values", help="DisTrO: send full values, not signs.")] = False,
    peers: Annotated[int, typer.Option(help="DisTrO: peers simulated in this process.")] = DEFAULT.peers,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="DisTrO: apply two steps late, with look-ahead, as a run does.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the data's order, and of a new model.")] = DEFAULT.seed,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = DEFAULT.device,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all cores.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the trained model to this folder (Hugging Face); new or empty.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is already in --out.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the losses to this file.")] = None,
) -> None:
    """Train a model in one process, without a network.

    With AdamW, or with DisTrO and one or several simulated peers: for a quick try, and to compare optimizers. Prints
    losses in nats per token. Ctrl-C ends it, and nothing is written.
    """
    rates = ScheduleSettings(
        name=schedule, lr=lr, final_lr=final_lr, warmup_steps=warmup_steps, decay_steps=decay_steps
    )  # fmt: skip
    settings = TrainSettings(
        model=model, data=tuple(data), eval_data=tuple(eval_data or ()), out=out, token_size_bytes=token_size,
        sequence_length=sequence_length, total_batch=total_batch, micro_batch=micro_batch, steps=steps,
        optimizer=optimizer, schedule=rates, clip=clip or None, weight_decay=weight_decay, chunk=chunk, topk=topk,
        decay=decay, values=values, peers=peers, overlap=overlap, seed=seed, device=device, threads=threads or None,
        eval_tokens=eval_tokens, eval_every=eval_every,
    )  # fmt: skip
    settings.check()  # before the seconds that torch takes to load, and the hours of the training
    check_out(out, force=force)
    check_place("--plot", plot)
    for option, paths in {"--model": [model], "--data": data, "--eval-data": eval_data or []}.items():
        for path in paths:
            if not path.exists():
                raise ConfigError(f"{option} {path}: there is no such file or folder")
    _run(settings, plot)


def _run(settings: TrainSettings, plot: Path | None) -> None:
    from psyche.standalone.report import Curve, ProgressLine, format_result, write_loss_plot
    from psyche.telemetry.loading import loading

    with loading("torch and the model"):
        from psyche.standalone.train import train_model

    line = ProgressLine()
    try:
        result = train_model(settings, line)
    finally:
        line.close()
    typer.echo(format_result(settings, result))
    if plot is not None:
        write_loss_plot(plot, [Curve(settings.optimizer.value, result.losses, result.held_out)])
        typer.echo(f"losses drawn in {plot}")


def check_out(out: Path | None, *, force: bool) -> None:
    """Refuse to overwrite: an export replaces the whole folder."""
    check_place("--out", out)
    if out is None or not (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        return
    if not (out / "config.json").is_file():
        raise ConfigError(f"--out {out}: holds something that is not a model; choose a new or empty folder")
    if not force:
        raise ConfigError(f"--out {out}: holds a model already; choose another folder, or replace it with --force")


def check_place(option: str, path: Path | None) -> None:
    """Check that something can be made at `path`: the end of a training would be too late to learn that it cannot."""
    if path is None:
        return
    there = next(parent for parent in path.absolute().parents if parent.exists())
    if not there.is_dir():
        raise ConfigError(f"{option} {path}: {there} is a file; name a path whose parents are folders")
    if not os.access(there, os.W_OK):
        raise ConfigError(f"{option} {path}: cannot be written: {there} is read-only")
