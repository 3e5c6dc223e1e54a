"""The lines between the machines of a world: what both ends make of them, and who is cut off from whom."""

from collections.abc import Sequence
from itertools import combinations
from typing import Protocol

from psyche.network.links import LinkConditions, Links


class End(Protocol):
    """A machine at the end of lines."""

    @property
    def key(self) -> bytes:
        """Its public key."""
        ...

    def get_uplink(self) -> LinkConditions:
        """What its way out is like now."""
        ...

    def get_downlink(self) -> LinkConditions:
        """What its way in is like now."""
        ...


def join_conditions(up: LinkConditions, down: LinkConditions) -> LinkConditions:
    """A link from one machine's uplink to another's downlink."""
    return LinkConditions(
        latency_s=up.latency_s + down.latency_s,
        bandwidth_bytes_s=min(up.bandwidth_bytes_s, down.bandwidth_bytes_s),
        loss=1 - (1 - up.loss) * (1 - down.loss),
        jitter_s=up.jitter_s + down.jitter_s,
        duplicate=1 - (1 - up.duplicate) * (1 - down.duplicate),
    )


class Lines:
    """Keeps the links of a world as its machines and faults have them.

    Args:
        links: what everything runs over.
        shares_lines: what a machine sends and receives in bulk shares its line; else each pair has one of its own.
    """

    def __init__(self, links: Links, *, shares_lines: bool) -> None:
        self._links = links
        self._shares_lines = shares_lines
        self._partitions: dict[int, tuple[list[list[bytes]], bool]] = {}

    def update(self, ends: Sequence[End]) -> None:
        """Give every link the conditions of its two ends."""
        for source in ends:
            if self._shares_lines:
                up, down = source.get_uplink(), source.get_downlink()
                self._links.set_access(source.key, up.bandwidth_bytes_s, down.bandwidth_bytes_s)
            for target in ends:
                if source is not target:
                    up, down = source.get_uplink(), target.get_downlink()
                    self._links.set_uplink(source.key, target.key, join_conditions(up, down))

    def cut(self, number: int, groups: list[list[bytes]], *, silent: bool) -> None:
        """Part groups of machines until `heal` is told the same number."""
        self._partitions[number] = (groups, silent)
        self._cut(groups, silent=silent)

    def heal(self, number: int) -> None:
        """Undo one partition; others stay."""
        self._partitions.pop(number, None)
        self._links.heal()
        for groups, silent in self._partitions.values():
            self._cut(groups, silent=silent)

    def _cut(self, groups: list[list[bytes]], *, silent: bool) -> None:
        """Who is in two groups is in the one that is no part of the other: "all" beside "random:1" are the rest."""
        for first, second in combinations(groups, 2):
            near = [key for key in first if key not in second] or first
            far = [key for key in second if key not in first] or second
            (self._links.stall if silent else self._links.cut)(near, far)
