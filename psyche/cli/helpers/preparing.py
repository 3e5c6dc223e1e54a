"""What `psyche data prepare` is told, and how it goes on from there."""

import tempfile
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import typer

from psyche.cli.helpers.common import run_async
from psyche.cli.helpers.options import option, share_fields
from psyche.cli.helpers.outputs import check_target_folder
from psyche.errors import ConfigError, DataError, StorageError
from psyche.telemetry.text import format_number

if TYPE_CHECKING:
    from psyche.data.prepared.sources import Source
    from psyche.standalone.chats import Encoder
    from psyche.standalone.prepare import Preparation, Prepared
    from psyche.storage.port import StorageOptions

MAX_LENGTH: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The options, with the names that the original's script has."""

    dataset: str
    tokenizer: str
    subset: str | None = None
    split: str = "train"
    chat: bool = False
    multiturn_only: bool = False
    pack_to_sequence_length: int | None = None
    packing_mode: Literal["ffd", "random_fit"] = "random_fit"
    pad_to_and_drop_larger_than: int | None = None
    epochs: int = 1
    save_to_disk: Path | None = None
    push_to_hub: str | None = None
    show_example: bool = False
    seed: int = 42
    limit: int | None = None


PREPARING: Final = share_fields(
    Choices,
    dataset="A .jsonl, .ndjson or .parquet file, a folder of them, or a data set of the Hub (owner/name, or with @ and "
    "a revision).",
    tokenizer="A model's folder with its tokenizer.json, or a model of the Hub.",
    subset="Of a folder or data set, only files below a folder of this name.",
    split="Of these, files or folders whose name begins so.",
    chat=option("Records are chats, in a field `conversations` or `messages`. Default: texts, in `text`.", "--chat"),
    multiturn_only=option("With --chat, only chats of more than three messages.", "--multiturn-only"),
    pack_to_sequence_length=option(
        "Rows of so many tokens, the run's max_seq_len, each with as many samples as fit.", min=2, max=MAX_LENGTH
    ),
    packing_mode="How chats are packed: the longest first, or as they come, which mixes lengths.",
    pad_to_and_drop_larger_than=option("Rows of so many tokens with one sample each.", min=2, max=MAX_LENGTH),
    epochs=option("How often each sample is in the rows, each time among others.", min=1),
    save_to_disk="The folder to make; it must be new or empty.",
    push_to_hub=option("Upload the rows as this data set; a new one is private.", metavar="OWNER/NAME"),
    show_example=option("Show the first row, and which parts of it count.", "--show-example"),
    seed="Seed of the order; the same one makes the same rows.",
    limit=option("Only so many of the first records.", min=1),
)


def run(choices: Choices, storage: "StorageOptions") -> None:
    """Prepare rows as chosen, say what they are, and upload them.

    Raises:
        ConfigError, DataError, StorageError: with the option, file or record that cannot be used.
    """
    _check(choices, storage)
    from psyche.telemetry.loading import loading

    with loading("the tokenizer"):
        from psyche.standalone.chats import Encoder
        from psyche.standalone.prepare import describe_row

    encoder = Encoder(choices.tokenizer, is_chat=choices.chat)
    with tempfile.TemporaryDirectory() as scratch:
        folder = choices.save_to_disk or Path(scratch) / "rows"
        report = _prepare(choices, storage, encoder, folder)
        for line in describe_row(report.first, encoder) if choices.show_example and report.first else ():
            typer.echo(line)
        typer.echo(_describe(choices, report))
        if choices.push_to_hub:
            from psyche.storage.hub import push_to_hub

            message = f"{format_number(report.rows, 'row')} of {choices.dataset}"
            commit = run_async(
                partial(push_to_hub, message=message, kind="dataset", is_private=True),
                folder, choices.push_to_hub, storage,
            )  # fmt: skip
            typer.echo(f'data_location = {{ Preprocessed = "{choices.push_to_hub}@{commit}" }}')


