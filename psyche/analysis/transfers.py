"""Payloads in transit: those that arrive late, or never, cost a round time too."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from psyche.analysis.tally import Place

KEPT: Final = 8  # rounds


@dataclass(frozen=True, slots=True)
class Pending:
    sender: str
    receiver: str
    since: float


class Transfers:
    """Tracks which payloads of each round were announced, and where they have arrived."""

    def __init__(self) -> None:
        self._sent: defaultdict[Place, dict[str, float]] = defaultdict(dict)
        self._arrived: defaultdict[Place, set[tuple[str, str]]] = defaultdict(set)  # (sender, receiver)

    def send(self, place: Place, sender: str, t: float) -> None:
        self._sent[place][sender] = t
        for old in [one for one in self._sent if one < (place[0], place[1] - KEPT)]:
            del self._sent[old]
            self._arrived.pop(old, None)

    def arrive(self, place: Place, sender: str, receiver: str) -> None:
        self._arrived[place].add((sender, receiver))

    def get_sent(self, place: Place, sender: str) -> float | None:
        return self._sent.get(place, {}).get(sender)

    def find_pending(self, place: Place, receivers: Iterable[str]) -> list[Pending]:
        """The payloads that these receivers lack, the longest in transit first."""
        arrived = self._arrived.get(place, set())
        found = [
            Pending(sender, receiver, since)
            for receiver in receivers
            for sender, since in self._sent.get(place, {}).items()
            if sender != receiver and (sender, receiver) not in arrived
        ]
        return sorted(found, key=lambda one: one.since)
