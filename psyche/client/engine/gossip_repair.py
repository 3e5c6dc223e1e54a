"""Ask peers for announcements that gossip did not deliver."""

from psyche.client.engine.actions import AskAnnouncements
from psyche.client.engine.context import EngineContext
from psyche.client.engine.records import RoundRecord

ASK_FIRST_S = 2.0
ASK_LONGEST_S = 8.0  # during most of a long round there is nothing new to learn


class GossipRepair:
    """Asks at a round's start, then after 2, 4, 8, 8 ... s; back to 2 s when an answer brought something new.

    The interval also starts again at 2 s when this client's own work is done and it waits for others.
    """

    def __init__(self, context: EngineContext) -> None:
        self._x = context
        self._asked_at = 0.0
        self._every_s = ASK_FIRST_S
        self._is_waiting = False

    def begin_round(self, now: float) -> None:
        self._asked_at, self._every_s, self._is_waiting = now, ASK_FIRST_S, False
        attested = self._x.get_attested(self._x.height)
        if attested is not self._x.current:  # without overlap a round's own results are attested: nothing is out yet
            self._ask_for(attested)

    def get_deadline(self) -> float | None:
        return self._asked_at + self._every_s if self._x.state.in_round else None

    def act(self, now: float, *, is_waiting: bool) -> None:
        """Ask if it is time to; `is_waiting`: this client's work in the round is done, or its time is up."""
        if is_waiting and not self._is_waiting:
            self._is_waiting, self._every_s = True, ASK_FIRST_S
        if now - self._asked_at >= self._every_s:
            self._asked_at, self._every_s = now, min(2 * self._every_s, ASK_LONGEST_S)
            current, attested = self._x.current, self._x.get_attested(self._x.height)
            if attested is not current:
                self._ask_for(attested)
            self._ask_for(current)

    def count_known(self) -> int:
        return sum(len(r.finished) + sum(map(len, r.results.values())) for r in self._x.book.all())

    def on_news(self) -> None:
        self._every_s = ASK_FIRST_S

    def _ask_for(self, record: RoundRecord | None) -> None:
        if record is None or self._x.member is None:
            return
        have = self._get_known(record)
        if record.members & ~have:
            self._x.do(AskAnnouncements(record.epoch, record.height, have))

    def _get_known(self, record: RoundRecord) -> int:
        """Bitmap of the members whose announcements of that round are all known."""
        bits = 0
        for member in record.finished:
            if member in record.results or member not in record.assignments:
                bits |= 1 << member
        if not self._x.state.config.overlap:
            bits |= record.get_seen()
        return bits
