"""`psyche init`: the files of a new run from a few answers."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.commands.model import make_first_weights
from psyche.cli.helpers.remote import Remote
from psyche.telemetry.text import format_count, format_number

if TYPE_CHECKING:
    from psyche.drafting.build import Built, Draft

EXAMPLES: Final = (
    "psyche init first --yes      # 0.9M parameters, Python's own source code",
    "psyche init books --data book.txt --members 3 --steps 2000 --yes",
    "psyche init on-chain --rpc localhost --yes",
    "psyche init large --model 20m --no-prepare --yes",
    "psyche init again --model my-run/model --data my-run/data --yes",
    "psyche init far --model owner/name --data 'https://example.org/{00..31}.bin'",
)
SEED: Final = 0  # of the first weights


def init(
    folder: Annotated[Path | None, typer.Argument(help="The folder to make.", show_default=False)] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="1m, 20m, 124m or 1b (about so many parameters), a Hugging Face folder, owner/name of the Hub (with @ "
            "and a revision if need be), or gs://bucket/folder."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="bytes (every byte is a token), or a tokenizer.json or its folder.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Text, .jsonl, .parquet or token ids, a folder of them, or stdlib (the source code of Python). Token "
            "ids elsewhere: https://HOST/tokens.bin, https://HOST/{000..127}.bin, gs://bucket/folder, a mix at "
            "https://HOST/mix.json; prepared rows: their folder, or hf://datasets/owner/name."
        ),
    ] = None,
    field: Annotated[str, typer.Option(help="The text's field in .jsonl and .parquet files.")] = "text",
    members: Annotated[int | None, typer.Option(help="Clients with which training starts.")] = None,
    min_members: Annotated[
        int | None, typer.Option(help="Clients with which it goes on when others leave; default: half of them.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Length of the run in steps; default: usual for the size.")] = None,
    server_addr: Annotated[
        str | None, typer.Option(help="The server, host:port, as members reach it; its data server is one port above.")
    ] = None,
    rpc: Annotated[
        str | None, typer.Option(help="For a run on Solana: an RPC endpoint, http(s)://HOST, localhost, devnet, ...")
    ] = None,
    prepare: Annotated[
        bool | None, typer.Option(help="Also write the tokens and first weights; default: unless they are large.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: defaults for what no flag says.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of a run that is there.")] = False,
    remote: Remote,
) -> None:
    """Make the files of a new run.

    Asks for what no flag says: the model, the data, how many members, how long. Writes run.toml, data.toml and
    model.toml with comments, the data's tokens and the first weights, checks them, and says what to do next.

    The run is on a server, or on Solana if you name --rpc. There each member reads the data itself, so it needs the
    folder, unless the data are at an address. Model and data elsewhere are asked how large they are.
    """
    from psyche.cli.helpers.interview import Flags, Interviewer, ask_draft
    from psyche.cli.helpers.progress import ProgressBar
    from psyche.drafting.build import build, check_folder

    questions = Interviewer(takes_defaults=yes)
    flags = Flags(folder, model, tokenizer, data, field, members, min_members, steps, server_addr, rpc, prepare, force,
                  remote.get_options())  # fmt: skip
    draft = ask_draft(questions, flags)
    questions.check()
    check_folder(draft, force=force)
    make_weights = partial(make_first_weights, seed=SEED, tokenizer=draft.tokenizer_path)
    with ProgressBar("tokenizing") as bar:
        built = build(draft, make_weights, bar.set)
    show_draft(draft, built)


def show_draft(draft: "Draft", built: "Built") -> None:
    from psyche.config.load import load_run
    from psyche.drafting.plan import describe_proposal, estimate_whole_run
    from psyche.forecast.whole_run import format_whole_run
    from psyche.forecast.workload import describe_memory

    answers, model = draft.answers, draft.model
    for warning in built.warnings:
        typer.echo(f"warning: {warning}", err=True)
    batch = model.recipe.member_samples * answers.members
    trained = answers.steps * batch * model.sequence_tokens
    for about in filter(None, (model.about, draft.data.about)):
        typer.echo(about)
    typer.echo(
        f"{draft.folder}: run {answers.run_id!r}, {format_count(model.parameters)} parameters, "
        f"{format_number(answers.members, 'member')}\n"
        f"{answers.steps:,} steps of {batch} samples with {model.sequence_tokens:,} tokens: "
        f"{format_count(trained)} tokens" + format_passes(trained, built.tokens)
    )
    basis = f"if each member trains {model.recipe.tokens_per_s:,} tokens/s of this model"
    run = estimate_whole_run(answers, model)
    typer.echo("\n".join(filter(None, [*format_whole_run(run, basis), describe_proposal(answers, model, run)])))
    if memory := describe_memory(load_run(draft.folder)):
        typer.echo(memory)
    simulation = f"psyche simulate --state {quote(draft.folder)} --clients {answers.members} --profile PROFILE"
    flag = answers.backend.flag
    show_commands("with your own machines (docs/simulate.md describes PROFILE):", [f"{simulation}{flag}"])
    show_commands("to be made first:", list_preparations(draft))
    show_commands("then:" if not draft.is_prepared else "next:", list_next(draft))


def show_commands(title: str, lines: list[str]) -> None:
    if lines:
        typer.echo("\n".join([title, *(f"  {line}" for line in lines)]))


def format_passes(trained: int, tokens: int) -> str:
    if not tokens:
        return ""
    return f", {trained / tokens:.2g} times the {format_count(tokens)} of the data"


def list_preparations(draft: "Draft") -> list[str]:
    from psyche.data.records import DEFAULT_FIELD
    from psyche.drafting.build import TOKENS_NAME
    from psyche.drafting.files import DATA_FOLDER, MODEL_FILE, MODEL_FOLDER

    if draft.is_prepared:
        return []
    folder = draft.folder
    tokenizer = "" if draft.tokenizer_path is None else f" --tokenizer {quote(draft.tokenizer_path)}"
    lines: list[str] = []
    if draft.data.texts:
        output = folder / DATA_FOLDER / TOKENS_NAME
        suffix = " --suffix .py" if draft.data.is_library else ""
        suffix += f" --field {shlex.quote(draft.data.field)}" if draft.data.field != DEFAULT_FIELD else ""
        lines.append(f"psyche data tokenize {quote(draft.data.named)}{suffix}{tokenizer} --output {quote(output)}")
    if draft.model.size is not None:
        config, output = quote(folder / MODEL_FILE), quote(folder / MODEL_FOLDER)
        lines.append(f"psyche model init --config {config} --output {output}{tokenizer}")
    return lines


def list_next(draft: "Draft") -> list[str]:
    folder, answers = quote(draft.folder), draft.answers
    return [
        "# try it, everything on this machine",
        f"psyche local-testnet start{answers.backend.flag} --num-clients {answers.members} --config-path {folder}",
        *answers.backend.list_next(folder, answers.run_id),
    ]


def quote(path: Path) -> str:
    return shlex.quote(str(path))
