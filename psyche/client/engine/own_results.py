"""The outcomes of this client's own results: the trainer is told each one once, for its momentum (R8, P3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from psyche.wire.trainer import SentResult


@dataclass(slots=True)
class OwnResults:
    """This client's trained results, until the record has decided them and the trainer was told."""

    outcomes: list[SentResult] = field(default_factory=list)  # decided, but not yet told to the trainer
    _sent: dict[int, bytes] = field(default_factory=dict)  # height -> own commitment, undecided

    def note_sent(self, height: int, commitment: bytes) -> None:
        self._sent[height] = commitment

    def note_unsent(self, height: int) -> None:
        """A result was trained but never announced: it counts as not applied."""
        self.outcomes.append(SentResult(height=height, applied=False))

    def decide(self, height: int, chosen: Mapping[int, bytes], member: int | None) -> None:
        """The set of a round is decided; `chosen` has its commitments by member."""
        own = self._sent.pop(height, None)
        if own is not None:
            applied = member is not None and chosen.get(member) == own
            self.outcomes.append(SentResult(height=height, applied=applied))

    def end_epoch(self) -> None:
        """The epoch is over: results that its drain rounds did not decide were never applied (P3)."""
        for height in self._sent:
            self.note_unsent(height)
        self._sent.clear()

    def take(self) -> tuple[SentResult, ...]:
        taken, self.outcomes = tuple(self.outcomes), []
        return taken

    def put_back(self, taken: tuple[SentResult, ...]) -> None:
        """Return outcomes of a training that changed nothing: the next one passes them again."""
        self.outcomes[:0] = taken

    def clear(self) -> None:
        """Forget everything: other weights were loaded, and their momentum includes none of these results."""
        self.outcomes.clear()
        self._sent.clear()
