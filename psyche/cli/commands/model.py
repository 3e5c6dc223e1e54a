"""`psyche model`: first weights, text from trained ones, and models at other places."""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from psyche.cli.helpers.common import format_examples, make_group, require_extra, run_async, say
from psyche.cli.helpers.options import option, share_fields
from psyche.cli.helpers.outputs import check_target, check_target_folder
from psyche.cli.helpers.remote import SOURCES, Remote
from psyche.cli.helpers.target import FINDING, Access, command
from psyche.errors import ConfigError
from psyche.serving.settings import ServeSettings
from psyche.wire.report import escape_text

if TYPE_CHECKING:
    from psyche.serving.chat import RemoteChat
    from psyche.standalone.chat import Chat
    from psyche.standalone.sample import Sample

group = make_group(
    "Make, inspect, fetch and upload models; let them write.",
    "psyche model init --config config/demo/model.json --output new-model",
    "psyche model sample my-run/model --prompt 'def main('",
    "psyche model inspect owner/name",
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
        Path, typer.Option(help="Fields of a model's config: TOML, JSON, or a model folder to copy them from.")
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


@group.command("convert", epilog=format_examples("psyche model convert my-run/model converted"))
def convert(
    source: Annotated[Path, typer.Argument(help="A model's folder: config.json and safetensors.")],
    output: Annotated[Path, typer.Argument(help="The folder to make; it must be new or empty.")],
) -> None:
    """Rename a model's tensors as a run needs them.

    The tensors get the names that they have in memory, and fp32.

    Files of many models have other names, such as one tensor for each expert. A run's files are those that members
    hash and exchange, so their names are exactly those in memory. Exports of a run have the usual names again.
    """
    from psyche.telemetry.loading import loading

    if not (source / "config.json").is_file():  # before the seconds that torch takes
        raise ConfigError(f"{source}: no config.json there; name a model's folder")
    with loading("torch"):
        from psyche.modeling.model import convert_model

    typer.echo(f"{output}: {convert_model(source, output)} parameters")


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


@group.command(
    "chat",
    epilog=format_examples(
        "psyche model chat my-run/model",
        "echo 'Why is the sky blue?' | psyche model chat my-run/model --temperature 0",
        "psyche model chat http://127.0.0.1:8000  # what `psyche model serve` serves",
    ),
)
def chat(
    place: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|URL",
            help="A model's folder with its tokenizer; or the address of a server of OpenAI's API.",
        ),
    ],
    *,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="The most that an answer has. Default: 256, or what the server takes.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="0: always the most likely token. Default: 0.7, or what the server takes."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the random choices. Default: 0, or what the server takes.")
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File with the key for the server.")] = None,
) -> None:
    """Talk with a trained model.

    A line is a message, and the answer comes as it is written. Messages are put together by the chat template in the
    model's folder. Where there is none, the model goes on with the text of all that was said. Ctrl-D ends it.
    """
    talk = _open_chat(place, tokens, temperature, seed, api_key_file)
    if not talk.has_template:
        say("note: the model has no chat template, so it goes on with your text instead of answering it")
    while message := _read_message():
        try:
            note = talk.answer(message, lambda piece: typer.echo(escape_text(piece, "\n\t"), nl=False))
        except ConfigError as error:
            note = str(error)
        typer.echo()
        if note:
            say(f"note: {note}")


def _open_chat(
    place: str, tokens: int | None, temperature: float | None, seed: int | None, key_file: Path | None
) -> "Chat | RemoteChat":
    if place.startswith(("http://", "https://")):
        from psyche.serving.chat import RemoteChat

        return RemoteChat(place, key_file, max_tokens=tokens, temperature=temperature, seed=seed)
    from psyche.telemetry.loading import loading

    if key_file is not None:
        raise ConfigError(f"--api-key-file {key_file}: is for the address of a server, and {place} is none")
    if not (Path(place) / "config.json").is_file():  # before the seconds that torch takes
        raise ConfigError(f"{place}: no config.json there; name a model's folder, as clients export it")
    with loading("torch and the model"):
        from psyche.standalone.chat import Chat

        warmth = 0.7 if temperature is None else temperature
        return Chat(Path(place), tokens=tokens or 256, temperature=warmth, seed=seed or 0)


def _read_message() -> str | None:
    """The next line that has something; None at the end."""
    while True:
        if sys.stdin.isatty():
            typer.echo("> ", err=True, nl=False)
        line = sys.stdin.readline()
        if not line or line.strip():
            return line.rstrip("\r\n") or None


