"""What happened on a simulated chain, collected while a world plays; the judges of scenarios read it."""

from collections import Counter
from dataclasses import dataclass, field

import trio

from psyche.core.state.messages import Message, WarmupWitness, WitnessMessage
from psyche.localchain.blocks import ChainBlock, Payment
from psyche.wire.crypto import blake3_hash


@dataclass(slots=True)
class Paid:
    transactions: int = 0
    signatures: int = 0


@dataclass(slots=True)
class ChainFacts:
    """The facts of one world; times are in simulated seconds.

    Args:
        behind_s: by client, the longest time from a change of the record until it was shown something as new.
        sending_s: the longest time from the beginning of a send until its transaction landed.
        landed: the number of transactions that landed, whether they took effect or were refused.
        resent: how often a transaction was sent again as it was.
        orphans: the number of transactions that landed after the process that had sent them was gone.
        effects: how often each witness message and each word on weights took effect, by what makes it the same.
        names: the client of each wallet.
        in_rounds, outside: by client, what it paid for in rounds, and for joins and between rounds.
    """

    behind_s: dict[str, float] = field(default_factory=dict[str, float])
    sending_s: float = 0.0
    landed: int = 0
    resent: int = 0
    orphans: int = 0
    effects: Counter[tuple[object, ...]] = field(default_factory=Counter[tuple[object, ...]])
    names: dict[bytes, str] = field(default_factory=dict[bytes, str])
    in_rounds: dict[str, Paid] = field(default_factory=dict[str, Paid])
    outside: dict[str, Paid] = field(default_factory=dict[str, Paid])
    _changes: list[float] = field(default_factory=list[float])  # when each account was new
    _places: dict[bytes, int] = field(default_factory=dict[bytes, int])  # of an account, by its hash, in that list
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])  # (life, place) of a client
    _begun: dict[str, tuple[float, tuple[str, int]]] = field(  # when a transaction was first sent, and by whom
        default_factory=dict[str, tuple[float, tuple[str, int]]]
    )
    _gone: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    def take_block(self, block: ChainBlock, *, is_in_round: bool) -> None:
        """Take a block; `is_in_round`: the run was in a round before it."""
        if block.has_changed:
            self._places[blake3_hash(block.raw)] = len(self._changes)
            self._changes.append(block.made_s)
        for effect in block.effects:
            key = _get_key(effect.message)
            if key is not None:
                self.effects[key] += 1
        for payment in block.landed:
            self._count_payment(payment, is_in_round=is_in_round)
            begun = self._begun.pop(payment.signature, None)
            if begun is not None:
                begun_s, sender = begun
                self.landed += 1
                self.orphans += sender in self._gone
                if sender not in self._gone:
                    self.sending_s = max(self.sending_s, block.made_s - begun_s)

    def _count_payment(self, payment: Payment, *, is_in_round: bool) -> None:
        """A refused transaction costs as much as any other."""
        name = self.names.get(payment.wallet)
        if name is None:
            return  # the owner's
        paid = (self.in_rounds if is_in_round and not payment.is_join else self.outside).setdefault(name, Paid())
        paid.transactions += 1
        paid.signatures += payment.signatures

    def note_shown(self, name: str, life: int, raw: bytes) -> None:
        place = self._places.get(blake3_hash(raw))
        if place is None:
            return
        former_life, former = self._seen.get(name, (0, 0))
        if former_life == life and former + 1 < len(self._changes) and former < place:
            behind_s = trio.current_time() - self._changes[former + 1]
            self.behind_s[name] = max(behind_s, self.behind_s.get(name, 0.0))
        self._seen[name] = (life, place)

    def note_sent(self, signature: str, sender: tuple[str, int]) -> None:
        """A process, by its machine's name and its life, sends a transaction for the first time or again."""
        if signature in self._begun:
            self.resent += 1
        else:
            self._begun[signature] = trio.current_time(), sender

    def note_gone(self, sender: tuple[str, int]) -> None:
        self._gone.add(sender)

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
