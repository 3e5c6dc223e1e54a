"""The interfaces of sources and providers of samples, and the functions that open them."""

from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import trio

from psyche.core.encoding.data_manifest import FindManifest
from psyche.core.state.state import ZERO32, DataLocation, DataLocationKind
from psyche.durable import expand_user
from psyche.errors import DataError
from psyche.storage.port import StorageOptions, read_environment
from psyche.wire.crypto import Identity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from psyche.data.local import TokenRows
    from psyche.data.order import RemoteSize
    from psyche.data.prepared.rows import PreparedRows

REMOTE_KINDS: Final = (DataLocationKind.HTTP, DataLocationKind.WEIGHTED_HTTP, DataLocationKind.PREPROCESSED)


class SampleSource(Protocol):
    """A source of rows of token ids on this machine, by index; reads block."""

    sequence_length: int
    token_size_bytes: int
    num_sequences: int

    def samples(self, start: int, end: int) -> "NDArray[np.uint32]":
        """The rows `start` to `end`, both included: uint32 [rows, sequence_length], with labels three times as wide."""
        ...


class DataProvider(Protocol):
    sequence_length: int

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:
        """Get the rows `start` to `end`, both included, as u32 little-endian ids; with labels as `wire.data` has them.

        `epoch` and `height` name the round that the rows are for; a data server checks them.

        Raises:
            DataError: the rows are not available; the message names the file or server and the reason.
        """
        ...

    async def aclose(self) -> None: ...


class RemoteRows(DataProvider, Protocol):
    """Rows of files elsewhere, which say how many there are."""

    async def measure(self) -> "RemoteSize":
        """List the files, once.

        Raises:
            DataError: they cannot be listed, or hold no row.
        """
        ...


class LocalProvider:
    def __init__(self, source: SampleSource) -> None:
        self.source = source
        self.sequence_length = source.sequence_length

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:  # noqa: ARG002 (port)
        """Get the rows as u32 little-endian ids; cancellation waits for the end of the (short) read."""
        return await trio.to_thread.run_sync(self._read, start, end)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def _read(self, start: int, end: int) -> bytes:
        return self.source.samples(start, end).astype("<u4", copy=False).tobytes()


class LocalFiles(Protocol):
    """The settings of a data.toml for local files (loaded by `psyche.config`)."""

    @property
    def folder(self) -> Path: ...

    @property
    def token_size_bytes(self) -> int: ...

    @property
    def sequence_length(self) -> int: ...

    @property
    def shuffle_seed(self) -> bytes | None: ...


def open_files(files: LocalFiles, vocab_size: int | None, *, has_labels: bool = False) -> "TokenRows | PreparedRows":
    from psyche.data.local import TokenRows
    from psyche.data.prepared.rows import open_rows

    if has_labels:
        return open_rows(
            files.folder, files.sequence_length, has_labels=True, shuffle_seed=files.shuffle_seed, vocab_size=vocab_size
        )
    return TokenRows([files.folder], files.token_size_bytes, files.sequence_length, files.shuffle_seed, vocab_size)


def open_local(
    location: DataLocation, files: LocalFiles | None, folder: Path, sequence_length: int, vocab_size: int | None
) -> "TokenRows":
    """Open the files of a Local location; without a data.toml, rows are not shuffled, the files give the token size."""
    from psyche.data.files import find_token_size
    from psyche.data.local import TokenRows

    if files is None:
        path = folder / expand_user(location.address)
        return TokenRows([path], find_token_size(path, vocab_size), sequence_length, None, vocab_size)
    if files.sequence_length != sequence_length:
        raise DataError(
            f"{files.folder}: seq_len of its data.toml is {files.sequence_length}, but "
            f"the model's max_seq_len is {sequence_length}; they must be equal"
        )
    return TokenRows([files.folder], files.token_size_bytes, sequence_length, files.shuffle_seed, vocab_size)


def find_rows(location: DataLocation, folder: Path) -> Path:
    """Where the rows of a Preprocessed location would be on this machine; else they are on the Hub."""
    return folder / expand_user(location.address)


def has_own_rows(location: DataLocation, folder: Path) -> bool:
    return location.kind is DataLocationKind.PREPROCESSED and find_rows(location, folder).exists()


def open_provider(
    location: DataLocation,
    *,
    sequence_length: int,
    vocab_size: int | None,
    folder: Path,
    identity: Identity,
    files: LocalFiles | None = None,
    expected_server: bytes | None = None,
    storage: StorageOptions | None = None,
    has_labels: bool = False,
    root: bytes = ZERO32,
    find_manifest: FindManifest | None = None,
) -> DataProvider:
    """Open the provider for a run's `data_location`.

    `folder` is where relative local paths start; `files` is the data.toml of a Local location, if it names one.
    `expected_server` is the data server's public key, the same as the coordinator server's; None: any.
    `storage` says how remote files are read; None: as the environment says. `has_labels`: for fine-tuning.
    `root` is the id of the manifest of files elsewhere, which `find_manifest` finds (D1).
    """
    match location.kind:
        case DataLocationKind.DUMMY:
            from psyche.data.dummy import DummyData

            return LocalProvider(DummyData(sequence_length, vocab_size))
        case DataLocationKind.LOCAL:
            return LocalProvider(open_local(location, files, folder, sequence_length, vocab_size))
        case DataLocationKind.SERVER:
            from psyche.data.client import RemoteData

            return RemoteData(
                location.address,
                identity,
                sequence_length=sequence_length,
                vocab_size=vocab_size,
                expected_server=expected_server,
                has_labels=has_labels,
            )
        case DataLocationKind.PREPROCESSED if has_own_rows(location, folder):
            from psyche.data.prepared.rows import open_rows

            path = find_rows(location, folder)
            return LocalProvider(open_rows(path, sequence_length, has_labels=has_labels, vocab_size=vocab_size))
        case _:
            return open_remote_rows(
                location, storage or read_environment(), sequence_length=sequence_length, vocab_size=vocab_size,
                has_labels=has_labels, root=root, find_manifest=find_manifest,
            )  # fmt: skip


def open_remote_rows(
    location: DataLocation,
    options: StorageOptions,
    *,
    sequence_length: int,
    vocab_size: int | None,
    has_labels: bool = False,
    root: bytes = ZERO32,
    find_manifest: FindManifest | None = None,
) -> RemoteRows:
    """Open data over HTTP, a mix, or prepared rows of the Hub, as `open_provider` does.

    Raises:
        DataError: the location can be none of these.
    """
    if location.kind is DataLocationKind.HTTP:
        from psyche.data.stored import open_http_rows

        return open_http_rows(
            location, options, sequence_length=sequence_length, vocab_size=vocab_size, root=root,
            find_manifest=find_manifest,
        )  # fmt: skip
    if location.kind is DataLocationKind.WEIGHTED_HTTP:
        from psyche.data.weighted import WeightedRows

        return WeightedRows(location.address, options, sequence_length=sequence_length, vocab_size=vocab_size)
    from psyche.data.prepared.remote import HubRows

    return HubRows(
        location.address, options, sequence_length, has_labels=has_labels, vocab_size=vocab_size, root=root,
        find_manifest=find_manifest,
    )  # fmt: skip