SERVING: Final = share_fields(
    ServeSettings,
    engine="What computes the answers: transformers as it is installed here, or a command on the PATH.",
    host=option("Address to serve at; any but the default is reached by other machines.", metavar="NAME"),
    port=option("Port to serve at; 0: any free one.", min=0, max=65_535),
    api_key_file=option("File of keys, one on each line; callers must show one of them.", metavar="FILE"),
    gguf_converter=option(
        "With llama-server: llama.cpp's convert_hf_to_gguf.py, for weights without a GGUF file. Default: that on the "
        "PATH.",
        metavar="FILE",
    ),
    engine_args=option(
        "More words of the engine's own command line, such as '--tensor-parallel-size 2' of vllm.", metavar="WORDS"
    ),
    device="Of the engine transformers: auto, cpu, cuda or cuda:N.",
    batch=option(
        "Let transformers write several answers together, which is faster, but samples all of them alike: at "
        "--temperature.",
        "--batch",
    ),
    temperature=option("With --batch: how answers are sampled; 0: always the most likely token.", min=0, max=2),
    parallel=option("Answers that are written at once; transformers without --batch writes one.", min=1, max=1024),
    queue=option("Requests that wait beside them; further ones are refused (429).", min=0, max=100_000),
    idle_s=option("Seconds that an engine may say nothing in the midst of an answer.", min=1),
    deadline_s=option("Seconds that an answer may take, with its wait.", min=1),
    swap=option(
        "With --follow: both engines run until the new one answers, or the old one stops first, where memory holds "
        "only one; requests are refused meanwhile (503)."
    ),
)


@command(
    group,
    "serve",
    "psyche model serve my-run/model",
    "psyche model serve my-run/model --port 9000 --api-key-file keys.txt",
    "psyche model serve --follow runs/demo/client-1",
    "psyche model serve my-run/model --engine vllm --engine-args '--dtype float32'",
    shared=SERVING,
)
def serve(
    *,
    folder: Annotated[Path | None, typer.Argument(help="A model's folder with its tokenizer.")] = None,
    follow: Annotated[
        Path | None,
        typer.Option(metavar="DATA_DIR", help="The data folder of a client: its newest certified weights."),
    ] = None,
    events: Annotated[
        Path | None, typer.Option(help="With --follow: the client's event log, if it is elsewhere.")
    ] = None,
    settings: ServeSettings,
) -> None:
    """Serve a model to programs that speak OpenAI's API.

    With --follow it is the newest certified weights of a run, while it trains. The routes are /v1/models,
    /v1/completions, /v1/chat/completions and /health. Every answer names the digest of the weights that wrote it.
    Ctrl-C ends it.
    """
    if folder is not None and follow is not None:
        raise ConfigError(f"--follow {follow}: serves a run's weights, and {folder} others: name one of them")
    if folder is None and follow is None:
        raise ConfigError("name a model's folder, or a client's data folder with --follow")
    if events is not None and follow is None:
        raise ConfigError(f"--events {events}: is for --follow, leave it out")
    if settings.gguf_converter is not None and settings.engine != "llama-server":
        raise ConfigError(f"--gguf-converter {settings.gguf_converter}: is for --engine llama-server, leave it out")
    if settings.engine != "transformers" and (settings.batch or settings.device != "auto"):
        raise ConfigError(f"--batch, --device: are for transformers, and --engine is {settings.engine}; leave them out")
    if settings.engine == "transformers":
        require_extra("serve", "psyche model serve", "fastapi")
    else:
        settings.find_command()
    from psyche.cli.helpers.watching import until_signal
    from psyche.serving.gguf import find_gguf
    from psyche.serving.model import read_model
    from psyche.serving.serve import serve_folder, serve_run
    from psyche.serving.settings import read_keys
    from psyche.wire.web import LOOPBACK

    if settings.engine == "llama-server" and (folder is None or find_gguf(folder) is None):
        settings.find_converter()
    settings.split_engine_args()
    read_keys(settings.api_key_file)  # before a large model is looked at
    if settings.host not in LOOPBACK and settings.api_key_file is None:
        say(f"warning: everybody who reaches {settings.host} may use the model: there is no --api-key-file")
    if follow is not None:
        run_async(until_signal, lambda: serve_run(follow, events, settings, say))
    elif folder is not None:
        model = read_model(folder)
        run_async(until_signal, lambda: serve_folder(model, settings, say))


