"""What a world's machines keep in memory and on disk, measured now and then, and the limits of it (I6)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from psyche.client.shell import FETCHES
from psyche.client.trainer_tasks import QUEUE
from psyche.core.limits import STATE_BYTES
from psyche.network.streams import PROTOCOLS
from psyche.server.backend import MAX_PENDING
from psyche.server.journal import SNAPSHOT_EVERY_BYTES

if TYPE_CHECKING:
    from psyche.network.memory import MemoryNode
    from psyche.simulator.hosts import ClientHost
    from psyche.simulator.world import World

MAX_RECORDS: Final = 16  # rounds that a client remembers: four stored ones, and those that it is behind
MAX_BODIES_PER_MEMBER: Final = 16
MAX_SNAPSHOT_BYTES: Final = 1_000_000
MAX_JOURNAL_BYTES: Final = 3 * (SNAPSHOT_EVERY_BYTES + STATE_BYTES)  # two snapshots, what follows each, a new one
MAX_SNAPSHOTS: Final = 3  # the certified one, the newest other, and one that is being written
MAX_REPLAY_EPOCHS: Final = 3  # the running one, the last one, and one that is about to go


class Kept:
    """Measures a world.

    Args:
        world: whose machines.
        note: told what was measured, its value, and its limit; None where there is none.
    """

    def __init__(self, world: "World", note: Callable[[str, int, int | None], None]) -> None:
        self._world = world
        self._note = note
        self._looked_at = -1

    def measure(self, epoch: int) -> None:
        """Queues, tables and streams; once in every epoch the disks, too."""
        for host in self._world.clients:
            if host.is_alive and host.engine is not None and host.shell is not None and host.network is not None:
                self._measure_client(host)
                self._measure_node(host.network, len(host.get_state().clients))
        files = self._world.server.files
        self._note("connections", self._world.tcp.open_connections, 2 * len(self._world.clients) + 8)
        self._note("journal files", len(files.files), 8)
        self._note("bytes of the journal", files.size_bytes, MAX_JOURNAL_BYTES)
        snapshots = (len(data) for name, data in files.files.items() if name.startswith("snapshot"))
        self._note("bytes of a snapshot", max(snapshots, default=0), MAX_SNAPSHOT_BYTES)
        self._note("tasks", trio.lowlevel.current_statistics().tasks_living, None)
        if epoch != self._looked_at:
            self._looked_at = epoch
            for host in self._world.clients:
                self._measure_disk(host.folder)

    def _measure_client(self, host: "ClientHost") -> None:
        engine, shell, backend = host.engine, host.shell, host.backend
        assert engine is not None, "checked by measure"
        assert shell is not None, "checked by measure"
        members = max(1, len(host.get_state().clients))
        self._note("rounds remembered", len(engine.chain.context.book.all()), MAX_RECORDS)
        bodies = shell._bodies  # noqa: SLF001 - here and below: only the simulator asks
        self._note("payloads kept", len(bodies), MAX_BODIES_PER_MEMBER * members)
        self._note("fetches at a time", int(shell._fetches.borrowed_tokens), FETCHES)  # noqa: SLF001
        self._note("requests of the trainer", shell._tasks._open, QUEUE + 1)  # noqa: SLF001
        if backend is not None:
            waiting = len(backend._pending)  # noqa: SLF001
            self._note("requests without an answer", waiting, MAX_PENDING)

    def _measure_node(self, node: "MemoryNode", members: int) -> None:
        limits, inbox = node.limits, node._inbox  # noqa: SLF001
        self._note("blobs offered", len(node.store), MAX_BODIES_PER_MEMBER * max(1, members) + 64)
        self._note("bytes of payloads in memory", node.store.memory_bytes, limits.memory_blob_bytes)
        self._note("bytes of payloads on disk", node.store.disk_bytes, limits.disk_blob_bytes)
        unread = inbox._receive.statistics().current_buffer_used  # noqa: SLF001
        self._note("announcements unread", unread, limits.inbox_messages)
        unsent = max((len(one._queue) for one in node._outboxes.values()), default=0)  # noqa: SLF001
        self._note("announcements unsent", unsent, limits.outbox_messages)
        peers = [peer for key in node.connected() if (peer := node.peers.get(key)) is not None]
        served = max((count for peer in peers for count in peer.inbound.values()), default=0)
        self._note("streams that a peer has open", served, limits.streams_per_peer)
        connections = cast("Any", node._transport).connections.values()  # noqa: SLF001
        ends = max((sum(not s.is_over for s in one.streams) for one in connections), default=0)
        # each stream has two ends, and each side opens some of each protocol
        self._note("streams of a connection", ends // 2, 2 * len(PROTOCOLS) * limits.streams_per_peer)

    def _measure_disk(self, folder: Path) -> None:
        sizes = [os.stat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names]  # noqa: PTH116, PTH118
        self._note("bytes on a client's disk", sum(sizes), None)
        self._note("files on a client's disk", len(sizes), None)
        for what, name, limit in (("snapshots", "resume", MAX_SNAPSHOTS), ("epochs", "replay", MAX_REPLAY_EPOCHS)):
            found = folder / name
            count = sum(1 for one in found.iterdir() if one.is_dir()) if found.is_dir() else 0
            self._note(f"{what} on a client's disk", count, limit)
