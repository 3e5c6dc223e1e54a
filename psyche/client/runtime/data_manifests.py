"""The manifest of a run's data: found on this machine, at peers or at the server, and offered to others (D1)."""

import struct
from pathlib import Path
from typing import Final

import structlog
import trio

from psyche.backends.port import Backend
from psyche.core.encoding.data_manifest import MAX_DATA_MANIFEST_BYTES, DataManifest, decode_data_manifest
from psyche.data.local import read_data_manifest
from psyche.durable import make_folder, replace_file
from psyche.errors import BackendError, DataError, NetworkError, WireError
from psyche.wire.crypto import blob_id_of
from psyche.wire.ports import Network, SyncRequest

ASK_TIMEOUT_S: Final = 5.0
FETCH_TIMEOUT_S: Final = 60.0
_log: Final = structlog.get_logger("psyche.data")


class DataManifests:
    """Finds manifests by their ids; each that was found is kept in `folder` and served to peers.

    `own` is where this machine would have it.
    """

    def __init__(self, network: Network, backend: Backend, folder: Path, own: Path | None) -> None:
        self._network = network
        self._backend = backend
        self._folder = folder
        self._own = own
        self._sizes: dict[bytes, int] = {}

    def measure(self, root: bytes) -> int | None:
        """The size in bytes of a manifest that is served."""
        return self._sizes.get(root)

    async def find(self, root: bytes) -> DataManifest | None:
        """Find a manifest; None if nobody gives it now.

        Raises:
            DataError: what has this id is no manifest.
        """
        path = self._folder / root.hex()
        own = await trio.to_thread.run_sync(read_data_manifest, (path, self._own), root)
        if own is None and self._own is not None and self._own.is_file():
            _log.warning("data_manifest_is_of_other_data", file=str(self._own), data_root=root.hex())
        raw = own or await self._ask_peers(root, path) or await self._ask_server(root)
        if raw is None:
            return None
        try:
            manifest = await trio.to_thread.run_sync(decode_data_manifest, raw)
        except WireError as error:
            raise DataError(f"config.data_root: what has this id is no data manifest: {error}") from error
        if root not in self._sizes:
            await trio.to_thread.run_sync(_write, path, raw)
            await self._network.provide(path, expires=None)
            self._sizes[root] = len(raw)
        return manifest

    async def _ask_peers(self, root: bytes, path: Path) -> bytes | None:
        sources: dict[int, list[bytes]] = {}

        async def ask(peer: bytes) -> None:
            try:
                reply = await self._network.ask(peer, SyncRequest("data", key=root), timeout_s=ASK_TIMEOUT_S)
            except NetworkError:
                return
            if reply.found and reply.items and len(reply.items[0]) == 8:
                sources.setdefault(struct.unpack("<Q", reply.items[0])[0], []).append(peer)

        async with trio.open_nursery() as nursery:
            for peer in sorted(self._network.connected()):
                nursery.start_soon(ask, peer)
        deadline = trio.current_time() + FETCH_TIMEOUT_S
        for size_bytes, peers in sorted(sources.items(), key=lambda item: -len(item[1])):
            if size_bytes > MAX_DATA_MANIFEST_BYTES:
                continue
            try:  # the id covers the size, so a wrong one brings nothing
                make_folder(self._folder)
                await self._network.fetch_many([(root, size_bytes)], peers, self._folder, deadline=deadline)
            except NetworkError as error:
                _log.info("data_manifest_not_fetched", reason=str(error))
            else:
                return await trio.to_thread.run_sync(read_data_manifest, (path,), root)
        return None

    async def _ask_server(self, root: bytes) -> bytes | None:
        raw = bytearray()
        if self._backend.ask_data_manifest is None:
            return None
        with trio.move_on_after(FETCH_TIMEOUT_S):
            try:
                size_bytes, part = await self._backend.ask_data_manifest(0)
                while part and len(raw) < size_bytes <= MAX_DATA_MANIFEST_BYTES:
                    raw += part
                    if len(raw) < size_bytes:
                        _, part = await self._backend.ask_data_manifest(len(raw))
            except BackendError as error:
                _log.info("data_manifest_not_fetched", reason=str(error))
        is_right = await trio.to_thread.run_sync(blob_id_of, bytes(raw)) == root
        return bytes(raw) if is_right else None


def _write(path: Path, raw: bytes) -> None:
    make_folder(path.parent)
    replace_file(path, raw, path.with_suffix(".part"))
