"""What a shell is put together from."""

from collections.abc import Callable
from dataclasses import dataclass

from psyche.client.engine import actions as act
from psyche.client.engine.round_engine import RoundEngine
from psyche.client.runtime.trainer_tasks import RestartableTrainer
from psyche.data.provider import DataProvider
from psyche.telemetry.sink import EventSink
from psyche.wire.ports import Backend, Network


@dataclass(slots=True)
class Parts:
    """What a shell is made of; the simulator and the tests put their own in."""

    engine: RoundEngine
    backend: Backend
    network: Network
    trainer: RestartableTrainer
    data: DataProvider
    log: EventSink
    unix_now: Callable[[], float]
    check_payload: Callable[[bytes], None]  # raises WireError (R4)
    on_loaded: Callable[[act.Loaded], None] = lambda _loaded: None