@command(
    group,
    "inspect",
    "psyche model inspect my-run/model",
    "psyche model inspect owner/name@main",
    "psyche model inspect gs://my-weights/my-run/step-0000000040-1a2b3c4d --digest",
    shared=SOURCES,
)
def inspect(
    *,
    place: Annotated[
        str,
        typer.Argument(metavar="FOLDER|ADDRESS", help="A model's folder here; else owner/name[@revision] or gs://..."),
    ],
    digest: Annotated[
        bool, typer.Option("--digest", help="Read all values too, and show the digest that a run has on record.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as JSON, every tensor by itself.")] = False,
    remote: Remote,
) -> None:
    """Show what a model has, and whether a run takes it.

    That is tensors with shapes and types, parameters, tokenizer and files. Only headers and small files are read, so
    this is quick for models of any size, also on the Hub and in buckets. With --digest all values are read, a piece at
    a time, and nothing is kept.
    """
    from psyche.cli.helpers import models
    from psyche.cli.helpers.progress import ProgressBar

    with ProgressBar("reading the values") as bar:
        facts = models.inspect(place, remote.get_options(), bar.set if digest else None)
    typer.echo(json.dumps(models.to_json(facts)) if as_json else models.describe(facts))


@command(
    group,
    "pull",
    "psyche model pull owner/name my-model",
    "psyche model pull owner/name@bfloat16 my-model",
    "psyche model pull gs://my-weights/my-run/step-0000000040-1a2b3c4d my-model",
    "psyche model pull my-model --server-addr 127.0.0.1:19400",
    "psyche model pull my-model --run-id my-run --rpc devnet",
    shared=FINDING | SOURCES,
)
def pull(
    *,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[ADDRESS] FOLDER",
            help="owner/name[@revision] or gs://bucket/folder, and the folder to make. Of a run: the folder alone.",
        ),
    ],
    access: Access,
    remote: Remote,
) -> None:
    """Fetch a model, or the newest weights of a run.

    A model lies on the Hub or in a bucket, and the weights of a run where members have put them there. The folder is
    new, and whole or not there; its files are those of the place, byte for byte. Stopped and started again, it goes on
    where it was. Only safetensors, the model's small files and its card are read, never code.

    The weights of a run are compared with the digest on record. It needs no wallet and no place in the run, and a key
    (-i) only where a run's owner allows keys one by one.
    """
    from psyche.cli.helpers import models
    from psyche.cli.helpers.progress import ProgressBar
    from psyche.config.places import format_address, parse_model_address

    is_of_run = len(places) == 1 and (access.options.server_addr or access.options.rpc)
    if len(places) != 2 and not is_of_run:
        raise ConfigError("name an address and a folder; or a folder alone, and a run by --server-addr or --rpc")
    path = Path(places[-1])
    check_target_folder("FOLDER", path)
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"FOLDER {path}: is not empty; name a new folder")
    options = remote.get_options()
    with ProgressBar("fetching the model") as bar, ProgressBar("comparing the digest") as checking:
        if is_of_run:
            record = access.run(lambda backend: backend.get_record(), as_anybody=True)
            found = models.pull_of_run(record, path, options, bar.set, checking.set)
        else:
            source = parse_model_address(places[0])
            models.pull(source, path, options, bar.set)
            found = format_address(source)
    typer.echo(f"{path}: from {found}")


@command(
    group,
    "push",
    "psyche model push ada/models/my-run-step241 ada/my-model",
    "psyche model push my-model ada/my-model --upload-dtype bfloat16",
    "psyche model push my-model ada/mine --private",
    "psyche model push my-model gs://my-weights/my-model",
    shared=SOURCES,
)
def push(
    *,
    folder: Annotated[Path, typer.Argument(help="A model's folder, as clients export it.")],
    address: Annotated[str, typer.Argument(help="owner/name[@branch] on the Hub, or gs://bucket/folder.")],
    message: Annotated[str, typer.Option(help="What the commit says. Default: the folder's name.")] = "",
    upload_dtype: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option(help="bfloat16: also upload the weights rounded, for people, as the branch bfloat16."),
    ] = "float32",
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private; refuse one that is there and public.")
    ] = False,
    remote: Remote,
) -> None:
    """Upload a model to the Hub or a bucket.

    Weights, small files and card go there, as clients upload those of a run. To the Hub it is one commit, which is
    there as a whole or not at all; the repository is made if it is missing. It needs a token that may write (HF_TOKEN,
    or `hf auth login`). In a bucket nothing is replaced, and manifest.json comes last; GOOGLE_APPLICATION_CREDENTIALS
    names the key. Started again, it does not send a file twice.

    Read the card, README.md, before: a model without one gets one that names neither licence nor data.
    """
    from psyche.cli.helpers import models
    from psyche.cli.helpers.progress import ProgressBar
    from psyche.config.places import parse_model_address

    place, options = parse_model_address(address), remote.get_options()
    models.check_push(folder, place, options, upload_dtype, is_private=private)
    with ProgressBar("uploading the model") as bar:
        found = models.push(
            folder, place, options, message=message or folder.absolute().name, upload_dtype=upload_dtype,
            is_private=private, progress=bar.set,
        )  # fmt: skip
    for one in found:
        typer.echo(one)
    say("note: in run.toml this is `[model.LLM.checkpoint.Hub]` or `.Gcs`; see docs/configuration.md")
