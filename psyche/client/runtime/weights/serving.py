"""What this client serves to peers: announcements, witness tables, manifests and tensors."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import trio

from psyche.client.engine.round_engine import RoundEngine
from psyche.modeling.snapshot import read_snapshot_info
from psyche.wire.msgpack import UNREADABLE
from psyche.wire.ports import Network, SyncReply, SyncRequest

NOT_FOUND: Final = SyncReply(found=False)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A peer's description of a snapshot; manifest and chain are checked against the record's digest (S9)."""

    manifest: bytes
    chain: bytes
    epoch: int
    step: int
    data_index: int


class Serving:
    def __init__(
        self, engine: RoundEngine, network: Network, measure_data: Callable[[bytes], int | None] = lambda _root: None
    ) -> None:
        self._engine = engine
        self._measure_data = measure_data
        self._network = network
        self._offers: dict[bytes, tuple[bytes, tuple[bytes, ...]]] = {}  # digest -> encoded manifest, blob ids

    async def answer(self, _peer: bytes, request: SyncRequest) -> SyncReply:
        match request.kind:
            case "announcements":
                items = self._engine.get_announcements(request.epoch, request.height, request.have)
                return SyncReply(found=bool(items), items=items)
            case "table":
                table = self._engine.tables.show(request.key)
                return NOT_FOUND if table is None else SyncReply(found=True, items=table)
            case "manifest":
                offer = self._offers.get(request.key)
                return NOT_FOUND if offer is None else SyncReply(found=True, items=(offer[0],))
            case "data":
                size = self._measure_data(request.key)
                return NOT_FOUND if size is None else SyncReply(found=True, items=(struct.pack("<Q", size),))
            case _:
                return NOT_FOUND

    async def offer(self, path: Path) -> None:
        """Serve a snapshot: its manifest by digest, its tensors and model files as blobs, read from their files."""
        info = await trio.to_thread.run_sync(read_snapshot_info, path)
        if info.digest in self._offers:
            return
        blobs = [await self._network.provide(blob.path, expires=None) for blob in info.blobs]
        offer = Offer(
            manifest=info.manifest,
            chain=info.chain,
            epoch=info.epoch,
            step=info.step,
            data_index=info.data_index,
        )
        self._offers[info.digest] = (msgspec.msgpack.encode(offer), tuple(blobs))

    async def keep_only(self, digests: frozenset[bytes]) -> None:
        """Stop serving snapshots that are no longer kept; blobs shared with a kept one stay."""
        gone = [d for d in self._offers if d not in digests]
        dropped = [self._offers.pop(d)[1] for d in gone]
        kept = {blob for _, blobs in self._offers.values() for blob in blobs}
        for blobs in dropped:
            for blob in blobs:
                if blob not in kept:
                    await self._network.withdraw(blob)


def read_offer(raw: bytes) -> Offer | None:
    try:
        return msgspec.msgpack.decode(raw, type=Offer)
    except UNREADABLE:
        return None
