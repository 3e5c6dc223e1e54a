"""The possible contents of a folder after a power loss, found by watching code as it writes to a real disk.

A file's bytes are durable when the file was synced, a name when its folder was. Later writes may
survive or not: bytes whole, half or not at all, for all files alike; names folder by folder. Appended bytes
are assumed to survive in order. Before every watched call, and at the end, each possible content is a `Loss`,
which `restore` writes out; code that reads it must find everything promised before.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

SYNCS: Final = ("fsync", "fdatasync")
CHANGES: Final = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "link")
Names = dict[int, dict[str, int]]  # by folder number: the folder's names, and the numbers of their files
Read = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Loss:
    """The contents of a folder that a power cut may leave.

    Args:
        moment: before which call, and what is lost.
        promised: what the code had promised by then.
        files: bytes by path below the folder.
    """

    moment: str
    promised: Any
    files: dict[str, bytes]
    folders: tuple[str, ...]

    def restore(self, folder: Path) -> None:
        for name in self.folders:
            (folder / name).mkdir(parents=True)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


@dataclass(eq=False)
class Watch:
    """Follows the writes below `root`; `losses` grows with them."""

    root: Path
    losses: list[Loss] = field(default_factory=list)
    promised: Any = None
    _numbers: dict[int, int] = field(default_factory=dict)  # by inode, for existing files
    _count: int = 0
    _folders: set[int] = field(default_factory=set)
    _names: Names = field(default_factory=dict)
    _bytes: dict[int, bytes] = field(default_factory=dict)
    _safe_names: Names = field(default_factory=dict)
    _safe_bytes: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Treat the present contents as durable."""
        self.scan()
        self._safe_names = {number: dict(names) for number, names in self._names.items()}
        self._safe_bytes = dict(self._bytes)

    def promise(self, what: Any) -> None:
        """Require from now on that `what` survives."""
        self.look("promise")
        self.promised = what

    def look(self, moment: str) -> None:
        self.scan()
        choices = [
            ("bytes that are not synced", self._names, self._read_safe),
            ("half of them", self._names, self._read_torn),
            ("nothing", self._names, self._read_all),
        ]
        for lost, names in self._lose_names():
            choices += [(f"names {lost}", names, self._read_all), (f"bytes, and names {lost}", names, self._read_safe)]
        for lost, names, read in choices:
            found = dict(self._walk(names, self._numbers[self.root.stat().st_ino], ""))
            files = {name: read(number) for name, number in found.items() if number not in self._folders}
            folders = tuple(name for name, number in found.items() if number in self._folders)
            loss = Loss(f"{moment}, lost: {lost}", self.promised, files, folders)
            if not any(known.files == files and known.folders == folders for known in self._get_recent()):
                self.losses.append(loss)

    def sync(self, descriptor: int) -> None:
        number = self._numbers.get(os.fstat(descriptor).st_ino)
        if number in self._folders:
            self._safe_names[number] = dict(self._names[number])
        elif number is not None:
            self._safe_bytes[number] = self._bytes[number]

    def _lose_names(self) -> Iterator[tuple[str, Names]]:
        """Lose the unsynced names of all folders, of each folder alone, and of all folders but one."""
        yield "of all folders", self._safe_names
        changed = [number for number, names in self._names.items() if self._safe_names.get(number, {}) != names]
        for number in changed if len(changed) > 1 else ():
            safe = {number: self._safe_names.get(number, {})}
            yield f"of folder {number}", self._names | safe
            yield f"of all folders but {number}", self._safe_names | {number: self._names[number]}

    def _walk(self, names: Names, folder: int, prefix: str) -> Iterator[tuple[str, int]]:
        for name, number in names.get(folder, {}).items():
            yield prefix + name, number
            yield from self._walk(names, number, f"{prefix}{name}/")

    def _get_recent(self) -> Iterator[Loss]:
        """The losses under the present promise."""
        for loss in reversed(self.losses):
            if loss.promised != self.promised:
                return
            yield loss

    def _read_safe(self, number: int) -> bytes:
        return self._safe_bytes.get(number, b"")

    def _read_all(self, number: int) -> bytes:
        return self._bytes[number]

    def _read_torn(self, number: int) -> bytes:
        safe, now = self._read_safe(number), self._bytes[number]
        if safe.startswith(now):  # truncated or unchanged
            return now
        kept = len(safe) if now.startswith(safe) else 0
        return now[: kept + (len(now) - kept) // 2]

    def scan(self) -> None:
        """Read the folder; needed after each change of names, because inodes of deleted files are reused."""
        found: dict[int, int] = {}
        self._names = {}
        self._visit(self.root, found)
        self._numbers = found

    def _visit(self, path: Path, found: dict[int, int]) -> int:
        inode = path.stat().st_ino
        number = self._numbers.get(inode)
        if number is None:
            self._count += 1
            number = self._count
        found[inode] = number
        if path.is_dir():
            self._folders.add(number)
            names = self._names[number] = {}
            for child in sorted(path.iterdir()):
                names[child.name] = self._visit(child, found)
        else:
            self._bytes[number] = path.read_bytes()
        return number


@contextmanager
def watch_disk(root: Path) -> Iterator[Watch]:
    """Follow what this process writes below `root`, an existing folder, until the block ends."""
    watch = Watch(root)
    with ExitStack() as stack:
        for name in (*SYNCS, *CHANGES):
            stack.enter_context(patch.object(os, name, _follow(watch, name, getattr(os, name))))
        yield watch
    watch.look("the end")


def _follow(watch: Watch, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def follow(*args: Any, **options: Any) -> Any:
        watch.look(f"{name} {args[0]}")
        result = call(*args, **options)
        if name in SYNCS:
            watch.sync(args[0])
        else:
            watch.scan()
        return result

    return follow
