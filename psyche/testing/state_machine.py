"""The state machine of a run without a server: messages by function call, ticks whenever they are asked for."""

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
    """A state, and the clock by which it changes. Whatever fakes a run stands on it.

    Entropy is the same in every test run. `draws`: how much of it there was.
    """

    state: Coordinator
    draws: int = field(default=0, kw_only=True)

    @property
    @abstractmethod
    def unix(self) -> int:
        """Unix seconds; the slot, too."""

    def apply(self, message: Message, sender: bytes = ZERO32) -> bool:
        """Send a message now; whether it changed anything.

        Raises:
            CoordinatorError: the rule that it breaks; nothing changed.
        """
        return apply(self.state, self.unix, self.unix, sender, message)

    def build_entropy(self) -> bytes:
        """The next 32 bytes of entropy."""
        self.draws += 1
        return build_hash("entropy", self.draws)

    def tick(self, entropy: Entropy | str = "drawn") -> bool:
        """One tick now; whether it changed anything."""
        drawn = self.build_entropy() if isinstance(entropy, str) else entropy
        return self.apply(Tick(drawn))

    def settle(self) -> int:
        """Tick until nothing changes (T3); how many ticks had an effect."""
        for count in range(MAX_TICKS):
            if self.state.halted or not self.tick():
                return count
        raise AssertionError("the state machine does not come to rest")
