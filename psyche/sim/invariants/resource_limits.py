"""Measures what the machines of a world keep in memory and on disk, and checks it against limits (I6)."""

import os
from pathlib import Path
from typing import Final

import trio

from psyche.backends.tcp.backend import MAX_PENDING
from psyche.client.runtime.shell import FETCHES
from psyche.client.runtime.trainer_tasks import QUEUE
from psyche.network.streams import PROTOCOLS
from psyche.sim.invariants.views import ClientStatistics, NoteSize, WorldView
from psyche.wire.crypto import BLOB_CHUNK_BYTES

MAX_RECORDS: Final = 16  # rounds that a client remembers: four in the state, and those that it is behind
MAX_BODIES_PER_MEMBER: Final = 16
MAX_SNAPSHOTS: Final = 3  # the certified one, the newest other one, and one being written
MAX_REPLAY_EPOCHS: Final = 3  # the running one, the last one, and one about to be deleted


class ResourceLimits:
    """Measures a world.

    Args:
        world: the world to measure.
        note: receives the name of each measure, its value, and its limit or None.
    """

    def __init__(self, world: WorldView, note: NoteSize) -> None:
        self._world = world
        self._note = note
        self._looked_at = -1

    def measure(self, epoch: int) -> None:
        for host in self._world.clients:
            held = host.get_statistics()
            if held is not None:
                self._measure_client(held)
                self._measure_node(held)
        self._world.backend.measure(self._note)
        self._note("tasks", trio.lowlevel.current_statistics().tasks_living, None)
        if epoch != self._looked_at:
            self._looked_at = epoch
            for host in self._world.clients:
                self._measure_disk(host.folder)

    def _measure_client(self, held: ClientStatistics) -> None:
        self._note("rounds remembered", held.rounds, MAX_RECORDS)
        self._note("payloads kept", held.shell.payloads, MAX_BODIES_PER_MEMBER * max(1, held.members))
        self._note("fetches at a time", held.shell.fetches, FETCHES)
        self._note("requests of the trainer", held.shell.trainer_requests, QUEUE + 1)
        if held.backend:
            self._note("requests without an answer", held.backend.unanswered, MAX_PENDING)

    def _measure_node(self, held: ClientStatistics) -> None:
        limits, node = held.limits, held.network
        self._note("blobs offered", node.blobs_offered, MAX_BODIES_PER_MEMBER * max(1, held.members) + 64)
        self._note("bytes of payloads in memory", node.blob_memory_bytes, limits.memory_blob_bytes)
        self._note("bytes of payloads on disk", node.blob_disk_bytes, limits.disk_blob_bytes)
        self._note("announcements unread", node.unread_messages, limits.inbox_messages)
        self._note("announcements unsent", node.unsent_messages, limits.outbox_messages)
        room = limits.asked_bytes + (limits.fetches + held.members) * BLOB_CHUNK_BYTES
        self._note("bytes asked of sources", node.asked_bytes, room)
        self._note("streams that a peer has open", node.streams_per_peer, limits.streams_per_peer)
        # each side opens streams of each protocol
        most = 2 * len(PROTOCOLS) * limits.streams_per_peer
        self._note("streams of a connection", held.connection_streams, most)

    def _measure_disk(self, folder: Path) -> None:
        sizes = [os.stat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names]  # noqa: PTH116, PTH118
        self._note("bytes on a client's disk", sum(sizes), None)
        self._note("files on a client's disk", len(sizes), None)
        for what, name, limit in (("snapshots", "resume", MAX_SNAPSHOTS), ("epochs", "replay", MAX_REPLAY_EPOCHS)):
            found = folder / name
            count = sum(1 for one in found.iterdir() if one.is_dir()) if found.is_dir() else 0
            self._note(f"{what} on a client's disk", count, limit)
