"""A model's files, wherever they are; each part is read as it is needed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from psyche.core.encoding.manifest import FILE_NAMES, MAX_MODEL_FILES_BYTES
from psyche.durable import open_file
from psyche.errors import TrainerError


class ModelFiles(Protocol):
    """The files of a model; every call blocks.

    Raises:
        TrainerError: a file is not there or cut off.
    """

    address: str
    piece_bytes: int  # how much to read at once of what is long: whole MiB

    def get_sizes(self) -> Mapping[str, int]:
        """The sizes in bytes of the files of the top folder, by name."""
        ...

    def read(self, name: str, start: int, end: int) -> bytes:
        """Read the bytes `start` to `end` (excluded), exactly."""
        ...


class FolderFiles:
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


def read_small_files(files: ModelFiles) -> dict[str, bytes]:
    """Read a model's small files (`FILE_NAMES`: config, tokenizer and the like), by name; their sizes come first."""
    found = {name: size for name, size in files.get_sizes().items() if name in FILE_NAMES}
    if (size_bytes := sum(found.values())) > MAX_MODEL_FILES_BYTES:
        raise TrainerError(
            f"model folder {files.address}: {', '.join(sorted(found))} have {size_bytes} bytes in all, at most "
            f"{MAX_MODEL_FILES_BYTES} are allowed; remove files that the model does not need"
        )
    return {name: files.read(name, 0, size) for name, size in sorted(found.items())}
