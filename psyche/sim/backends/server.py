"""The coordinator server as a simulated run's backend: `server.server.run_server` on a machine of its own."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, Final

import trio

from psyche.backends.kinds import SERVER, BackendTraits
from psyche.backends.tcp.backend import Platform, TcpBackend, open_backend
from psyche.backends.tcp.dial import ServerAddress
from psyche.core.state.state import Coordinator
from psyche.server.server import ServerSettings, run_server
from psyche.sim.disk import DiskHandle, ServerFiles
from psyche.sim.hosts import Host, Life
from psyche.sim.identity import SimIdentity, build_machine_identity
from psyche.sim.invariants.recovery import MAX_JOURNAL_BYTES, MAX_SNAPSHOT_BYTES, check_recovery
from psyche.sim.invariants.shadow import JournalShadow, OnRecord
from psyche.sim.invariants.views import Check, NoteSize
from psyche.sim.links.tcp import Tcp
from psyche.sim.runtime import build_rng
from psyche.sim.scenarios.scenario import RUN_ID, build_run
from psyche.sim.surroundings import Caller, Surroundings
from psyche.wire.access import OPEN
from psyche.wire.crypto import Identity
from psyche.wire.line.tls import TlsConnection, make_channel

SERVER_HOST: Final = "server"
SERVER_PORT: Final = 7_000
MAX_JOURNAL_FILES: Final = 8


class ServerHost(Host):
    def __init__(self, world: Surroundings, identity: SimIdentity, tcp: Tcp) -> None:
        super().__init__(world, SERVER_HOST, identity)
        self.files = ServerFiles(self.disk)
        self._tcp = tcp
        self._entropy = build_rng(world.scenario.seed, "entropy")

    async def _main(self, life: Life) -> int:
        handle = DiskHandle(self.files)
        life.on_death.append(handle.revoke)
        settings = ServerSettings(
            run=build_run(self.world.config, self.world.model),
            identity=self.identity,
            state_dir=Path("/state"),
            host=SERVER_HOST,
            port=SERVER_PORT,
            owners=frozenset({self.world.owner.public}),
            access=OPEN,
            sink=life.log,
            unix_time=self.unix,
            entropy=lambda: self._entropy.randbytes(32),
            open_disk=lambda _path: handle,
            listen=self._listen,
        )
        await run_server(settings)
        return 0

    async def _listen(self, host: str, port: int, _identity: Identity) -> tuple[trio.abc.Listener[Any], int]:
        await trio.lowlevel.checkpoint()
        return self._tcp.listen(host, port), port


class ServerBackend:
    """A server, the connections to it, and its journal, after each record of which `on_record` is called."""

    controls: ClassVar[None] = None
    traits: ClassVar[BackendTraits] = SERVER

    def __init__(self, world: Surroundings, on_record: OnRecord) -> None:
        self.tcp = Tcp(world.links)
        self.host = ServerHost(world, build_machine_identity(world.scenario.seed, SERVER_HOST), self.tcp)
        self.shadow = JournalShadow(on_record)
        self._world = world
        self._channel = make_channel(self.host.identity)
        self.host.disk.sync_s = world.scenario.sync_s
        self.host.files.on_append = self.shadow.take_append
        self.host.files.on_replace = self.shadow.take_replace
        self.add_machine(self.host.name, self.host.key)

    @property
    def machines(self) -> tuple[Host, ...]:
        return (self.host,)

    @property
    def is_alive(self) -> bool:
        return self.host.is_alive

    def start(self) -> None:
        self.host.start()

    def add_machine(self, name: str, key: bytes) -> None:
        self.tcp.add_machine(name, key)

    def drop(self, key: bytes) -> None:
        self.tcp.drop(key)

    async def connect(self, key: bytes, host: str, port: int) -> TlsConnection:
        """Connect to the server: only TLS is left out, all layers above it are simulated."""
        return TlsConnection(await self.tcp.connect(key, host, port), self._channel)

    def open_backend(
        self, caller: Caller, decode: Callable[[bytes], Coordinator]
    ) -> AbstractAsyncContextManager[TcpBackend]:
        platform = Platform(
            connect=lambda host, port: self.connect(caller.identity.public, host, port),
            unix_time=caller.unix,
            rng=build_rng(self._world.scenario.seed, caller.name, "backend", caller.life),
            decode=decode,
        )
        address = ServerAddress(host=SERVER_HOST, port=SERVER_PORT, run_id=RUN_ID, key=self.host.key)
        return open_backend(address, caller.identity, sink=caller.log, platform=platform)

    def get_facts(self) -> dict[str, Any]:
        return {}

    def measure(self, note: NoteSize) -> None:
        """Measure connections and the journal (I6)."""
        files = self.host.files
        note("connections", self.tcp.open_connections, 2 * self._world.scenario.clients + 8)
        note("journal files", len(files.files), MAX_JOURNAL_FILES)
        note("bytes of the journal", files.size_bytes, MAX_JOURNAL_BYTES)
        snapshots = (len(data) for name, data in files.files.items() if name.startswith("snapshot"))
        note("bytes of a snapshot", max(snapshots, default=0), MAX_SNAPSHOT_BYTES)

    def check_end(self, check: Check) -> None:
        """I8, I10: a fresh process finds the record in the files."""
        if self.shadow.exists:
            check_recovery(self.host.files, self.shadow.state, check)
