"""`psyche train`: one process, without a network."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from psyche.cli.helpers.options import CHECKPOINTING_HELP, OFFLOAD_HELP, option, share_fields
from psyche.cli.helpers.outputs import check_page_name, check_target_folder
from psyche.cli.helpers.remote import Remote
from psyche.errors import ConfigError
from psyche.standalone.settings import ScheduleSettings, TrainSettings

EXAMPLES: Final = (
    "psyche train --model config/demo/model.json --data my-run/data --steps 10",
    "psyche train --model my-run/model --data my-run/data --optimizer adamw \\",
    "    --lr 3e-3 --steps 100 --out trained",
    "psyche train --model my-run/model --data my-run/data --peers 3 --overlap \\",
    "    --steps 30 --plot loss.html                  # as a run does it",
    "psyche train --model my-run/model --data my-run/data --optimizer local \\",
    "    --peers 4 --total-batch 128 --overlap --merge-step 2 --steps 30",
    "psyche train --model owner/name --data 'https://example.org/{000..127}.bin'",
)
SETTINGS: Final = share_fields(
    TrainSettings,
    model=option(
        "Model folder, a config file (TOML or JSON) to make one from, owner/name of the Hub (with @ and a revision if "
        "need be), or gs://bucket/folder.",
        kind=str,
    ),
    data=option(
        "Token file (.bin, .npy) or folder; may be repeated. Or prepared rows (.parquet). Or an address: "
        "https://HOST/tokens.bin, https://HOST/{000..127}.bin, https://HOST/mix.json, gs://bucket/folder, "
        "hf://datasets/owner/name.",
        kind=list[str],
    ),
    eval_data=option("Held-out tokens, likewise; default: the end of --data.", kind=list[str] | None),
    eval_tokens="Tokens held out at the end of --data; default: a tenth, at most 200,000.",
    eval_every="Steps between evaluations; 0: only at the end.",
    token_size_bytes=option("Bytes of one token in the files: 2 or 4.", "--token-size"),
    sequence_length="Tokens of one sample.",
    total_batch="Samples per step, over all peers; local: per round of --inner-steps.",
    micro_batch="Samples at a time; fewer need less memory.",
    activation_checkpointing=option(CHECKPOINTING_HELP, "--activation-checkpointing"),
    offload=option(OFFLOAD_HELP, "--offload"),
    steps="How many steps; local: rounds.",
    optimizer="The optimizer.",
    clip="Clip gradients to this global norm; 0: never.",
    weight_decay="Weight decay per step, times the rate.",
    chunk="DisTrO, local: edge of a chunk.",
    topk="DisTrO, local: values sent per chunk.",
    decay="DisTrO, local: decay per step of what was not sent.",
    values=option("DisTrO: send full values, not signs.", "--values"),
    peers="DisTrO, local: peers simulated in this process.",
    overlap=option("DisTrO, local: apply two steps late, with look-ahead, as a run does.", "--overlap"),
    lookahead="DisTrO, with --overlap: the look-ahead follows the momentum, or the peer's own last result.",
    inner_steps="local: steps of a peer between two exchanges.",
    inner_optimizer="local: what these steps are done with; anew: its state is zero at the start of each round.",
    merge_step="local, with --overlap: inner steps after which the others' last results count; 0: when applied.",
    outer_rate="local: factor of the mean of the peers' results.",
    value_bits="local: bits of each value that is sent, 1 or 2.",
    seed="Seed of the data's order, and of a new model.",
    device="auto, cpu, mps, cuda or cuda:N.",
    threads=option("CPU threads; 0: all cores.", min=0),
    out="Write the trained model to this folder (Hugging Face); new or empty.",
)
RATES: Final = share_fields(
    ScheduleSettings,
    lr="Highest learning rate.",
    name=option("The rate after warm-up; wsd: constant, then falling.", "--schedule"),
    final_lr="Learning rate at the end; default: a tenth.",
    warmup_steps="Steps in which the rate rises from 0.",
    decay_steps="wsd: steps in which it falls; default: a fifth.",
)


def train(
    *,
    settings: TrainSettings,
    rates: ScheduleSettings,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is already in --out.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the losses in this file, a page (.html).")] = None,
    remote: Remote,
) -> None:
    """Train a model in one process, without a network.

    With AdamW, or with DisTrO or local steps of one or several simulated peers: for a quick try, and to compare
    optimizers. Prints losses in nats per token. Ctrl-C ends it, and nothing is written. What is read elsewhere is kept
    in --cache-dir.
    """
    from psyche.config.places import parse_data, parse_model

    settings = replace(settings, schedule=rates, storage=remote.get_options())
    settings.check()  # before the seconds that torch takes to load, and the hours of the training
    check_out(settings.out, force=force)
    check_page_name("--plot", plot)
    check_target_folder("--plot", plot and plot.parent)
    for path in (*settings.data, *settings.eval_data):
        if parse_data(str(path), settings.token_size_bytes) is None:
            check_source("--data" if path in settings.data else "--eval-data", path)
    if parse_model(str(settings.model)) is None:
        check_source("--model", settings.model)
    _run(settings, plot)


def check_source(option_: str, path: str | Path) -> None:
    if not Path(path).exists():
        raise ConfigError(f"{option_} {path}: there is no such file or folder")


def _run(settings: TrainSettings, plot: Path | None) -> None:
    from psyche.cli.helpers.progress import ProgressBar
    from psyche.standalone.report import describe_step, format_result
    from psyche.telemetry.loading import loading

    with loading("torch and the model"):
        from psyche.standalone.train import train_model

    with ProgressBar("model") as reading, ProgressBar("training, step", show=str) as bar:
        result = train_model(settings, lambda at: bar.set(at.step, at.steps, describe_step(at)), reading.set)
    typer.echo(format_result(settings, result))
    if plot is not None:
        from psyche.watch.saved import Losses, write_losses

        plot.parent.mkdir(parents=True, exist_ok=True)
        write_losses(plot, [Losses(settings.optimizer.value, result.losses, result.held_out)])
        typer.echo(f"losses drawn in {plot}")


def check_out(out: Path | None, *, force: bool) -> None:
    """Refuse to overwrite: an export replaces the whole folder."""
    check_target_folder("--out", out)
    if out is None or not (out.is_dir() and any(out.iterdir())):
        return
    if not (out / "config.json").is_file():
        raise ConfigError(f"--out {out}: holds something that is not a model; choose a new or empty folder")
    if not force:
        raise ConfigError(f"--out {out}: holds a model already; choose another folder, or replace it with --force")
