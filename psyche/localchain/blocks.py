"""What a chain over core tells of its blocks; it imports no package of the extra `solana`."""

from collections.abc import Sequence
from dataclasses import dataclass

from psyche.core.state.messages import Message


@dataclass(frozen=True, slots=True)
class Effect:
    """A message that took effect: the state machine applied it and some byte has changed."""

    message: Message
    sender: bytes
    slot: int
    now: int
    signature: bytes  # of its transaction


@dataclass(frozen=True, slots=True)
class Payment:
    """A transaction that landed, and what its wallet paid for: signatures that the chain checked are among them."""

    signature: str
    wallet: bytes
    signatures: int
    is_join: bool


@dataclass(frozen=True, slots=True)
class ChainBlock:
    """A block, and the run's account after it.

    `height` counts blocks, `slot` also those that were skipped. `unix` is the Clock that its transactions saw, `made_s`
    the time at which it was complete. `last_height`: until when a transaction that names its hash can land.
    `has_changed`: the account is not that of the block before.
    """

    slot: int
    height: int
    hash: bytes
    last_height: int
    made_s: float
    unix: int
    raw: bytes
    has_changed: bool
    effects: Sequence[Effect] = ()
    landed: Sequence[Payment] = ()
