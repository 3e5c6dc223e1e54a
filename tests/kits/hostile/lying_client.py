"""A client that shows peers another model than the run's: `python lying_client.py KIND client train ...`.

It loads and trains what every client does. `late` lies about nothing: it has no weights for anybody until `GATE` is
there, as a peer that is still writing its snapshot has none.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from psyche.cli.main import main
from psyche.client.runtime.weights.serving import Serving
from psyche.modeling import snapshot as disk
from psyche.wire.crypto import blake3_hash

GATE: Final = "LATE_UNTIL"  # names a file
POLL_S: Final = 0.2


def name_code(info: disk.SnapshotInfo) -> disk.SnapshotInfo:
    config = info.path / disk.MODEL_NAME / disk.CONFIG_NAME
    code = {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}
    config.write_text(json.dumps(json.loads(config.read_bytes()) | code))
    return replace(info, files=disk.read_file_entries(config.parent))


def drop_tensor(info: disk.SnapshotInfo) -> disk.SnapshotInfo:
    return replace(info, entries=info.entries[:-1])


def write_info(shown: Path, change: Callable[[disk.SnapshotInfo], disk.SnapshotInfo]) -> None:
    """Make the description fit: all that a liar can do but break a hash."""
    info = change(disk.read_snapshot_info(shown))
    (shown / disk.MANIFEST_NAME).write_bytes(info.manifest)
    disk.write_info(shown, replace(info, weight_root=blake3_hash(info.manifest)), None)


def spoil_values(shown: Path) -> None:
    """NaN under the ids of the right values, in files that look unchanged."""
    for path in (shown / disk.TENSORS_NAME).iterdir():
        stamp = path.stat()
        path.write_bytes(b"\xff" * stamp.st_size)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


LIES: Final[dict[str, Callable[[disk.SnapshotInfo], disk.SnapshotInfo]]] = {"code": name_code, "tensors": drop_tensor}


def lie(kind: str) -> None:
    honest = Serving.offer

    async def offer(self: Serving, path: Path) -> None:
        shown = path.parent.parent / "shown" / path.name
        if shown.exists():
            return
        shutil.copytree(path, shown)
        if kind in LIES:
            write_info(shown, LIES[kind])
        await honest(self, shown)
        if kind == "values":
            spoil_values(shown)

    Serving.offer = offer


def be_late() -> None:
    honest = Serving.offer

    async def offer(self: Serving, path: Path) -> None:
        while not await trio.Path(os.environ[GATE]).exists():
            await trio.sleep(POLL_S)
        await honest(self, path)

    Serving.offer = offer


if __name__ == "__main__":
    chosen = sys.argv.pop(1)
    be_late() if chosen == "late" else lie(chosen)
    main()
