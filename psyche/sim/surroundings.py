"""The interface of the world to its machines."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from psyche.backends.kinds import BackendTraits
from psyche.backends.port import Backend
from psyche.core.state.state import Config, Coordinator, Model
from psyche.network.memory.links import Links
from psyche.network.memory.node import MemoryHub
from psyche.sim.identity import SimIdentity
from psyche.sim.invariants.checker import Invariants
from psyche.sim.invariants.views import BackendSizes
from psyche.sim.payloads import PayloadCodec
from psyche.sim.runtime import RunQueue, Task
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.trace import NodeLog, Trace
from psyche.telemetry import types
from psyche.wire.line.tls import TlsConnection


class MeasuredBackend(Backend, Protocol):
    """A backend whose queues the checks measure."""

    def statistics(self) -> BackendSizes: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """A client's process that opens a backend."""

    name: str  # of its machine
    number: int  # of its machine among the clients
    life: int  # how many processes its machine has had
    identity: SimIdentity
    folder: Path
    log: NodeLog
    unix: Callable[[], float]


class SimulatedBackend(Protocol):
    traits: ClassVar[BackendTraits]

    def drop(self, key: bytes) -> None: ...

    def open_backend(
        self, caller: Caller, decode: Callable[[bytes], Coordinator]
    ) -> AbstractAsyncContextManager[MeasuredBackend]:
        """A client's way to the backend; `decode` decodes the states that it shows."""
        ...

    async def connect(self, key: bytes, host: str, port: int) -> TlsConnection:
        """A connection of a machine's own making; raises OSError where nobody listens."""
        ...


class Surroundings(Protocol):
    scenario: Scenario
    folder: Path
    config: Config
    model: Model
    codec: PayloadCodec
    owner: SimIdentity
    links: Links
    hub: MemoryHub
    trace: Trace
    queue: RunQueue
    invariants: Invariants
    is_over: bool

    @property
    def backend(self) -> SimulatedBackend: ...
    @property
    def roots(self) -> dict[Task, Any]: ...
    def get_honest_keys(self) -> Collection[bytes]: ...
    def decode(self, raw: bytes) -> Coordinator: ...
    def note(self, event: types.Event) -> None: ...
    def spawn(self, function: Callable[..., Awaitable[object]], *args: object) -> None: ...
    def drop(self, key: bytes) -> None: ...
    def note_death(self) -> None: ...
    def on_end(self, host: Any) -> None: ...