def _check(choices: Choices, storage: "StorageOptions") -> None:
    from psyche.storage.hub import check_repo_id

    if (choices.pack_to_sequence_length is None) == (choices.pad_to_and_drop_larger_than is None):
        raise ConfigError(
            "name either --pack-to-sequence-length or --pad-to-and-drop-larger-than, the run's max_seq_len"
        )
    if choices.multiturn_only and not choices.chat:
        raise ConfigError("--multiturn-only has no effect without --chat: a text has no turns")
    if not (choices.save_to_disk or choices.push_to_hub or choices.show_example):
        raise ConfigError("nothing to do: name --save-to-disk, --push-to-hub or --show-example")
    check_target_folder("--save-to-disk", choices.save_to_disk)
    if choices.save_to_disk and choices.save_to_disk.is_dir() and any(choices.save_to_disk.iterdir()):
        raise ConfigError(f"--save-to-disk {choices.save_to_disk}: has files; name a new folder, or an empty one")
    if choices.push_to_hub:
        try:
            check_repo_id(choices.push_to_hub)
        except StorageError as error:
            raise ConfigError(f"--push-to-hub {error}") from error
        if not storage.hub_token:
            raise ConfigError("--push-to-hub: needs a token that may write there: set HF_TOKEN, or `hf auth login`")


def _prepare(choices: Choices, storage: "StorageOptions", encoder: "Encoder", folder: Path) -> "Prepared":
    from psyche.data.prepared.sources import find_sources
    from psyche.durable import expand_user

    path = expand_user(choices.dataset)
    if path.exists():
        return _write(choices, encoder, folder, find_sources(path, choices.subset, choices.split), lambda: None)
    return run_async(_prepare_from_hub, choices, storage, encoder, folder)


async def _prepare_from_hub(
    choices: Choices, options: "StorageOptions", encoder: "Encoder", folder: Path
) -> "Prepared":
    import trio

    from psyche.data.prepared.sources import list_sources
    from psyche.storage.hub import open_hub

    name, _, revision = choices.dataset.partition("@")
    try:
        opened = open_hub(name, revision or None, options, kind="dataset")
    except StorageError as error:
        raise DataError(f"--dataset {choices.dataset}: is no file or folder here, and no data set: {error}") from error
    async with aclosing(opened) as storage:
        sources = await list_sources(storage, choices.subset, choices.split)
        check = trio.from_thread.check_cancelled  # where the thread hears of Ctrl-C
        return await trio.to_thread.run_sync(_write, choices, encoder, folder, sources, check)


def _write(
    choices: Choices, encoder: "Encoder", folder: Path, sources: "list[Source]", check: Callable[[], None]
) -> "Prepared":
    from psyche.cli.helpers.progress import ProgressBar
    from psyche.standalone.prepare import prepare

    def follow(bar: ProgressBar, done: int, total: int) -> None:
        check()
        bar.set(done, total)

    with (
        ProgressBar("reading records") as reading,
        ProgressBar("writing rows", show=lambda count: format_number(count, "sample")) as packing,
    ):
        return prepare(
            sources, encoder, _get_settings(choices), folder, reading=partial(follow, reading),
            packing=partial(follow, packing),
        )  # fmt: skip


def _get_settings(choices: Choices) -> "Preparation":
    from psyche.standalone.prepare import Preparation

    length = choices.pack_to_sequence_length or choices.pad_to_and_drop_larger_than
    assert length is not None, "checked before"
    mode = choices.packing_mode if choices.pack_to_sequence_length else None
    settings = Preparation(length=length, mode=mode, is_chat=choices.chat, multiturn_only=choices.multiturn_only)
    return replace(settings, epochs=choices.epochs, seed=choices.seed, limit=choices.limit)


def _describe(choices: Choices, report: "Prepared") -> str:
    length = _get_settings(choices).length
    room = report.rows * length
    left_out = {
        "too long for a row": report.too_long, "with nothing that counts": report.without_answer,
        "of three messages or fewer": report.too_short,
    }  # fmt: skip
    told = [f"{format_number(count, 'sample')} {why}" for why, count in left_out.items() if count]
    return (
        f"{choices.save_to_disk or 'made'}: {format_number(report.rows, 'row')} of {length} tokens "
        f"from {format_number(report.samples, 'sample')}, {report.tokens / room:.1%} of the room used, "
        f"{report.counted / report.tokens:.1%} of the tokens count" + "; left out: " * bool(told) + ", ".join(told)
    )
