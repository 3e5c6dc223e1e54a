"""`psyche data`: text becomes files of token ids, or rows with labels."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from psyche.cli.helpers.common import ending_on_sigterm, format_examples, make_group
from psyche.cli.helpers.preparing import PREPARING, Choices
from psyche.cli.helpers.preparing import run as run_preparation
from psyche.cli.helpers.remote import SOURCES, Remote
from psyche.cli.helpers.target import command
from psyche.errors import DataError
from psyche.telemetry.text import format_bytes, format_number

if TYPE_CHECKING:
    from psyche.data.tokenize import TokenizedFile

group = make_group(
    "Prepare training data.",
    "psyche data tokenize book.txt --output data/train.bin",
    "psyche data prepare --dataset chats.jsonl --chat --tokenizer my-run/model \\",
    "    --pack-to-sequence-length 2048 --save-to-disk my-run/rows",
    "psyche data manifest my-run --hash",
)


@group.command(
    "tokenize",
    epilog=format_examples(
        "psyche data tokenize book.txt -o data/train.bin   # every byte is a token",
        "psyche data tokenize src/ --suffix .py -o data/train.bin \\",
        "    --held-out eval/held-out.bin --held-out-bytes 2000",
        "psyche data tokenize src/ --tokenizer my-run/model -o data/train.bin",
        "psyche data tokenize posts.jsonl --field body -o data/train.bin",
    ),
)
def tokenize(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="FILE_OR_FOLDER...", help="Text, JSON Lines or Parquet, or folders to search."),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file of token ids to write (.bin).")],
    suffix: Annotated[
        list[str] | None, typer.Option(help="In folders, only files with this ending; may be repeated.")
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="The text's field in .jsonl and .parquet files; default: text.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json, or its folder; default: every byte is a token.")
    ] = None,
    separator: Annotated[str | None, typer.Option(help="The token between documents; default: the end token.")] = None,
    held_out: Annotated[Path | None, typer.Option(help="A second file, in another folder, for evaluation.")] = None,
    held_out_bytes: Annotated[int, typer.Option(min=0, help="How many bytes at the text's end go to --held-out.")] = 0,
    token_size: Annotated[
        int | None, typer.Option(help="Bytes of an id, 2 or 4; default: 2 if that is enough.")
    ] = None,
) -> None:
    """Write the token ids of text files, one document after another.

    Each text file is a document, and so is each record of a JSON Lines or Parquet file.
    The result is whole or not there. A JSON file beside it says what is in it.
    """
    from psyche.cli.helpers.progress import ProgressBar
    from psyche.data.records import DEFAULT_FIELD, has_records
    from psyche.data.texts import find_texts
    from psyche.data.tokenize import ByteTokenizer, HuggingFaceTokenizer
    from psyche.data.tokenize import tokenize as run

    texts = find_texts(inputs, tuple(suffix or ()))
    if field is not None and not any(map(has_records, texts)):
        raise DataError(f"--field {field} has no effect: none of the files is .jsonl, .ndjson or .parquet")
    chosen = ByteTokenizer() if tokenizer is None else HuggingFaceTokenizer(tokenizer, separator)
    with (
        ProgressBar("reading records") as records,
        ProgressBar(f"tokenizing {format_number(len(texts), 'file')}") as bar,
    ):
        report = run(
            texts, output, tokenizer=chosen, held_out=held_out, held_out_bytes=held_out_bytes,
            token_size_bytes=token_size, field=field or DEFAULT_FIELD, progress=bar.set, measuring=records.set,
        )  # fmt: skip
    _print(report.train)
    if report.held_out is not None:
        _print(report.held_out)


@command(
    group,
    "prepare",
    "psyche data prepare --dataset chats.jsonl --chat --tokenizer my-run/model \\",
    "    --pack-to-sequence-length 2048 --save-to-disk my-run/rows --show-example",
    "psyche data prepare --dataset owner/chats --subset en --chat \\",
    "    --tokenizer owner/model --pack-to-sequence-length 4096 \\",
    "    --push-to-hub owner/rows",
    shared=PREPARING | SOURCES,
)
def prepare(*, choices: Choices, remote: Remote) -> None:
    """Write chats or texts as rows with labels.

    The tokenizer's chat template makes a text of each chat; only what the assistant says in it counts. Chats that do
    not fit into a row are left out, and so are those in which nothing counts; texts are cut.

    The folder is whole or not there. `data_location = { Preprocessed = "rows" }` reads it, and so does a data server.
    """
    with ending_on_sigterm():
        run_preparation(choices, remote.get_options())


@command(
    group,
    "manifest",
    "psyche data manifest my-run          # of the data that run.toml names",
    "psyche data manifest my-run --hash   # reads all of it",
    "psyche data manifest gs://bucket/tokens --token-size 4",
    "psyche data manifest https://example.org/{a,b}.bin --hash",
    shared=SOURCES,
)
def manifest(
    addresses: Annotated[
        list[str],
        typer.Argument(
            metavar="ADDRESS...",
            help="A run.toml or its folder; else gs://bucket/prefix, hf://datasets/owner/name, https addresses, or a "
            "folder of token files.",
        ),
    ],
    *,
    with_hashes: Annotated[
        bool, typer.Option("--hash", help="Read all files, and write the BLAKE3 of each MiB too.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: data.manifest, beside the run.toml if one is given.")
    ] = None,
    token_size: Annotated[
        int | None, typer.Option(help="Bytes of an id, 2 or 4. Default: as the run says; else 2.")
    ] = None,
    remote: Remote,
) -> None:
    """Write which files are a run's data.

    The manifest has names, sizes, versions and numbers of tokens. Beside a run.toml it sets config.data_root when the
    run is made: all clients then read the same files, without a listing. With --hash each MiB that a client reads is
    compared, so nobody trains on other bytes.
    """
    from psyche.cli.helpers.manifests import find_run, make
    from psyche.cli.helpers.outputs import check_target
    from psyche.cli.helpers.progress import ProgressBar
    from psyche.config.load import DATA_MANIFEST_NAME
    from psyche.core.encoding.data_manifest import WHOLE_BYTES, decode_data_manifest
    from psyche.durable import replace_file
    from psyche.wire.crypto import blob_id_of

    run = find_run(addresses)
    path = output or (run.folder if run else Path()) / DATA_MANIFEST_NAME
    check_target("--output", path)
    with ProgressBar("reading the data") as bar:
        raw = make(run, addresses, token_size, remote.get_options(), is_hashed=with_hashes, progress=bar.set)
    replace_file(path, raw, path.with_suffix(".part"))
    made = decode_data_manifest(raw)
    files, count = made.files, sum(file.tokens for file in made.files)
    total = format_bytes(count) if made.token_size_bytes == WHOLE_BYTES else format_number(count, "token")
    typer.echo(f"{path}: {format_number(len(files), 'file')}, {total}, data_root {blob_id_of(raw).hex()}")


def _print(file: "TokenizedFile") -> None:
    typer.echo(
        f"{file.path}: {format_number(file.tokens, 'token')} of {file.token_size_bytes} bytes from "
        f"{format_number(file.documents, 'document')}, vocabulary {file.vocab_size}"
    )
