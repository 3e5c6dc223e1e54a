"""The questions of `psyche init`, each answered by its flag, a person or a default."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import typer

from psyche.backends.solana.cluster import parse_endpoint
from psyche.cli.helpers.common import is_terminal
from psyche.config.load import RUN_NAME
from psyche.config.places import parse_model
from psyche.core.state.limits import MAX_CLIENTS, RUN_ID_BYTES, U32_MAX
from psyche.data.tokenize import ByteTokenizer, HuggingFaceTokenizer, TextTokenizer
from psyche.drafting.backends import DraftedBackend, draft_chain, draft_server
from psyche.drafting.build import Draft
from psyche.drafting.data_choice import LIBRARY, DataChoice, choose_data
from psyche.drafting.files import RUN_FILE
from psyche.drafting.model_choice import (
    SIZES,
    ModelChoice,
    check_model_folder,
    choose_folder,
    choose_remote,
    choose_size,
)
from psyche.drafting.plan import Answers
from psyche.durable import expand_user, make_folder, replace_file, resolve_path
from psyche.errors import ConfigError, PsycheError
from psyche.storage.port import StorageOptions, find_cache_folder
from psyche.telemetry.text import format_count

_Answer = TypeVar("_Answer")
FOLDER: Final = "my-run"
SIZE: Final = "1m"
BYTES: Final = "bytes"
MEMBERS: Final = 2
ADDRESS: Final = "127.0.0.1:19400"
MAX_STEPS: Final = U32_MAX - 1
MAX_PORT: Final = 65_534  # the data server listens one above
LARGE_PARAMETERS: Final = 200_000_000  # weights of more are made only if somebody asks for them
LARGE_TEXT_BYTES: Final = 1 << 30
YES: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


RemoteModel = tuple[ModelChoice, Path]  # and the folder of its small files


@dataclass(frozen=True, slots=True)
class Flags:
    folder: Path | None
    model: str | None
    tokenizer: str | None
    data: str | None
    field: str
    members: int | None
    min_members: int | None
    steps: int | None
    server_addr: str | None
    rpc: str | None
    prepare: bool | None
    force: bool
    storage: StorageOptions


class Interviewer:
    """Asks what no flag has answered; off a terminal, without defaults, it collects what is missing."""

    def __init__(self, *, takes_defaults: bool) -> None:
        self._takes_defaults = takes_defaults
        self._is_asking = not takes_defaults and is_terminal()
        self._missing: list[str] = []

    def ask(self, flag: str, given: object, question: str, default: object, read: Callable[[str], _Answer]) -> _Answer:
        if given is not None:
            return read(str(given))
        if not self._is_asking:
            if not self._takes_defaults:
                self._missing.append(flag)
            return read(str(default))
        while True:
            try:
                return read(str(typer.prompt(question, default=str(default))))
            except PsycheError as error:
                typer.echo(f"  {error}")

    def check(self) -> None:
        if self._missing:
            raise ConfigError(
                f"this is no terminal, so nobody can be asked: name {', '.join(self._missing)}, or take the defaults "
                "with --yes"
            )


def ask_draft(questions: Interviewer, flags: Flags) -> Draft:
    ask = questions.ask
    folder = ask("FOLDER", flags.folder, "Folder of the run", FOLDER, partial(read_folder, flags.force))
    sizes = ", ".join(SIZES)
    question = f"Model: {sizes}, a Hugging Face folder, or owner/name of the Hub"
    named = ask("--model", flags.model, question, SIZE, partial(read_model, flags.storage))
    model, tokenizer, tokenizer_path = _ask_tokenizer(questions, flags, named)
    data = ask(
        "--data", flags.data, f"Data: text or token files, an address, or {LIBRARY} (Python's source code)", LIBRARY,
        lambda text: choose_data(text, model, tokenizer.vocab_size, flags.field, flags.storage),
    )  # fmt: skip
    model = replace(model, sequence_tokens=data.sequence_tokens or model.sequence_tokens)
    members = ask("--members", flags.members, "Members with which training starts", MEMBERS,
                  partial(read_number, "--members", MAX_CLIENTS))  # fmt: skip
    least = ask("--min-members", flags.min_members, "Members with which it goes on when others leave",
                max(1, members // 2), partial(read_number, "--min-members", members))  # fmt: skip
    round_tokens = members * model.recipe.member_samples * model.sequence_tokens
    steps = ask(
        "--steps", flags.steps, f"Steps, each a round that trains {format_count(round_tokens)} tokens",
        model.recipe.steps, partial(read_number, "--steps", MAX_STEPS),
    )  # fmt: skip
    answers = Answers(make_run_id(folder), members, least, steps, _ask_backend(questions, flags))
    is_elsewhere = data.location is not None and model.size is None  # then nothing is to be written
    is_prepared = is_elsewhere or ask(
        "--prepare or --no-prepare", flags.prepare, "Write tokens and first weights now?",
        "yes" if is_small(model, data) else "no", read_yes,
    )  # fmt: skip
    return Draft(folder, answers, model, data, tokenizer, tokenizer_path, is_prepared, flags.tokenizer is not None)


def _ask_backend(questions: Interviewer, flags: Flags) -> DraftedBackend:
    if None not in (flags.rpc, flags.server_addr):
        raise ConfigError("--server-addr and --rpc: a run has one backend; name the one that it is to have")
    if flags.rpc is not None:
        parse_endpoint(flags.rpc)
        return draft_chain(flags.rpc)
    question = "The server, as members reach it"
    return draft_server(questions.ask("--server-addr", flags.server_addr, question, ADDRESS, read_address))


def _ask_tokenizer(
    questions: Interviewer, flags: Flags, named: str | RemoteModel
) -> tuple[ModelChoice, TextTokenizer, Path | None]:  # fmt: skip
    if isinstance(named, str) and named in SIZES:
        question = "Tokenizer: bytes, or a tokenizer.json or its folder"
        tokenizer, path = questions.ask("--tokenizer", flags.tokenizer, question, BYTES, read_tokenizer)
        return choose_size(named, tokenizer.vocab_size, tokenizer.separator_id), tokenizer, path
    model, folder = (choose_folder(Path(named)), Path(named)) if isinstance(named, str) else named
    tokenizer, path = read_tokenizer(flags.tokenizer or _get_own_tokenizer(folder))
    if tokenizer.vocab_size > model.vocab_size:
        raise ConfigError(
            f"--tokenizer {tokenizer.name}: has {tokenizer.vocab_size} tokens, the model's vocabulary is "
            f"{model.vocab_size}; name the tokenizer that belongs to the model"
        )
    return model, tokenizer, path


def _get_own_tokenizer(folder: Path) -> str:
    """The folder's own tokenizer, also where it cannot be read: bytes are no tokens of a model that has one."""
    return str(folder) if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")) else BYTES


