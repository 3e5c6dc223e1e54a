"""The interface of the world to its machines."""

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Protocol

from psyche.core.state.state import Config, Coordinator, Model
from psyche.network.memory.node import MemoryHub
from psyche.sim.identity import SimIdentity
from psyche.sim.invariants.checker import Invariants
from psyche.sim.links.tcp import Tcp
from psyche.sim.runtime import RunQueue, Task
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.trace import Trace
from psyche.sim.trainer import PayloadCodec
from psyche.telemetry import kinds
from psyche.wire.line.tls import Channel


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
    def server_key(self) -> bytes:
        """The server's public key."""
        ...

    @property
    def channel(self) -> Channel:
        """The TLS channel data that both ends of a server connection know."""
        ...

    @property
    def hub(self) -> MemoryHub:
        """The hub through which clients find their peers."""
        ...

    @property
    def tcp(self) -> Tcp:
        """The connections to the server."""
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

    def note(self, event: kinds.Event) -> None:
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
