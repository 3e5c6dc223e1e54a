"""The port through which a client gets its samples, and what opens the right one."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio

from psyche.core.state.state import DataLocation, DataLocationKind
from psyche.errors import DataError
from psyche.wire.crypto import Identity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class SampleSource(Protocol):
    """Rows of token ids by index, read where they lie; blocking."""

    sequence_length: int
    token_size_bytes: int
    num_sequences: int

    def samples(self, start: int, end: int) -> "NDArray[np.uint32]":
        """The rows `start` to `end`, both included: uint32 [rows, sequence_length]."""
        ...


class DataProvider(Protocol):
    """Samples for a client."""

    sequence_length: int

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:
        """The rows `start` to `end`, both included, as u32 little-endian ids; never fewer than asked for.

        `epoch` and `height` name the round they are for; a data server checks them.

        Raises:
            DataError: they cannot be had; the message names file or server and the reason.
        """
        ...

    async def aclose(self) -> None:
        """Close what is open."""
        ...


class LocalProvider:
    """Samples of a source on this machine, read in a thread."""

    def __init__(self, source: SampleSource) -> None:
        self.source = source
        self.sequence_length = source.sequence_length

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:  # noqa: ARG002 (port)
        """The rows as u32 little-endian ids; cancellation waits for the read, which is short."""
        return await trio.to_thread.run_sync(self._read, start, end)

    async def aclose(self) -> None:
        """Nothing to close: maps go with the object."""
        await trio.lowlevel.checkpoint()

    def _read(self, start: int, end: int) -> bytes:
        return self.source.samples(start, end).astype("<u4", copy=False).tobytes()


class LocalFiles(Protocol):
    """How to read local files, as a data.toml says (`psyche.config` loads it)."""

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        ...

    @property
    def token_size_bytes(self) -> int:
        """2 or 4."""
        ...

    @property
    def sequence_length(self) -> int:
        """Ids of a row."""
        ...

    @property
    def shuffle_seed(self) -> bytes | None:
        """32 bytes; None: not shuffled."""
        ...


def open_files(files: LocalFiles, vocab_size: int | None) -> SampleSource:
    """The rows of local files, for a client or a data server.

    Raises:
        DataError: they cannot be used.
    """
    from psyche.data.local import TokenRows

    return TokenRows([files.folder], files.token_size_bytes, files.sequence_length, files.shuffle_seed, vocab_size)


def open_path(path: Path, sequence_length: int, vocab_size: int | None) -> SampleSource:
    """The rows of a file or folder that no data.toml describes: not shuffled, token size as the files say.

    Raises:
        DataError: they cannot be used.
    """
    from psyche.data.files import find_token_size
    from psyche.data.local import TokenRows

    return TokenRows([path], find_token_size(path, vocab_size), sequence_length, None, vocab_size)


def open_provider(
    location: DataLocation,
    *,
    sequence_length: int,
    vocab_size: int | None,
    folder: Path,
    identity: Identity,
    files: LocalFiles | None = None,
    expected_server: bytes | None = None,
) -> DataProvider:
    """The provider that a run's `data_location` names.

    Args:
        location: from the record.
        sequence_length: the model's `max_seq_len`.
        vocab_size: every id is checked against it; None: not checked.
        folder: where relative local paths begin.
        identity: the client's p2p key, by which a data server knows it.
        files: what the data.toml says that a Local location names, if it names one.
        expected_server: the data server's key, which is the coordinator server's; None: any.

    Raises:
        DataError: the data cannot be used, or this kind of location is not built.
    """
    match location.kind:
        case DataLocationKind.DUMMY:
            from psyche.data.dummy import DummyData

            return LocalProvider(DummyData(sequence_length, vocab_size))
        case DataLocationKind.LOCAL if files is not None:
            if files.sequence_length != sequence_length:
                raise DataError(
                    f"{files.folder}: seq_len of its data.toml is {files.sequence_length}, "
                    f"the model's max_seq_len {sequence_length}; they must be the same"
                )
            return LocalProvider(open_files(files, vocab_size))
        case DataLocationKind.LOCAL:
            path = folder / Path(location.address).expanduser()
            return LocalProvider(open_path(path, sequence_length, vocab_size))
        case DataLocationKind.SERVER:
            from psyche.data.client import RemoteData

            return RemoteData(
                location.address,
                identity,
                sequence_length=sequence_length,
                vocab_size=vocab_size,
                expected_server=expected_server,
            )
        case _:
            raise DataError(f"data location {location.kind.name}: cannot be used yet; use Local, Server or Dummy")
