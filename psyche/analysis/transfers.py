"""Payloads that were announced and are not everywhere yet: what arrives too late, or never, costs a round time too."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from psyche.analysis.tally import Place

KEPT: Final = 8  # rounds


@dataclass(frozen=True, slots=True)
class Pending:
    """A payload on its way, since when."""

    sender: str
    receiver: str
    since: float


class Transfers:
    """Who has announced a payload of which round, and who has it."""

    def __init__(self) -> None:
        self._sent: defaultdict[Place, dict[str, float]] = defaultdict(dict)
        self._arrived: defaultdict[Place, set[tuple[str, str]]] = defaultdict(set)  # (sender, receiver)

    def send(self, place: Place, sender: str, t: float) -> None:
        """A payload is announced; those of long ago are forgotten."""
        self._sent[place][sender] = t
        for old in [one for one in self._sent if one < (place[0], place[1] - KEPT)]:
            del self._sent[old]
            self._arrived.pop(old, None)

    def arrive(self, place: Place, sender: str, receiver: str) -> None:
        """A payload is where it was wanted."""
        self._arrived[place].add((sender, receiver))

    def get_sent(self, place: Place, sender: str) -> float | None:
        """When a payload was announced."""
        return self._sent.get(place, {}).get(sender)

    def find_pending(self, place: Place, receivers: Iterable[str]) -> list[Pending]:
        """What these still lack, the longest on its way first."""
        arrived = self._arrived.get(place, set())
        found = [
            Pending(sender, receiver, since)
            for receiver in receivers
            for sender, since in self._sent.get(place, {}).items()
            if sender != receiver and (sender, receiver) not in arrived
        ]
        return sorted(found, key=lambda one: one.since)