def is_small(model: ModelChoice, data: DataChoice) -> bool:
    """Whether tokens and first weights are made within minutes."""
    return (
        model.parameters <= LARGE_PARAMETERS
        and sum(path.stat().st_size for path in data.texts) <= LARGE_TEXT_BYTES
    )  # fmt: skip


def make_run_id(folder: Path) -> str:
    """The name of a run in this folder: the folder's, without what names may not have."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", resolve_path(folder, "").name).strip("-._")[:RUN_ID_BYTES]
    return name if RUN_NAME.fullmatch(name) else FOLDER


def read_folder(may_replace: bool, text: str) -> Path:
    folder = expand_user(text)
    if (folder / RUN_FILE).exists() and not may_replace:
        raise ConfigError(f"{folder / RUN_FILE}: is there already; name another folder, or replace it with --force")
    return folder


def read_model(storage: StorageOptions, text: str) -> str | RemoteModel:
    if text in SIZES:
        return text
    source = parse_model(text)
    if source is None:
        check_model_folder(expand_user(text))
        return str(expand_user(text))
    model, small = choose_remote(text, source, storage)
    place = re.sub(r"[^A-Za-z0-9.@-]+", "-", f"{source.name}@{(model.source or source).revision}")
    folder = find_cache_folder() / "models" / place
    make_folder(folder)
    for name, raw in small.items():
        replace_file(folder / name, raw, folder / f"{name}.part")
    return model, folder


def read_tokenizer(text: str) -> tuple[TextTokenizer, Path | None]:
    if text == BYTES:
        return ByteTokenizer(), None
    path = expand_user(text)
    return HuggingFaceTokenizer(path), path


def read_number(flag: str, most: int, text: str) -> int:
    try:
        number = int(text.replace(",", ""))
    except ValueError:
        number = 0
    if not 1 <= number <= most:
        raise ConfigError(f"{flag} {text}: must be a whole number from 1 to {most:,}")
    return number


def read_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= MAX_PORT:
        raise ConfigError(f"--server-addr {text!r}: must be host:port with a port from 1 to {MAX_PORT}")
    return text


def read_yes(text: str) -> bool:
    if text.lower() not in YES:
        raise ConfigError(f"{text!r}: must be yes or no")
    return YES[text.lower()]
