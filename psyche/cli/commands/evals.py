"""`psyche eval`: an exported model does known tasks."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.helpers.outputs import check_source_folder
from psyche.cli.helpers.remote import Remote
from psyche.errors import ConfigError
from psyche.telemetry.text import format_table

if TYPE_CHECKING:
    from psyche.standalone.evaluate import MetricScore, TaskScore

EXAMPLES: Final = (
    "psyche eval my-run/model --tasks arc_easy,piqa --limit 200",
    "psyche eval my-run/model --tasks mmlu --num-fewshot 5 --device cuda",
    "psyche eval my-run/model --tasks hellaswag --task-data parquet --json",
)


def evaluate(
    folder: Annotated[Path, typer.Argument(help="A model's folder with its tokenizer, as clients export it.")],
    *,
    tasks: Annotated[
        str,
        typer.Option(
            help="Names with commas between them: arc_challenge, arc_easy, boolq, ceval_valid, hellaswag, mmlu, "
            "mmlu_cf, mmlu_pro, openbookqa, piqa."
        ),
    ],
    limit: Annotated[int | None, typer.Option(min=1, help="So many documents of each task, drawn by --seed.")] = None,
    num_fewshot: Annotated[
        int | None,
        typer.Option(min=0, max=100, help="Examples before each question. Default: 0; mmlu_pro 5."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn.")] = 42,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
    task_data: Annotated[
        Path | None,
        typer.Option(help="A folder with the data sets as Parquet, instead of the Hub: owner/name/subset/split/*."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as JSON, with the hash of each task.")] = False,
    remote: Remote,
) -> None:
    """Let a model do known tasks, and show how often it is right.

    The documents are those of the Hub's own conversion to Parquet, which is kept in --cache-dir, or of a folder. A
    document longer than the model is skipped, and counted. Values are in fp32 on a CPU, in bfloat16 on a GPU.
    """
    from psyche.cli.helpers.progress import ProgressBar
    from psyche.evals.tasks import find_tasks
    from psyche.modeling.device_name import check_device_name
    from psyche.telemetry.loading import loading

    chosen = tuple(find_tasks(tasks))
    if not (folder / "config.json").is_file():  # before the seconds that torch takes
        raise ConfigError(f"{folder}: no config.json there; name a model's folder, as clients export it")
    if task_data is not None:
        check_source_folder("--task-data", task_data)
    check_device_name(device)
    storage = remote.get_options()
    with loading("torch and the model"):
        from psyche.standalone.evaluate import EvalSettings
        from psyche.standalone.evaluate import evaluate as run

    settings = EvalSettings(
        tasks=chosen, num_fewshot=num_fewshot, seed=seed, limit=limit, device=device, task_data=task_data,
        storage=storage,
    )  # fmt: skip
    with ProgressBar("reading task", show=str) as reading, ProgressBar("document", show=str) as bar:
        scores = run(folder, settings, reading.set, bar.set)
    typer.echo(json.dumps([dataclasses.asdict(one) for one in scores]) if as_json else format_scores(scores))


def format_scores(scores: "list[TaskScore]") -> str:
    """A line for each metric, the main one of a task first; and what was skipped."""
    table = [
        [one.task if not number else "", name, *_format_metric(metric), str(one.documents), str(one.shots)]
        for one in scores
        for number, (name, metric) in enumerate(one.metrics.items())
    ]
    skipped = [
        f"{one.task}: {one.skipped:,} of {one.skipped + one.documents:,} documents skipped, as they are longer than "
        "the model or have a choice without tokens"
        for one in scores
        if one.skipped
    ]
    return "\n".join([format_table(["task", "metric", "right", "±", "documents", "examples"], table, left=2), *skipped])


def _format_metric(metric: "MetricScore") -> tuple[str, str]:
    values = metric.value, metric.standard_error
    return tuple("-" if one is None else f"{one:.4f}" for one in values)  # type: ignore[return-value]
