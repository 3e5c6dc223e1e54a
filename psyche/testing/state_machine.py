"""The state machine of a run without a server: messages by function call, ticks on demand."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final

from psyche.core.committee.seeds import Entropy
from psyche.core.rules.apply import apply
from psyche.core.state.messages import Message, Tick
from psyche.core.state.state import ZERO32, Coordinator
from psyche.testing.builders import build_hash

MAX_TICKS: Final = 64


@dataclass
class StateMachine(ABC):
    """A state with its clock: the base of everything that fakes a run.

    Entropy is the same in every test run; `draws` counts the values drawn.
    """

    state: Coordinator
    draws: int = field(default=0, kw_only=True)

    @property
    @abstractmethod
    def unix(self) -> int:
        """Unix seconds; also used as the slot."""

    def apply(self, message: Message, sender: bytes = ZERO32) -> bool:
        """Apply a message now; return whether it changed anything.

        Raises:
            CoordinatorError: names the broken rule; nothing changed.
        """
        return apply(self.state, self.unix, self.unix, sender, message)

    def build_entropy(self) -> bytes:
        """The next 32 bytes of entropy."""
        self.draws += 1
        return build_hash("entropy", self.draws)

    def tick(self, entropy: Entropy | str = "drawn") -> bool:
        """Tick once now; return whether it changed anything."""
        drawn = self.build_entropy() if isinstance(entropy, str) else entropy
        return self.apply(Tick(drawn))

    def settle(self) -> int:
        """Tick until nothing changes (T3); return how many ticks had an effect."""
        for count in range(MAX_TICKS):
            if self.state.halted or not self.tick():
                return count
        raise AssertionError("the state machine does not come to rest")
