"""What a shell is put together from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from psyche.client import actions as act
from psyche.client.engine import RoundEngine
from psyche.client.trainer_tasks import RestartableTrainer
from psyche.data.provider import DataProvider
from psyche.wire.ports import Backend, Network


class Log(Protocol):
    """Where events go."""

    def emit(self, kind: str, **fields: object) -> None:
        """Write one event."""
        ...


@dataclass(slots=True)
class Parts:
    """What a shell is made of; the simulator and the tests put their own in."""

    engine: RoundEngine
    backend: Backend
    network: Network
    trainer: RestartableTrainer
    data: DataProvider
    log: Log
    unix_now: Callable[[], float]
    check_payload: Callable[[bytes], None]  # raises WireError (R4)
    on_loaded: Callable[[act.Loaded], None] = lambda _loaded: None
