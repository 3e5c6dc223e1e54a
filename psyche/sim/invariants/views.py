"""The read-only interfaces through which the checks see a world and its clients."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from psyche.client.engine.records import RoundRecord
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
    def unanswered(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    members: int  # of the newest state that it has
    rounds: int  # that its engine remembers
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
    name: str
    key: bytes
    folder: Path
    lives: int
    code: int | None

    complaints: list[str]

    @property
    def is_alive(self) -> bool: ...
    @property
    def is_honest(self) -> bool: ...
    @property
    def programs(self) -> Sequence[Told]: ...
    @property
    def signed(self) -> Collection[bytes]: ...
    @property
    def is_corrupt(self) -> bool: ...
    @property
    def struck(self) -> int: ...
    def is_living(self, life: int) -> bool: ...
    def get_state(self) -> Coordinator: ...
    def get_records(self) -> Sequence[RoundRecord]: ...
    def get_banned(self) -> Collection[bytes]: ...
    def get_statistics(self) -> ClientStatistics | None: ...
    def has_weights(self, digest: bytes) -> bool: ...
    def compute_root(self, digest: bytes) -> bytes | None: ...


class BackendView(Protocol):
    def measure(self, note: NoteSize) -> None: ...
    def check_end(self, check: Check) -> None: ...


class WorldView(Protocol):
    scenario: Scenario
    config: Config
    trace: Trace
    quiet_since: float
    longest_wait_s: float

    @property
    def shadow(self) -> Shadow: ...
    @property
    def clients(self) -> Sequence[ClientView]: ...
    @property
    def backend(self) -> BackendView: ...
    @property
    def under_way(self) -> Sequence[Any]: ...
    @property
    def is_finished(self) -> bool: ...
    def owes_progress(self) -> bool: ...
