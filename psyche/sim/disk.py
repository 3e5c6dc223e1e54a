"""Simulated disks: the server's files in memory, and the conditions of every machine's disk.

The server's disk keeps the journal's promise: the data of `append` and `replace` is durable when they return.
A killed process leaves the files as they are; one that is killed during a write leaves a part of that write.
The clients' files are in a real temporary folder; while a disk is full, writes to it fail.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from psyche.server.journal.journal import JournalDisk

WRITERS: Final = frozenset(
    {"_write_file", "_open", "_write", "_assemble", "_finish", "check_room", "write"}
)  # names of a client's blocking functions that need room on its disk


@dataclass(slots=True)
class DiskConditions:
    """The present condition of a machine's disk.

    `sync_s` is how long a write takes; `fills` counts the running faults that fill the disk, `slowed_s` has the
    write times of the running faults that slow it.
    """

    sync_s: float = 0.0
    fills: int = 0
    slowed_s: list[float] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return self.fills > 0

    @property
    def write_s(self) -> float:
        return max((self.sync_s, *self.slowed_s))

    def check_room(self) -> None:
        """Refuse to write on a full disk.

        Raises:
            OSError: it is full.
        """
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")


def is_writer(function: Callable[..., Any]) -> bool:
    return getattr(function, "__name__", "") in WRITERS


@dataclass(slots=True, eq=False)
class ServerFiles:
    """The server's files; they survive its processes.

    `on_append` (its flag: the write was torn) and `on_replace` are called with what has reached the disk. `tear_after`
    is the number of bytes that may still be written: a write beyond it is torn there, the machine
    fails, and every callback in `on_torn` is called once.
    """

    conditions: DiskConditions = field(default_factory=DiskConditions)
    files: dict[str, bytearray] = field(default_factory=dict)
    on_append: Callable[[str, bytes, bool], None] = lambda _name, _data, _is_torn: None
    on_replace: Callable[[str, bytes], None] = lambda _name, _data: None
    on_torn: list[Callable[[], None]] = field(default_factory=list)
    tear_after: int | None = None

    def open(self) -> "DiskHandle":
        return DiskHandle(self)

    def copy(self) -> "ServerFiles":
        return ServerFiles(files={name: bytearray(data) for name, data in self.files.items()})

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.files.values()))


class DiskHandle(JournalDisk):
    """A `JournalDisk`; after `revoke` no write reaches the disk."""

    def __init__(self, disk: ServerFiles) -> None:
        self._disk = disk
        self._is_revoked = False

    def revoke(self) -> None:
        self._is_revoked = True

    def close(self) -> None: ...

    def names(self) -> list[str]:
        return sorted(self._disk.files)

    def read(self, name: str) -> bytes:
        return bytes(self._disk.files[name])

    def append(self, name: str, data: bytes) -> None:
        if self._is_revoked:
            return
        self._disk.conditions.check_room()
        file = self._disk.files.setdefault(name, bytearray())
        if self._tears(len(data)):
            part = data[: self._disk.tear_after or 0]
            file += part
            self._disk.on_append(name, part, True)
            self._fail()
        file += data
        self._disk.on_append(name, data, False)

    def replace(self, name: str, data: bytes) -> None:
        if self._is_revoked:
            return
        self._disk.conditions.check_room()
        if self._tears(len(data)):
            self._fail()  # the old file stays: the new one was never renamed into place
        self._disk.files[name] = bytearray(data)
        self._disk.on_replace(name, data)

    def truncate(self, name: str, size_bytes: int) -> None:
        if not self._is_revoked:
            del self._disk.files[name][size_bytes:]

    def remove(self, name: str) -> None:
        if not self._is_revoked:
            self._disk.files.pop(name, None)

    def _tears(self, size_bytes: int) -> bool:
        left = self._disk.tear_after
        if left is None:
            return False
        if size_bytes > left:
            return True
        self._disk.tear_after = left - size_bytes
        return False

    def _fail(self) -> None:
        self._disk.tear_after = None
        self._is_revoked = True
        waiting, self._disk.on_torn = self._disk.on_torn, []
        for notify in waiting:
            notify()
        raise OSError(errno.EIO, "Input/output error")
