"""What a run's verification has found, from the events of its clients."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from psyche.core.committee.verdicts import Verdict
from psyche.telemetry import types

MAX_DISTANCES: Final = 10_000  # of one member; newer ones are counted alone
SHOWN_MEMBERS: Final = 8


@dataclass(slots=True)
class AuditsView:
    """Counts audits and how far members' work is from what others compute; challenges are told once."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    distances: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))  # by member
    odd: set[int] = field(default_factory=set)  # members whose arithmetic is off
    challenges: dict[tuple[int, int, str], types.ChallengeEnded | None] = field(default_factory=dict)

    def take(self, event: types.Event) -> None:
        match event:
            case types.Audited():
                self.verdicts[event.verdict] += 1
                if not event.report and len(known := self.distances[event.target]) < MAX_DISTANCES:
                    known.append(event.distance)
            case types.ArithmeticOff():
                self.odd.add(event.member)
            case types.Challenged():
                self.challenges.setdefault((event.epoch, event.height, event.target), None)
            case types.ChallengeEnded():
                self.challenges[event.epoch, event.height, event.target] = event
            case _:
                pass

    def describe(self) -> Iterator[str]:
        """What was audited and found, in lines; none where nothing was."""
        if not self.verdicts and not self.challenges:
            return
        fine, unclear, failed = (self.verdicts[one] for one in Verdict)
        yield f"audits: {fine + unclear + failed} made, {fine} fine, {unclear} unclear, {failed} failed"
        worst = sorted(self.distances, key=lambda member: -max(self.distances[member]))
        for member in worst[:SHOWN_MEMBERS]:
            known = self.distances[member]
            odd = ", its arithmetic is off" if member in self.odd else ""
            yield f"  member {member}: off by {median(known):.1e} in the median, {max(known):.1e} at worst{odd}"
        for (epoch, height, target), ended in sorted(self.challenges.items(), key=lambda one: one[0]):
            yield f"  {target} was accused of its work in epoch {epoch}, round {height}: {_describe(ended)}"


def _describe(ended: types.ChallengeEnded | None) -> str:
    if ended is None:
        return "its jury has not decided yet"
    return f"{ended.outcome} ({ended.guilty} guilty, {ended.innocent} innocent)"
