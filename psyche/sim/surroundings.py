"""What a machine needs of the world that it stands in."""

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Protocol

from psyche.core.state.state import Config, Coordinator, Model
from psyche.network.memory import MemoryHub
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
        """What is played."""
        ...

    @property
    def folder(self) -> Path:
        """Where clients keep their files."""
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
        """What makes and checks payloads of that model."""
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
        """What both ends know of a connection to the server."""
        ...

    @property
    def hub(self) -> MemoryHub:
        """Where clients find their peers."""
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
        """Which tasks run, and which stand still."""
        ...

    @property
    def roots(self) -> dict[Task, Any]:
        """The machine of each process, by its first task."""
        ...

    @property
    def invariants(self) -> Invariants:
        """What is told of all that clients hear."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing is started any more."""
        ...

    def get_honest_keys(self) -> Collection[bytes]:
        """Of the clients that follow the protocol."""
        ...

    def decode(self, raw: bytes) -> Coordinator:
        """A state's bytes as an object."""
        ...

    def note(self, event: kinds.Event) -> None:
        """Write an event of the world itself."""
        ...

    def spawn(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task of the world."""
        ...

    def drop(self, key: bytes) -> None:
        """All connections of a machine are reset."""
        ...

    def note_death(self) -> None:
        """Some process is gone."""
        ...

    def on_end(self, host: Any) -> None:
        """A process has ended by itself."""
        ...
