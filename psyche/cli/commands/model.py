"""`psyche model`: first weights, and text from trained ones."""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli.helpers.common import format_examples, make_group
from psyche.cli.helpers.outputs import check_target
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.standalone.sample import Sample

group = make_group(
    "Make a run's first weights; let a trained model write.",
    "psyche model init --config config/demo/model.json --output new-model",
    "psyche model sample my-run/model --prompt 'def main('",
)


@group.command(
    "init",
    epilog=format_examples(
        "psyche model init --config config/demo/model.json --output first",
        "psyche model init --config config/demo/model.json --output other --seed 7",
        "psyche model init --config config/demo/model.json --output third \\",
        "    --tokenizer my-run/model",
    ),
)
def init(
    *,
    config: Annotated[
        Path, typer.Option(help="Fields of a Llama model: TOML, JSON, or a model folder to copy them from.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to make; it must be new or empty.")],
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer's file or folder to copy; default: the byte tokenizer.")
    ] = None,
) -> None:
    """Write random first weights as a Hugging Face folder.

    The weights are fp32 safetensors. They are made once, by one person, and everybody loads these files.
    """
    if not config.exists():  # before the seconds that torch takes
        raise ConfigError(f"--config {config}: there is no such file or folder")
    parameters = make_first_weights(config, output, seed, tokenizer)
    typer.echo(f"{output}: {parameters} parameters, seed {seed}")


def make_first_weights(config: Path, output: Path, seed: int, tokenizer: Path | None) -> int:
    """Write random first weights, and a tokenizer's files beside them; return the number of parameters."""
    from psyche.data.bytes_tokenizer import get_tokenizer_files
    from psyche.telemetry.loading import loading

    with loading("torch"):
        from psyche.modeling.model import init_model

    with tempfile.TemporaryDirectory() as folder:
        extra = get_tokenizer_files(tokenizer, Path(folder))
        return init_model(config, output, seed, extra_files=extra)


@group.command(
    "sample",
    epilog=format_examples(
        "psyche model sample my-run/model --prompt 'def main('",
        "psyche model sample my-run/model --bytes 40 --temperature 0.5 --seed 3",
    ),
)
def sample(
    folder: Annotated[Path, typer.Argument(help="A model's folder, as clients export it.")],
    *,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "def ",
    length: Annotated[
        int, typer.Option("--bytes", min=1, help="How many tokens to add (bytes, with the byte tokenizer).")
    ] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the most likely token.")] = 0.8,
    seed: Annotated[int, typer.Option(help="Seed of the random choices.")] = 0,
    held_out: Annotated[Path | None, typer.Option(help="A token file to measure the loss on.")] = None,
    json_file: Annotated[Path | None, typer.Option(help="Also write the result to this file.")] = None,
) -> None:
    """Let a trained model write text, read with plain transformers.

    Shows the prompt and what the model makes of it, each under a line of its own.
    """
    from psyche.telemetry.loading import loading

    if not (folder / "config.json").is_file():  # before the seconds that torch takes
        raise ConfigError(f"{folder}: no config.json there; name a model's folder, as clients export it")
    if held_out is not None and not held_out.is_file():
        raise ConfigError(f"--held-out {held_out}: there is no such file")
    check_target("--json-file", json_file)
    with loading("torch and the model"):
        from psyche.standalone.sample import sample_model

    found = sample_model(folder, prompt=prompt, tokens=length, temperature=temperature, seed=seed, held_out=held_out)
    if not found.no_text:
        typer.echo(format_sample(found))
    if found.held_out_loss is not None:
        typer.echo(f"held-out loss {found.held_out_loss:.4f} nats per token", err=True)
    if json_file is not None:
        json_file.write_text(json.dumps(dataclasses.asdict(found)) + "\n", encoding="utf-8")
    if found.no_text:
        raise ConfigError(found.no_text)


def format_sample(found: "Sample") -> str:
    return f"--- prompt\n{found.prompt}\n--- the model goes on\n{found.written}"
