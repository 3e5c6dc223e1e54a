"""Real servers on ports of this machine: caddy for files, fake-gcs-server for buckets."""

import os
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from psyche.storage.port import StorageOptions

OPTIONS: Final = StorageOptions(allow_private_hosts=True)
CONTENT: Final = {"a.bin": Random(1).randbytes(300_000), "deep/b.bin": Random(2).randbytes(70_000), "empty.bin": b""}
PROGRAMS: Final = Path(sys.executable).parent


@contextmanager
def serve_folder(folder: Path) -> Generator[str]:
    """Serve a folder's files with caddy, with ETags and ranges; its address, without "/" at the end."""
    listening = socket.create_server(("127.0.0.1", 0))  # handed over, so that nobody else gets the port
    own = folder.parent / f"{folder.name}.caddy"
    process = subprocess.Popen(
        [PROGRAMS / "caddy", "file-server", "--listen", f"fd/{listening.fileno()}", "--root", folder],
        pass_fds=[listening.fileno()],
        stderr=subprocess.DEVNULL,
        env=os.environ | {"XDG_DATA_HOME": str(own), "XDG_CONFIG_HOME": str(own)},
    )
    with ending(process):
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.close()


def write_files(folder: Path, content: Mapping[str, bytes] = CONTENT) -> None:
    for name, raw in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)


@contextmanager
def ending(process: subprocess.Popen[bytes]) -> Generator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()
