"""What a finished run owes its clients: each honest one ends, and with success (I5)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import trio

if TYPE_CHECKING:
    from psyche.simulator.agreement import Check
    from psyche.simulator.world import World

QUIET_S: Final = 60.0  # what a fault leaves behind, as a trainer that hangs, is over by then


class Owed:
    """Follows a world; `check` notes a violation unless something holds."""

    def __init__(self, world: "World", check: "Check") -> None:
        self._world = world
        self._check = check
        self._fault_at = 0.0  # when a fault last began or ended

    def take_event(self, node: str, kind: str, _fields: Mapping[str, Any]) -> None:
        """One event of any machine."""
        if node == "world" and kind in ("fault", "fault_over"):
            self._fault_at = trio.current_time()

    def check_end(self) -> None:
        """P8: a run that is finished lets its clients go, unless something still is wrong."""
        world = self._world
        quiet = not world.under_way and trio.current_time() - self._fault_at >= QUIET_S
        if not (world.is_finished and quiet and world.scenario.must_advance):
            return
        for host in world.clients:
            if host.is_honest:
                self._check(not host.is_alive, "I5", f"{host.name} ends when the run is finished", "it runs on")
                self._check(not host.code, "I5", f"{host.name} ends with success", f"code {host.code}")
