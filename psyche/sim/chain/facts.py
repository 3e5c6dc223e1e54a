"""What happened on a simulated chain, collected while a world plays; the judges of scenarios read it."""

from collections import Counter
from dataclasses import dataclass, field

import trio

from psyche.core.state.messages import Message, WarmupWitness, WitnessMessage
from psyche.sim.chain.blocks import ChainBlock, Transaction


@dataclass(slots=True)
class ChainFacts:
    """The facts of one world; times are in simulated seconds.

    Args:
        behind_s: by client, the longest time from a change of the record until it was shown something as new.
        sending_s: the longest time from the beginning of a send until its transaction landed.
        landed: the number of transactions that landed, whether they took effect or were refused.
        resent: how often a transaction was sent again as it was.
        orphans: the number of transactions that landed after their sender had given up or died.
        effects: how often each witness message and each word on weights took effect, by what makes it the same.
    """

    behind_s: dict[str, float] = field(default_factory=dict[str, float])
    sending_s: float = 0.0
    landed: int = 0
    resent: int = 0
    orphans: int = 0
    effects: Counter[tuple[object, ...]] = field(default_factory=Counter[tuple[object, ...]])
    _changes: list[tuple[float, bytes]] = field(default_factory=list[tuple[float, bytes]])  # when each account was new
    _places: dict[bytes, int] = field(default_factory=dict[bytes, int])  # of an account in that list
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])  # (life, place) of a client
    _begun: dict[bytes, float] = field(default_factory=dict[bytes, float])  # when a transaction was first sent
    _given_up: set[bytes] = field(default_factory=set[bytes])

    def take_block(self, block: ChainBlock) -> None:
        """Take a block."""
        if block.has_changed:
            self._places[block.raw] = len(self._changes)
            self._changes.append((block.made_s, block.raw))
        for effect in block.effects:
            key = _get_key(effect.message)
            if key is not None:
                self.effects[key] += 1
        for signature in block.landed:
            begun_s = self._begun.pop(signature, None)
            if begun_s is not None:
                self.landed += 1
                self.orphans += signature in self._given_up
                if signature not in self._given_up:
                    self.sending_s = max(self.sending_s, block.made_s - begun_s)

    def note_shown(self, name: str, life: int, raw: bytes) -> None:
        """A client's process is shown an account."""
        place = self._places.get(raw)
        if place is None:
            return
        former_life, former = self._seen.get(name, (0, 0))
        if former_life == life and former + 1 < len(self._changes) and former < place:
            behind_s = trio.current_time() - self._changes[former + 1][0]
            self.behind_s[name] = max(behind_s, self.behind_s.get(name, 0.0))
        self._seen[name] = (life, place)

    def note_sent(self, transaction: Transaction) -> None:
        """A transaction is sent, for the first time or again."""
        if transaction.signature in self._begun:
            self.resent += 1
        else:
            self._begun[transaction.signature] = trio.current_time()

    def note_given_up(self, transaction: Transaction) -> None:
        """The sender of a transaction waits no longer for it."""
        if transaction.signature in self._begun:
            self._given_up.add(transaction.signature)

    @property
    def twice(self) -> int:
        """How many messages took effect more than once."""
        return sum(count > 1 for count in self.effects.values())


def _get_key(message: Message) -> tuple[object, ...] | None:
    """What makes two messages the same; None for kinds that may take effect again."""
    if isinstance(message, WitnessMessage):
        return "witness", message.epoch, message.height, message.member
    if isinstance(message, WarmupWitness):
        return "warmup_witness", message.epoch, message.member, message.digest
    return None
