"""Simulated disks: the server's files in memory, and the conditions of every machine's disk.

The server's disk keeps what its journal was promised: `append` and `replace` are there when they return.
A process that is killed leaves what was there; one that is killed within a write leaves a part of it.
The clients' files lie in a real temporary folder; a full disk refuses them what they write.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from psyche.server.journal.journal import JournalDisk

WRITERS: Final = frozenset(
    {"_write_file", "_open", "_write", "_assemble", "_finish", "check_room", "write"}
)  # blocking functions of a client that need room on its disk, by name


@dataclass(slots=True)
class DiskConditions:
    """What a machine's disk is like now.

    `sync_s` is how long a write takes; `fills` are the faults under way that fill it, `slowed_s` what those
    under way that slow it say.
    """

    sync_s: float = 0.0
    fills: int = 0
    slowed_s: list[float] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether it takes nothing."""
        return self.fills > 0

    @property
    def write_s(self) -> float:
        """How long a write takes now."""
        return max((self.sync_s, *self.slowed_s))

    def check_room(self) -> None:
        """Refuse to write on a full disk.

        Raises:
            OSError: it is full.
        """
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")


def is_writer(function: Callable[..., Any]) -> bool:
    """Whether a blocking function writes."""
    return getattr(function, "__name__", "") in WRITERS


@dataclass(slots=True, eq=False)
class ServerFiles:
    """The server's files; survives its processes.

    `on_append` (told whether its last bytes are torn) and `on_replace` hear what has reached the disk. With
    `tear_after` a write that would bring the bytes written since to more than that stops there: the machine
    fails, and all that wait for it in `on_torn` are told, once.
    """

    conditions: DiskConditions = field(default_factory=DiskConditions)
    files: dict[str, bytearray] = field(default_factory=dict)
    on_append: Callable[[str, bytes, bool], None] = lambda _name, _data, _is_torn: None
    on_replace: Callable[[str, bytes], None] = lambda _name, _data: None
    on_torn: list[Callable[[], None]] = field(default_factory=list)
    tear_after: int | None = None

    def open(self) -> "DiskHandle":
        """The disk as one process has it."""
        return DiskHandle(self)

    def copy(self) -> "ServerFiles":
        """The same files, for whoever only wants to look."""
        return ServerFiles(files={name: bytearray(data) for name, data in self.files.items()})

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self.files.values()))


class DiskHandle(JournalDisk):
    """A `JournalDisk`; after `revoke` nothing that is written reaches the disk."""

    def __init__(self, disk: ServerFiles) -> None:
        self._disk = disk
        self._is_revoked = False

    def revoke(self) -> None:
        """The process is dead."""
        self._is_revoked = True

    def close(self) -> None:
        """Let the folder go."""

    def names(self) -> list[str]:
        """The files there are."""
        return sorted(self._disk.files)

    def read(self, name: str) -> bytes:
        """A file's whole content."""
        return bytes(self._disk.files[name])

    def append(self, name: str, data: bytes) -> None:
        """Add to a file's end; raises OSError on a full or failing disk."""
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
        """Put a whole file in the place of the old one; raises OSError on a full or failing disk."""
        if self._is_revoked:
            return
        self._disk.conditions.check_room()
        if self._tears(len(data)):
            self._fail()  # the old one stays: the new one never got its name
        self._disk.files[name] = bytearray(data)
        self._disk.on_replace(name, data)

    def truncate(self, name: str, size_bytes: int) -> None:
        """Cut a file."""
        if not self._is_revoked:
            del self._disk.files[name][size_bytes:]

    def remove(self, name: str) -> None:
        """Delete a file; one that is gone already is no error."""
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
