"""The replay store: the decided sets of the running and the last epoch, with their payloads, on disk (S7).

One file per height, written atomically by rename; when the quota is full, the oldest epochs are removed first.
"""

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from psyche.client.engine.actions import Apply
from psyche.durable import read_file
from psyche.errors import TrainerError, WireError
from psyche.wire.msgpack import UNREADABLE
from psyche.wire.trainer import ApplyRequest

MAX_ENTRY_BYTES: Final = 4 << 30
_FOLDER: Final = re.compile(r"epoch-(\d{5})$")


Stored = tuple[Apply, tuple[bytes, ...]]  # with the bodies that it names


LOST: Final = (
    "data folder {}: it was removed while this client uses it, and its snapshots and key with it, if they lay there. "
    "This client trains on with what it has in memory; started again, it would have another key, which the run's owner "
    "would have to allow. Put the file of the key back from a copy before you start it again"
)


class ReplayStore:
    """Decided sets by (epoch, height). All methods block on the disk: call them in a thread."""

    def __init__(self, root: Path, quota_bytes: int) -> None:
        self._root = root
        self._quota_bytes = quota_bytes
        self._changing = threading.Lock()  # writing measures the store, which fails while files vanish
        root.mkdir(parents=True, exist_ok=True)

    def _get_path(self, epoch: int, height: int) -> Path:
        return self._root / f"epoch-{epoch:05d}" / f"{height:06d}.set"

    def write(self, action: Apply, bodies: tuple[bytes, ...]) -> None:
        """Store one set; make room first by removing the oldest epochs.

        Raises TrainerError if the running epoch alone fills the quota, or if somebody has removed the store meanwhile:
        then the set is stored all the same, in a new one.
        """
        raw = msgspec.msgpack.encode((action, bodies))
        path = self._get_path(action.epoch, action.height)
        with self._changing:
            is_lost = not self._root.is_dir()
            self._make_room(len(raw), action.epoch)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            temporary.write_bytes(raw)
            temporary.replace(path)
        if is_lost:
            raise TrainerError(LOST.format(self._root.parent))

    def has(self, epoch: int, height: int) -> bool:
        """Whether a set's file exists; it may still be damaged."""
        return self._get_path(epoch, height).is_file()

    def read(self, epoch: int, height: int) -> Stored | None:
        """None if it is not here; raises WireError if the file is damaged."""
        path = self._get_path(epoch, height)
        try:
            return msgspec.msgpack.decode(read_file(path, MAX_ENTRY_BYTES), type=Stored)
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            raise WireError(f"replay store {path}: damaged: {error}") from error

    def _iter_epochs(self) -> Iterator[tuple[int, Path]]:
        for folder in sorted(self._root.glob("*")):
            match = _FOLDER.search(folder.name)
            if match:
                yield int(match.group(1)), folder

    def _make_room(self, size_bytes: int, epoch: int) -> None:
        for old, folder in list(self._iter_epochs()):
            if self.get_size_bytes() + size_bytes <= self._quota_bytes:
                return
            if old != epoch:
                shutil.rmtree(folder, ignore_errors=True)
        if self.get_size_bytes() + size_bytes > self._quota_bytes:
            raise TrainerError(
                f"replay store {self._root}: its quota of {self._quota_bytes} bytes is full, "
                "so this client cannot heal in this epoch"
            )

    def keep_epochs(self, oldest: int, newest: int) -> None:
        """Drop epochs before `oldest`, which every later snapshot includes, and epochs that another run left here."""
        with self._changing:
            for epoch, folder in list(self._iter_epochs()):
                if not oldest <= epoch <= newest:
                    shutil.rmtree(folder, ignore_errors=True)

    def get_size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._root.rglob("*.set"))


def make_apply_request(action: Apply, bodies: tuple[bytes, ...]) -> ApplyRequest:
    return ApplyRequest(
        height=action.height,
        lr=action.lr,
        payloads=bodies,
        run_update=action.run_update,
        full_digest=action.full_digest,
        random_seed=action.random_seed,
        inner_steps=action.inner_steps,
    )
