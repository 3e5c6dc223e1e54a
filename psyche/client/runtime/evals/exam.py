"""What members ask a model: documents of tasks, as ids of the run's own tokenizer."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import trio

from psyche.client.runtime.settings import ClientSettings
from psyche.errors import DataError
from psyche.evals.division import cut_blocks
from psyche.evals.documents import Document, Documents
from psyche.evals.ledger import Plan
from psyche.evals.requests import Request, encode_request
from psyche.evals.sources import load_documents
from psyche.modeling.snapshot import CONFIG_NAME, list_snapshots, read_snapshot_files
from psyche.wire.tokenizer_files import (
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    find_positions,
    find_token_name,
    open_tokenizer,
    read_json_table,
)

ORDERS_KEPT: Final = 16  # of a task's blocks, for weights of one digest


class Asked(NamedTuple):
    document: Document
    request: Request


class Exam(Protocol):
    """The tasks, each of their blocks, and what else is asked of weights."""

    @property
    def has_prompt(self) -> bool:
        """Whether weights go on with a prompt."""
        ...

    async def load(self) -> Sequence[Plan]:
        """Read the tasks; raises DataError or StorageError."""
        ...

    async def encode(self, plan: Plan, digest: bytes, block: int) -> Sequence[Asked]:
        """The documents of a block that fit into the model of these weights; raises DataError, OSError or others."""
        ...

    async def open_reader(self, digest: bytes) -> "Reader":
        """The tokenizer of the run's model; raises DataError or OSError."""
        ...


class TaskExam:
    """Tasks as a client's settings name them."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self.has_prompt = settings.prompt_task
        self._documents: dict[bytes, Documents] = {}
        self._reader: Reader | None = None
        self._cut = lru_cache(ORDERS_KEPT)(cut_blocks)

    async def load(self) -> Sequence[Plan]:
        settings = self._settings
        plans: list[Plan] = []
        for task in settings.eval_tasks:
            found = await load_documents(
                task, settings.eval_task_data, settings.storage, shots=settings.eval_fewshot, seed=settings.eval_seed,
                limit=settings.eval_task_max_docs,
            )  # fmt: skip
            task_hash = await trio.to_thread.run_sync(found.compute_hash)
            self._documents[task_hash] = found
            plans.append(
                Plan(
                    name=task.name, task_hash=task_hash, documents=len(found.documents), metric=task.metrics[0],
                    shots=found.shots,
                )
            )  # fmt: skip
        return plans

    async def encode(self, plan: Plan, digest: bytes, block: int) -> Sequence[Asked]:
        return await trio.to_thread.run_sync(self._encode, plan, digest, block)

    async def open_reader(self, digest: bytes) -> "Reader":
        return await trio.to_thread.run_sync(self._open_reader, digest)

    def _open_reader(self, digest: bytes) -> "Reader":
        if self._reader is None:
            self._reader = _read_model(self._settings.snapshots_dir, digest)
        return self._reader

    def _encode(self, plan: Plan, digest: bytes, block: int) -> list[Asked]:
        reader = self._open_reader(digest)
        documents = self._documents[plan.task_hash].documents
        asked = [documents[place] for place in self._cut(digest, plan.task_hash, plan.documents)[block]]
        found = ((one, reader.encode(one)) for one in asked)
        return [Asked(document, request) for document, request in found if request is not None]


class Reader(NamedTuple):
    """The run's tokenizer, and how long a row may be; what they are made of does not change in a run."""

    tokenize: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    prefix: int | None
    end: int | None
    positions: float

    def encode(self, document: Document) -> Request | None:
        request = encode_request(self.tokenize, document.context, document.choices, self.prefix)
        return request if request is not None and request.positions <= self.positions else None


def _read_model(snapshots: Path, digest: bytes) -> Reader:
    """Read tokenizer and length of the weights with this digest, whose files its snapshot has."""
    info = next((one for one in list_snapshots(snapshots) if one.digest == digest), None)
    if info is None:
        raise DataError(f"{snapshots}: has no snapshot of the certified weights yet, whose tokenizer is needed")
    files = read_snapshot_files(info)
    if (raw := files.get(TOKENIZER_NAME)) is None:
        raise DataError(
            f"{info.path}: the run's model has no {TOKENIZER_NAME}, which evals need; its owner can add one"
        )
    tokenizer = open_tokenizer(info.path / TOKENIZER_NAME, raw)
    positions = find_positions(read_json_table(files.get(CONFIG_NAME))) or math.inf
    names = [find_token_name(files, role) for role in ("bos_token", "eos_token")]
    begin, end = (tokenizer.token_to_id(name) if name else None for name in names)
    prefix = end if begin is None else begin
    first = prefix if read_json_table(files.get(TOKENIZER_CONFIG_NAME)).get("add_bos_token") else None
    return Reader(partial(_tokenize, tokenizer, first), tokenizer.decode, prefix, end, positions)


def _tokenize(tokenizer: Any, first: int | None, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text).ids
    return ids if first is None or ids[:1] == [first] else [first, *ids]
