"""What became of this client's own results: the trainer's momentum hears of each once (R8, P3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from psyche.wire.trainer import SentResult


@dataclass(slots=True)
class OwnResults:
    """Results that were trained, until the record has decided and the trainer was told."""

    outcomes: list[SentResult] = field(default_factory=list)  # known, and the trainer was not told
    _sent: dict[int, bytes] = field(default_factory=dict)  # height -> own commitment, undecided

    def note_sent(self, height: int, commitment: bytes) -> None:
        """A result was announced: the record will decide."""
        self._sent[height] = commitment

    def note_unsent(self, height: int) -> None:
        """A result was trained and never announced."""
        self.outcomes.append(SentResult(height=height, applied=False))

    def decide(self, height: int, chosen: Mapping[int, bytes], member: int | None) -> None:
        """The set of a round is known: the commitments in it by member."""
        own = self._sent.pop(height, None)
        if own is not None:
            applied = member is not None and chosen.get(member) == own
            self.outcomes.append(SentResult(height=height, applied=applied))

    def end_epoch(self) -> None:
        """What the drain rounds of the last epoch did not decide was never applied (P3)."""
        for height in self._sent:
            self.note_unsent(height)
        self._sent.clear()

    def take(self) -> tuple[SentResult, ...]:
        """All outcomes, for a training that tells the trainer."""
        taken, self.outcomes = tuple(self.outcomes), []
        return taken

    def put_back(self, taken: tuple[SentResult, ...]) -> None:
        """The training changed nothing: the next one tells it again."""
        self.outcomes[:0] = taken

    def clear(self) -> None:
        """Other weights, with a momentum that knows nothing of the results since."""
        self.outcomes.clear()
        self._sent.clear()
