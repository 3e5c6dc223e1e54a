"""Faults of a chain and of its endpoints, as data; worlds with a server know none of them."""

from contextlib import suppress
from dataclasses import dataclass, fields
from typing import ClassVar, Final

import trio

from psyche.core.state.errors import CannotResume, CoordinatorError
from psyche.core.state.messages import Pause, Resume
from psyche.sim.chain.conditions import EndpointTrouble
from psyche.sim.faults import KINDS, Fault, Stage

AGAIN_S: Final = 2.0
MOST_TRIES: Final = 200  # an epoch's last rounds and Cooldown are over by then


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFault(Fault):
    """An endpoint of each of these clients is in trouble for `for_s`: as `EndpointTrouble` has it.

    `endpoint` is its number, from 1 on; 0 means all endpoints of the client.
    """

    kind: ClassVar[str] = "endpoint"
    who: tuple[str, ...] = ()
    endpoint: int = 0
    is_down: bool = False
    stale_slots: int = 0
    lag_s: float = 0.0
    throttled: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    cut: float = 0.0
    is_forked: bool = False
    is_wrong: bool = False

    def build_trouble(self) -> EndpointTrouble:
        """What is wrong with the endpoints meanwhile."""
        return EndpointTrouble(**{field.name: getattr(self, field.name) for field in fields(EndpointTrouble)})

    async def happen(self, world: Stage) -> None:
        """Trouble the endpoints, and restore them."""
        trouble, chosen = self.build_trouble(), world.choose(self, self.who)
        endpoints = [one for host in chosen for one in world.find_endpoints(host.name, self.endpoint)]
        for endpoint in endpoints:
            endpoint.suffer(trouble)
        await trio.sleep(self.for_s)
        for endpoint in endpoints:
            endpoint.recover(trouble)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHalt(Fault):
    """The chain makes no blocks for `for_s`."""

    kind: ClassVar[str] = "chain_halt"

    async def happen(self, world: Stage) -> None:
        """Halt, and go on."""
        world.halt_chain(is_halted=True)
        await trio.sleep(self.for_s)
        world.halt_chain(is_halted=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerPause(Fault):
    """The owner pauses the run, and resumes it `for_s` later, or as soon as it is paused."""

    kind: ClassVar[str] = "pause"

    async def happen(self, world: Stage) -> None:
        """Pause and resume through transactions of the owner's wallet."""
        with suppress(CoordinatorError):  # the run is over
            await world.command(Pause())
            await trio.sleep(self.for_s)
            await self._resume(world)

    async def _resume(self, world: Stage) -> None:
        """Resume as soon as the run is paused; it never is if it has finished first."""
        for _ in range(MOST_TRIES):
            try:
                await world.command(Resume())
            except CannotResume:
                await trio.sleep(AGAIN_S)
            else:
                return


CHAIN_KINDS: Final[dict[str, type[Fault]]] = {cls.kind: cls for cls in (EndpointFault, ChainHalt, OwnerPause)}
ALL_KINDS: Final = KINDS | CHAIN_KINDS
