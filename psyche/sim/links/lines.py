"""The links between the machines of a world: their conditions, computed from both ends, and the partitions."""

from collections.abc import Sequence
from itertools import combinations
from typing import Protocol

from psyche.network.memory.line import LinkConditions
from psyche.network.memory.links import Links


class End(Protocol):
    @property
    def key(self) -> bytes: ...
    def get_uplink(self) -> LinkConditions: ...
    def get_downlink(self) -> LinkConditions: ...


def join_conditions(up: LinkConditions, down: LinkConditions) -> LinkConditions:
    return LinkConditions(
        latency_s=up.latency_s + down.latency_s, bandwidth_bytes_s=min(up.bandwidth_bytes_s, down.bandwidth_bytes_s),
        loss=1 - (1 - up.loss) * (1 - down.loss), jitter_s=up.jitter_s + down.jitter_s,
        duplicate=1 - (1 - up.duplicate) * (1 - down.duplicate),
    )  # fmt: skip


class Lines:
    """Keeps the links of a world in the conditions that its machines and faults set.

    Args:
        links: the links that all traffic uses.
        shares_lines: all bulk traffic of a machine shares one line; else each pair of machines has its own.
    """

    def __init__(self, links: Links, *, shares_lines: bool) -> None:
        self._links = links
        self._shares_lines = shares_lines
        self._partitions: dict[int, tuple[list[list[bytes]], bool]] = {}

    def update(self, ends: Sequence[End]) -> None:
        for source in ends:
            if self._shares_lines:
                up, down = source.get_uplink(), source.get_downlink()
                self._links.set_access(source.key, up.bandwidth_bytes_s, down.bandwidth_bytes_s)
            for target in ends:
                if source is not target:
                    up, down = source.get_uplink(), target.get_downlink()
                    self._links.set_uplink(source.key, target.key, join_conditions(up, down))

    def cut(self, number: int, groups: list[list[bytes]], *, silent: bool) -> None:
        self._partitions[number] = (groups, silent)
        self._cut(groups, silent=silent)

    def heal(self, number: int) -> None:
        self._partitions.pop(number, None)
        self._links.heal()
        for groups, silent in self._partitions.values():
            self._cut(groups, silent=silent)

    def _cut(self, groups: list[list[bytes]], *, silent: bool) -> None:
        """A machine in two groups counts in the smaller one: "all" beside "random:1" means all the others."""
        for first, second in combinations(groups, 2):
            near = [key for key in first if key not in second] or first
            far = [key for key in second if key not in first] or second
            (self._links.stall if silent else self._links.cut)(near, far)
