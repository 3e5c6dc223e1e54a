"""The read-only interfaces through which the checks see a world and its clients."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from psyche.client.engine.records import RoundRecord
from psyche.client.engine.round_engine import EngineStatistics
from psyche.client.runtime.shell import ShellStatistics
from psyche.core.state.state import Config, Coordinator
from psyche.network.limits import NetworkLimits
from psyche.sim.invariants.shadow import Shadow
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.trace import Trace
from psyche.wire.ports import NetworkStatistics

Check = Callable[[object, str, object, object], None]  # (condition, invariant's name, expected, found)
NoteSize = Callable[[str, int, int | None], None]  # (what is measured, its size, its limit)


class BackendSizes(Protocol):
    """The queue sizes of any backend."""

    @property
    def unanswered(self) -> int:
        """The number of requests without an answer."""
        ...


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """The present size of one client's queues and tables."""

    members: int  # of the newest state that it has
    engine: EngineStatistics
    shell: ShellStatistics
    backend: BackendSizes | None  # None: it has no backend yet
    network: NetworkStatistics
    limits: NetworkLimits
    connection_streams: int  # open streams of the busiest connection


class Told(Protocol):
    """The counters of a dishonest program: lies told, refused and believed."""

    told: int
    refused: int
    believed: int


class ClientView(Protocol):
    """A client as the checks see it."""

    complaints: list[str]

    @property
    def name(self) -> str:
        """The name of its machine."""
        ...

    @property
    def key(self) -> bytes:
        """Its public key."""
        ...

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        ...

    @property
    def is_honest(self) -> bool:
        """Whether it follows the protocol."""
        ...

    @property
    def lives(self) -> int:
        """How many processes it has had."""
        ...

    @property
    def code(self) -> int | None:
        """The exit code of its last process that ended by itself."""
        ...

    @property
    def programs(self) -> Sequence[Told]:
        """Its dishonest programs; none if it is honest."""
        ...

    @property
    def signed(self) -> Collection[bytes]:
        """Each message that it signed, with the signature, over all its lives."""
        ...

    @property
    def is_corrupt(self) -> bool:
        """Whether a weight was flipped since its trainer last loaded."""
        ...

    @property
    def struck(self) -> int:
        """How often a fault struck its trainer."""
        ...

    def is_living(self, life: int) -> bool:
        """Whether its process of this number runs."""
        ...

    def get_state(self) -> Coordinator:
        """The newest state that it has seen."""
        ...

    def get_records(self) -> Sequence[RoundRecord]:
        """Its engine's records of the rounds that it remembers."""
        ...

    def get_banned(self) -> Collection[bytes]:
        """The sources that it no longer asks for anything."""
        ...

    def get_statistics(self) -> ClientStatistics | None:
        """The present size of its process's queues and tables; None where it does not run."""
        ...

    def has_weights(self, digest: bytes) -> bool:
        """Whether it has weights of this digest in memory or on disk."""
        ...

    def compute_root(self, digest: bytes) -> bytes | None:
        """The root of the weights in its memory, if it believes that they have this digest."""
        ...


class BackendView(Protocol):
    """The backend of the run as the checks see it."""

    def measure(self, note: NoteSize) -> None:
        """Measure what the backend keeps (I6)."""
        ...

    def check_end(self, check: Check) -> None:
        """Check that the backend still has the whole record (I8, I10)."""
        ...


class WorldView(Protocol):
    """A world as the checks see it."""

    @property
    def scenario(self) -> Scenario:
        """The scenario being played."""
        ...

    @property
    def config(self) -> Config:
        """The run's configuration."""
        ...

    @property
    def trace(self) -> Trace:
        """The event log."""
        ...

    @property
    def shadow(self) -> Shadow:
        """The record, followed independently of the backend."""
        ...

    @property
    def clients(self) -> Sequence[ClientView]:
        """All clients."""
        ...

    @property
    def backend(self) -> BackendView:
        """The backend of the run."""
        ...

    @property
    def under_way(self) -> Sequence[Any]:
        """The faults that have begun and are not over."""
        ...

    @property
    def quiet_since(self) -> float:
        """Since when nothing is wrong, in simulated seconds."""
        ...

    @property
    def longest_wait_s(self) -> float:
        """The longest wait for progress while nothing was wrong."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether the run has finished."""
        ...

    def owes_progress(self) -> bool:
        """Whether the run must take steps: no fault excuses it (I5)."""
        ...
