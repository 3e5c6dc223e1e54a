"""The interface of the world to its machines."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from psyche.backends.port import Backend
from psyche.core.state.state import Config, Coordinator, Model
from psyche.network.memory.links import Links
from psyche.network.memory.node import MemoryHub
from psyche.sim.identity import SimIdentity
from psyche.sim.invariants.checker import Invariants
from psyche.sim.invariants.views import BackendSizes
from psyche.sim.runtime import RunQueue, Task
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.trace import NodeLog, Trace
from psyche.sim.trainer import PayloadCodec
from psyche.telemetry import types
from psyche.wire.line.tls import TlsConnection


class MeasuredBackend(Backend, Protocol):
    """A backend whose queues the checks measure."""

    def statistics(self) -> BackendSizes:
        """The current queue sizes."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """A client's process that opens a backend.

    Args:
        name: of its machine.
        number: of its machine among the clients.
        life: the number of the process.
        identity: its p2p key.
        folder: of its files.
        log: its event log.
        unix: its wall clock.
    """

    name: str
    number: int
    life: int
    identity: SimIdentity
    folder: Path
    log: NodeLog
    unix: Callable[[], float]


class SimulatedBackend(Protocol):
    """What a machine needs of the run's backend."""

    def drop(self, key: bytes) -> None:
        """Reset a machine's connections to the backend."""
        ...

    def open_backend(
        self, caller: Caller, decode: Callable[[bytes], Coordinator]
    ) -> AbstractAsyncContextManager[MeasuredBackend]:
        """A client's way to the backend; `decode` decodes the states that it shows."""
        ...

    async def connect(self, key: bytes, host: str, port: int) -> TlsConnection:
        """A connection of a machine's own making; raises OSError where nobody listens."""
        ...


class Surroundings(Protocol):
    """What a machine needs of its world."""

    @property
    def scenario(self) -> Scenario:
        """The scenario being played."""
        ...

    @property
    def folder(self) -> Path:
        """The folder of the clients' files."""
        ...

    @property
    def config(self) -> Config:
        """The run's configuration."""
        ...

    @property
    def model(self) -> Model:
        """The run's model."""
        ...

    @property
    def codec(self) -> PayloadCodec:
        """The codec for payloads of that model."""
        ...

    @property
    def owner(self) -> SimIdentity:
        """The key of the run's owner."""
        ...

    @property
    def links(self) -> Links:
        """The links between the machines."""
        ...

    @property
    def backend(self) -> SimulatedBackend:
        """The backend of the run."""
        ...

    @property
    def hub(self) -> MemoryHub:
        """The hub through which clients find their peers."""
        ...

    @property
    def trace(self) -> Trace:
        """The event log."""
        ...

    @property
    def queue(self) -> RunQueue:
        """The run queue, which pauses processes."""
        ...

    @property
    def roots(self) -> dict[Task, Any]:
        """The machine of each process, by the process's root task."""
        ...

    @property
    def invariants(self) -> Invariants:
        """The invariants, which check what clients are shown and told."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the simulation is over, so that nothing is started any more."""
        ...

    def get_honest_keys(self) -> Collection[bytes]:
        """The keys of the clients that follow the protocol."""
        ...

    def decode(self, raw: bytes) -> Coordinator:
        """Decode a state."""
        ...

    def note(self, event: types.Event) -> None:
        """Log an event of the world itself."""
        ...

    def spawn(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task of the world."""
        ...

    def drop(self, key: bytes) -> None:
        """Reset all connections of a machine."""
        ...

    def note_death(self) -> None:
        """Note that some process has died."""
        ...

    def on_end(self, host: Any) -> None:
        """Note that a process has ended by itself."""
        ...
