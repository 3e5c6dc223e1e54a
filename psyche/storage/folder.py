"""A folder of this machine as a storage: hidden files and links that lead nowhere are left out."""

import os
from pathlib import Path
from typing import Final

import trio

from psyche.durable import open_file
from psyche.errors import StorageError, StorageRefused
from psyche.storage.port import StoredFile, check_range, sort_files


class FolderStorage:
    """A file's version is its size with the time of its last change."""

    def __init__(self, path: Path) -> None:
        self.address = os.fspath(path)
        self._path = path
        self._files: tuple[StoredFile, ...] | None = None

    async def list_files(self) -> tuple[StoredFile, ...]:
        if self._files is None:
            self._files = await trio.to_thread.run_sync(self._list)
        return self._files

    async def read(self, file: StoredFile, start: int, end: int) -> bytes:
        check_range(self.address, file, start, end)
        return await trio.to_thread.run_sync(self._read, file, start, end)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def _list(self) -> tuple[StoredFile, ...]:
        if not self._path.is_dir():
            raise StorageRefused(f"{self.address}: no such folder")
        paths = (path for path in self._path.rglob("*") if path.is_file())
        names = ((path, path.relative_to(self._path)) for path in paths)
        files = (
            StoredFile(name.as_posix(), path.stat().st_size, _get_version(path.stat()))
            for path, name in names
            if not any(part.startswith(".") for part in name.parts)
        )
        try:
            return sort_files(self.address, files)
        except OSError as error:
            raise StorageError(f"{self.address}: {error.strerror}") from error

    def _read(self, file: StoredFile, start: int, end: int) -> bytes:
        place = f"{self.address}/{file.name}"
        try:
            with open_file(self._path / file.name) as opened:
                if _get_version(os.fstat(opened.fileno())) != file.version:
                    raise StorageRefused(f"{place}: another version")
                opened.seek(start)
                raw = opened.read(end - start)
        except OSError as error:
            raise StorageError(f"{place}: {error.strerror}") from error
        if len(raw) != end - start:
            raise StorageError(f"{place}: ends early")
        return raw


def _get_version(found: os.stat_result) -> str:
    return f"{found.st_size}-{found.st_mtime_ns}"


open_folder: Final = FolderStorage
