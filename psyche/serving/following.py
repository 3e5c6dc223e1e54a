"""The newest certified weights of a client's data folder, as a model's folder for an engine."""

from collections import deque
from pathlib import Path
from typing import Final

from psyche.errors import ConfigError
from psyche.modeling.snapshot import SnapshotInfo, list_snapshots, read_snapshot_files, write_model_files
from psyche.modeling.user_files import build_user_files
from psyche.modeling.weight_files import write_snapshot_folder
from psyche.serving.model import ServedModel
from psyche.telemetry import types
from psyche.telemetry.events import EventTail, read_event

MAX_AGREED: Final = 1 << 16
EVENTS_NAME: Final = "events.jsonl"


class Follower:
    """Looks at a client's snapshots, of which those are certified whose digest its log calls the agreed one.

    `copies` is where weights are put for engines. All of it blocks: call it in a thread.
    """

    def __init__(self, data_dir: Path, events: Path | None, copies: Path) -> None:
        self._snapshots = data_dir / "resume"
        self._tail = EventTail(_find_log(data_dir, events), older=True)
        self._copies = copies
        self._agreed = deque[bytes](maxlen=MAX_AGREED)
        self._run = data_dir.resolve().name
        self._given = b""

    def find(self) -> ServedModel | None:
        """The newest certified weights, unless they were given before.

        Raises:
            TrainerError: they are damaged.
            OSError: they have gone meanwhile, as old snapshots do, or there is no room for a copy.
        """
        self._read_log()
        agreed = set(self._agreed)
        found = next((one for one in list_snapshots(self._snapshots) if one.digest in agreed), None)
        if found is None or found.digest == self._given:
            return None
        model = self._copy(found)
        self._given = found.digest
        return model

    def _read_log(self) -> None:
        while lines := self._tail.read():
            for line in lines:
                match read_event(line):
                    case types.ClientStarted(run_id=run):
                        self._run = run
                    case types.Digest(digest=digest, agreed=True) | types.WarmupReady(digest=digest):
                        self._agreed.append(bytes(digest))
                    case _:
                        pass

    def _copy(self, info: SnapshotInfo) -> ServedModel:
        folder = self._copies / info.digest.hex()[:16]
        write_snapshot_folder(folder, info, f"step {info.step} of {self._run}\n")
        write_model_files(folder, build_user_files(read_snapshot_files(info), "float32"))
        return ServedModel(folder, self._run, info.step, info.digest.hex(), is_copy=True)


def _find_log(data_dir: Path, events: Path | None) -> Path:
    """Where the client writes its log: its data folder, or where a testnet puts it."""
    if not data_dir.is_dir():
        raise ConfigError(f"--follow {data_dir}: there is no such folder; name the data folder of a client")
    places = [data_dir / EVENTS_NAME, data_dir.resolve().parent / "events" / data_dir.resolve().name / EVENTS_NAME]
    if events is not None:
        places = [events / EVENTS_NAME if events.is_dir() else events]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ConfigError(
            f"--follow {data_dir}: no event log at {' or '.join(map(str, places))}; name it with --events: it says "
            "which weights are certified"
        )
    return found
