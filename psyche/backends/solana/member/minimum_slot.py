"""The newest slot that a client has acted on, kept over its restarts (M9).

After a restart all endpoints that answer may be behind what this client knew. Acting on their older record, it could
sign a second result for a round.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from psyche.durable import make_folder, read_file, replace_file
from psyche.errors import BackendError

MAX_FLOOR_BYTES: Final = 64


class SlotFloor(Protocol):
    def read(self) -> int: ...

    def write(self, slot: int) -> None: ...


class NoFloor:
    """Keeps nothing: for clients that never start again."""

    def read(self) -> int:
        return 0

    def write(self, slot: int) -> None: ...


@dataclass(frozen=True, slots=True)
class FileFloor:
    """Keeps the slot in a file; one for each account, since another chain counts other slots."""

    path: Path

    def read(self) -> int:
        try:
            return int(read_file(self.path, MAX_FLOOR_BYTES))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise BackendError(
                f"{self.path}: cannot be read as a slot ({error}); remove it once the run is past the round in which "
                "this client ended"
            ) from error

    def write(self, slot: int) -> None:
        try:
            make_folder(self.path.parent)
            replace_file(self.path, b"%d" % slot, self.path.with_name(f".{self.path.name}-new"))
        except OSError as error:
            raise BackendError(
                f"{self.path}: cannot be written ({error.strerror}); until it can, a restart of this client may go "
                "back behind the slot that it has seen"
            ) from error
