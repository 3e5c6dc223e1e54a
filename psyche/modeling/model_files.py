"""A model's files, wherever they are: in a folder, or in a storage from which each part is read as it is needed."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, TypeVar

import structlog
import trio

from psyche.core.encoding.manifest import FILE_NAMES, MAX_MODEL_FILES_BYTES
from psyche.core.state.state import Checkpoint, CheckpointKind
from psyche.durable import open_file
from psyche.errors import TrainerError
from psyche.storage.port import StorageOptions, StoredFile, read_environment

if TYPE_CHECKING:
    from psyche.storage.http import HttpStorage
    from psyche.storage.port import Storage

REMOTE: Final = frozenset({CheckpointKind.HUB, CheckpointKind.GCS})  # sources that `open_storage` opens
SHOWN_EVERY_S: Final = 10.0
T = TypeVar("T")
_log = structlog.get_logger("psyche.model")


class ModelFiles(Protocol):
    """The files of a model; every call blocks.

    Raises:
        TrainerError: a file is not there or cut off.
        StorageError: the storage does not give it.
    """

    address: str
    revision: str | None  # the commit of a repository, once it has been listed
    piece_bytes: int  # how much to read at once of what is long: whole MiB, as each of its parts is

    def get_sizes(self) -> Mapping[str, int]:
        """The sizes in bytes of the files of the top folder, by name."""
        ...

    def read(self, name: str, start: int, end: int) -> bytes:
        """Read the bytes `start` to `end` (excluded), exactly."""
        ...

    def read_parts(self, name: str, start: int, end: int) -> Sequence[bytes]:
        """Read like `read`, in parts."""
        ...


class FolderFiles:
    revision: str | None = None
    piece_bytes = 1 << 20

    def __init__(self, folder: Path) -> None:
        self.address = str(folder)
        self._folder = folder

    def get_sizes(self) -> Mapping[str, int]:
        try:
            return {file.name: file.stat().st_size for file in self._folder.iterdir() if file.is_file()}
        except OSError as error:
            raise TrainerError(f"{self.address}: {error.strerror}") from error

    def read(self, name: str, start: int, end: int) -> bytes:
        try:
            with open_file(self._folder / name) as file:
                file.seek(start)
                raw = file.read(end - start)
        except OSError as error:
            raise TrainerError(f"{self.address}/{name}: {error.strerror}") from error
        if len(raw) != end - start:
            raise TrainerError(f"{self.address}/{name}: is cut off")
        return raw

    def read_parts(self, name: str, start: int, end: int) -> Sequence[bytes]:
        return [self.read(name, start, end)]


class StorageFiles:
    """The files of a storage, for a thread of trio; says from time to time how much it has read."""

    piece_bytes = 64 << 20  # a storage asks for its ranges side by side

    def __init__(self, storage: "Storage") -> None:
        self.address = storage.address
        self.revision: str | None = None
        self._storage = storage
        self._files: dict[str, StoredFile] | None = None
        self._read_bytes = 0
        self._shown_at = time.monotonic()

    def get_sizes(self) -> Mapping[str, int]:
        return {name: file.size_bytes for name, file in self._list().items()}

    def read(self, name: str, start: int, end: int) -> bytes:
        return b"".join(self.read_parts(name, start, end))

    def read_parts(self, name: str, start: int, end: int) -> Sequence[bytes]:
        parts = trio.from_thread.run(self._storage.read_parts, self._get(name), start, end)
        self._show(end - start)
        return parts

    def copy(self, name: str, start: int, end: int, target: BinaryIO) -> None:
        """Write these bytes to a file as they arrive: a killed process leaves what has come."""

        def keep(part: bytes) -> None:
            target.write(part)
            target.flush()
            self._show(len(part))

        async def write(part: bytes) -> None:
            await trio.to_thread.run_sync(keep, part)

        trio.from_thread.run(self._storage.copy, self._get(name), start, end, write)

    def _show(self, more_bytes: int) -> None:
        self._read_bytes += more_bytes
        if time.monotonic() - self._shown_at > SHOWN_EVERY_S:
            self._shown_at = time.monotonic()
            _log.info("reading the model", address=self.address, read_bytes=self._read_bytes)

    def _get(self, name: str) -> StoredFile:
        files = self._list()
        if name not in files:
            raise TrainerError(f"{self.address}/{name}: there is no such file")
        return files[name]

    def get_version(self, name: str) -> str:
        return self._list()[name].version

    def _list(self) -> dict[str, StoredFile]:
        if self._files is None:
            files = trio.from_thread.run(self._storage.list_files)
            self.address = self._storage.address  # now with the commit
            self.revision = getattr(self._storage, "revision", None)
            self._files = {file.name: file for file in files if "/" not in file.name}
        return self._files


def open_storage(source: Checkpoint, options: StorageOptions) -> "HttpStorage | None":
    """Open the storage of a source of weights; None: it is none.

    Raises:
        StorageRefused: the name is none of a repository or bucket.
    """
    match source.kind:
        case CheckpointKind.HUB:
            from psyche.storage.hub import open_hub

            return open_hub(source.name, source.revision, options)
        case CheckpointKind.GCS:
            from psyche.storage.bucket import open_bucket

            return open_bucket(source.name, source.revision or "", options)
        case _:
            return None


def use_model_files(
    source: Checkpoint, folder: Path | None, use: Callable[[ModelFiles], T], options: StorageOptions | None = None
) -> T | None:
    """Call `use` with the files of a source of weights; None if they are in no storage and not in `folder` either.

    Blocks, with or without trio around it. Without `options`, those of the environment count.

    Raises:
        StorageError, TrainerError: as `ModelFiles`; StorageRefused also if the source's name is none.
    """
    storage = open_storage(source, options or read_environment())
    if storage is None:
        return None if folder is None or not folder.is_dir() else use(FolderFiles(folder))
    return _run(_use_storage, storage, use)


async def read_in_thread(function: Callable[..., T], *args: object) -> T:
    """Run what reads `StorageFiles` in a thread that takes no place among trio's own.

    It holds its thread while the storage answers, which takes threads too: enough such readers would wait for ever.
    """
    return await trio.to_thread.run_sync(function, *args, limiter=trio.CapacityLimiter(1))


async def _use_storage(storage: "HttpStorage", use: Callable[[ModelFiles], T]) -> T:
    async with aclosing(storage):
        return await read_in_thread(use, StorageFiles(storage))


def _run(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run an async function from a thread of trio in its loop, so that it is cancelled with it; else in its own."""
    try:
        trio.from_thread.check_cancelled()
    except RuntimeError:
        return trio.run(function, *args)
    return trio.from_thread.run(function, *args)


def read_small_files(files: ModelFiles) -> dict[str, bytes]:
    """Read a model's small files (`FILE_NAMES`: config, tokenizer and the like), by name; their sizes come first."""
    found = {name: size for name, size in files.get_sizes().items() if name in FILE_NAMES}
    if (size_bytes := sum(found.values())) > MAX_MODEL_FILES_BYTES:
        raise TrainerError(
            f"model folder {files.address}: {', '.join(sorted(found))} have {size_bytes} bytes in all, at most "
            f"{MAX_MODEL_FILES_BYTES} are allowed; remove files that the model does not need"
        )
    return {name: files.read(name, 0, size) for name, size in sorted(found.items())}
