"""Rows of a task's data set: the Hub's own conversion to Parquet, or a folder with the same files."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio

from psyche.data.prepared.rows import open_parquet
from psyche.data.prepared.sources import Source, find_sources, list_sources
from psyche.data.records import BATCH_ROWS
from psyche.errors import DataError, StorageError
from psyche.evals.documents import Documents, build_documents
from psyche.evals.questions import Question, Row
from psyche.evals.tasks import Task
from psyche.storage.cache import CachedStorage, open_cache
from psyche.storage.hub import HubStorage
from psyche.storage.port import Storage, StorageOptions

CONVERTED: Final = "refs/convert/parquet"
LAYOUT: Final = "a task reads the folder SUBSET/SPLIT of its data set, or SPLIT where it has no subsets"
WITHOUT_HUB: Final = (
    "without the Hub, copy its files and name their folder: --task-data, or a client's --eval-task-data"
)
MAX_SPLIT_BYTES: Final = 512 << 20  # of its text, all of which is in memory
Find = Callable[[str | None, str], list[Source]]  # by subset and split


async def load_documents(
    task: Task, folder: Path | None, options: StorageOptions, *, shots: int, seed: int, limit: int | None
) -> Documents:
    """Read a task's documents in `folder`, which holds a folder owner/name for each data set, or on the Hub.

    Raises:
        DataError: they are not there, or not of the task's columns.
        StorageError: the Hub cannot be read.
    """
    build = partial(build_documents, task, shots=shots, seed=seed, limit=limit)
    if folder is not None:
        path = folder / task.dataset
        if not path.is_dir():
            raise DataError(
                f"{path}: there is no such folder; {task.name} reads the Parquet files of {task.dataset} there, each "
                f"in a folder of its subset and split, such as {'/'.join((*task.subsets[:1], task.split))}/0000.parquet"
            )
        rows = await trio.to_thread.run_sync(_read_both, partial(find_sources, path, remedy=LAYOUT), task, shots)
        return build(*rows, source=str(path))
    hub, cache = HubStorage(task.dataset, CONVERTED, options, kind="dataset"), open_cache(options)
    async with aclosing(hub):
        try:
            await hub.list_files()  # from here on a commit is read
        except StorageError as error:
            raise type(error)(f"{error}; {WITHOUT_HUB}") from error
        storage = CachedStorage(hub, cache) if cache else hub
        rows = await trio.to_thread.run_sync(_read_both, partial(_find_stored, storage), task, shots)
        return build(*rows, source=hub.address)


def _find_stored(storage: Storage, subset: str | None, split: str) -> list[Source]:
    return trio.from_thread.run(list_sources, storage, subset, split, LAYOUT)


def _read_both(find: Find, task: Task, shots: int) -> tuple[list[Question], list[Question]]:
    return read_questions(find, task, task.split), read_questions(find, task, task.shots_split) if shots else []


def read_questions(find: Find, task: Task, split: str) -> list[Question]:
    """Read the questions of a split, subset by subset."""
    return [
        question
        for subset in task.subsets or (None,)
        for question in _read_rows(find(subset, split), task.row, subset or "")
    ]


def _read_rows(sources: Sequence[Source], kind: type[Row], subset: str) -> Iterator[Question]:
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    left_bytes = MAX_SPLIT_BYTES
    for source in sources:
        number = 0
        with open_parquet(source.name, source.opener) as file:
            if missing := [name for name in names if name not in file.schema_arrow.names]:
                known = ", ".join(file.schema_arrow.names[:20]) or "none"
                raise DataError(f"{source.name}: has no column {' or '.join(missing)} (there are: {known})")
            left_bytes -= sum(file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups))
            if left_bytes < 0:
                raise DataError(f"{source.name}: with it the split has more than {MAX_SPLIT_BYTES >> 20} MiB of text")
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names, use_threads=False):
                for row in batch.to_pylist():
                    yield _ask(f"{source.name}, row {number}", row, kind, subset)
                    number += 1


def _ask(where: str, row: dict[str, object], kind: type[Row], subset: str) -> Question:
    try:
        question = msgspec.convert(row, kind).ask(subset)
    except msgspec.ValidationError as error:
        raise DataError(f"{where}: {error}") from error
    except ValueError as error:
        raise DataError(f"{where}: the right answer is none of the choices: {error}") from error
    if not 0 <= question.answer < len(question.choices):
        raise DataError(f"{where}: the right answer is number {question.answer} of {len(question.choices)} choices")
    return question
