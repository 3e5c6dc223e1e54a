"""What a stand-alone training reads: files of this machine, and places elsewhere."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
import trio
from numpy.typing import NDArray

from psyche.config.places import parse_data
from psyche.core.state.enums import DataLocationKind
from psyche.core.state.settings import Checkpoint, DataLocation
from psyche.data.files import SUFFIXES
from psyche.data.local import TokenRows
from psyche.data.prepared.remote import find_remote_form
from psyche.data.prepared.rows import SUFFIX, RowForm, find_folder_form, open_rows
from psyche.data.provider import RemoteRows, SampleSource, open_remote_rows
from psyche.errors import ConfigError
from psyche.modeling.model_copy import Progress, copy_model
from psyche.modeling.model_files import StorageFiles, open_storage, read_in_thread
from psyche.standalone.settings import TrainSettings
from psyche.storage.cache import CachedStorage, open_cache
from psyche.storage.port import StorageOptions, gather
from psyche.wire.data import LABELLED_BYTES

T = TypeVar("T")


class ReadingLoop:
    """A loop of trio in a thread of its own, since a training blocks; left, it ends what it does."""

    def __init__(self) -> None:
        self.opened = AsyncExitStack()  # what it closes at the end
        self._end = trio.Event()

    def __enter__(self) -> Self:
        started: SimpleQueue[trio.lowlevel.TrioToken] = SimpleQueue()

        async def serve() -> None:
            async with self.opened:
                started.put(trio.lowlevel.current_trio_token())
                await self._end.wait()

        self._thread = Thread(target=trio.run, args=(serve,), name="reading", daemon=True)
        self._thread.start()
        self._token = started.get()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._token.run_sync_soon(self._end.set)
        self._thread.join()

    def call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        return trio.from_thread.run(function, *args, trio_token=self._token)


class PlaceRows:
    """A `SampleSource` of rows elsewhere."""

    def __init__(self, rows: RemoteRows, loop: ReadingLoop, *, has_labels: bool) -> None:
        self._rows, self._loop = rows, loop
        loop.opened.push_async_callback(rows.aclose)
        self.sequence_length = rows.sequence_length
        self.token_size_bytes = LABELLED_BYTES if has_labels else 4
        self.num_sequences = loop.call(rows.measure).samples

    def samples(self, start: int, end: int) -> NDArray[np.uint32]:
        return self.pick(range(start, end + 1))

    def pick(self, indexes: Sequence[int]) -> NDArray[np.uint32]:
        """Read rows that lie anywhere, at once."""
        return np.frombuffer(self._loop.call(self._read, indexes), "<u4").reshape(len(indexes), -1)

    async def _read(self, indexes: Sequence[int]) -> bytes:
        return b"".join(await gather([partial(self._rows.get, index, index) for index in indexes]))


def open_source(
    named: Sequence[str | Path], settings: TrainSettings, vocab_size: int, loop: ReadingLoop
) -> SampleSource:  # fmt: skip
    """Open token files, a folder of prepared rows, or a place.

    Raises:
        ConfigError: rows have another length than `settings` say, or more than one place is named.
        DataError: they cannot be read.
    """
    length, first = settings.sequence_length, Path(named[0])
    location = parse_data(str(named[0]), settings.token_size_bytes)
    if location is not None:
        if len(named) > 1:
            raise ConfigError(f"--data {named[0]}: name one address, or files of this machine")
        return _open_place(location, settings, vocab_size, loop)
    if not _is_prepared(first):
        return TokenRows([Path(one) for one in named], settings.token_size_bytes, length, None, vocab_size)
    form = find_folder_form(first)
    _check_length(form, first, length)
    return open_rows(first, length, has_labels=form.has_labels, vocab_size=vocab_size)


def _is_prepared(path: Path) -> bool:
    if path.is_file():
        return path.suffix == SUFFIX
    return not any(file.suffix in SUFFIXES for file in path.iterdir()) and any(path.rglob(f"*{SUFFIX}"))


def _check_length(form: RowForm, named: object, length: int) -> None:
    if form.length != length:
        raise ConfigError(f"--sequence-length: is {length}, the rows of {named} have {form.length} tokens")


def _open_place(location: DataLocation, settings: TrainSettings, vocab_size: int, loop: ReadingLoop) -> PlaceRows:
    form = RowForm(settings.sequence_length, has_labels=False)
    if location.kind is DataLocationKind.PREPROCESSED:
        form = loop.call(find_remote_form, location.address, settings.storage)
        _check_length(form, location.address, settings.sequence_length)
    rows = open_remote_rows(
        location, settings.storage, sequence_length=form.length, vocab_size=vocab_size, has_labels=form.has_labels
    )
    return PlaceRows(rows, loop, has_labels=form.has_labels)


async def fetch_model(source: Checkpoint, folder: Path, options: StorageOptions, on_read: Progress) -> None:
    """Copy a model of the Hub or a bucket to a new folder, through the cache.

    Raises:
        StorageError, TrainerError: it cannot be read, or is no model that can be trained.
    """
    storage, cache = open_storage(source, options), open_cache(options)
    assert storage is not None, "`parse_model` names storages alone"
    async with aclosing(storage):
        files = StorageFiles(CachedStorage(storage, cache) if cache else storage)
        await read_in_thread(copy_model, files, folder, on_read, lambda _: None)
