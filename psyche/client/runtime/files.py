"""Files that a client writes for people to inspect; each is written in a worker thread."""

import json
from pathlib import Path

import trio

from psyche.telemetry.kinds import Evidence, get_plain_fields


async def write_evidence(folder: Path, epoch: int, event: Evidence) -> None:
    """Write down a replay that contradicts agreed digests, as evidence (section 9, last table)."""
    text = json.dumps(get_plain_fields(event), indent=1) + "\n"
    await trio.to_thread.run_sync(_write_file, folder / f"evidence-epoch-{epoch:05d}.json", text.encode())


async def write_distro(folder: Path, epoch: int, height: int, body: bytes) -> None:
    """Write a payload as it was announced."""
    await trio.to_thread.run_sync(_write_file, folder / f"epoch-{epoch:05d}-round-{height:06d}.distro", body)


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
