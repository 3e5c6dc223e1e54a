"""The chain's time between two questions for it: carried on by the clock here, and by how fast slots were passing."""

from dataclasses import dataclass
from typing import Final

from psyche.backends.solana.member.link import ChainTime

TIME_S: Final = 12.0  # after which it is asked for again
LEAST_S: Final = 2.0  # between two answers that show how fast slots pass


@dataclass(slots=True)
class ChainClock:
    """Estimates the chain's time: a little late rather than early. `now_s` is a clock that only moves forward."""

    _time: ChainTime | None = None
    _at_s: float = 0.0
    _rate: float = 0.0  # slots a second; 0: not known yet
    _slot: int = 0  # the newest that an endpoint has shown
    _slot_at_s: float = 0.0

    def set(self, time: ChainTime, now_s: float) -> None:
        if self._time is not None and now_s - self._at_s >= LEAST_S:
            self._rate = max(0.0, (time.slot - self._time.slot) / (now_s - self._at_s))
        if self._time is None or now_s - self._at_s >= LEAST_S:
            self._time, self._at_s = time, now_s
        self._slot, self._slot_at_s = time.slot, now_s

    def note_slot(self, slot: int, now_s: float) -> None:
        if slot > self._slot:
            self._slot, self._slot_at_s = slot, now_s

    def estimate_slot(self, now_s: float) -> int:
        """The slot that the most advanced endpoint shows now."""
        return self._slot + int((now_s - self._slot_at_s) * self._rate)

    def estimate(self, now_s: float) -> ChainTime | None:
        if self._time is None or not self._rate or now_s - self._at_s > TIME_S:
            return None
        return ChainTime(self.estimate_slot(now_s), self._time.unix + int(now_s - self._at_s))
