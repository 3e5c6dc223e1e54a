"""The ledger of a simulated chain: transactions go into blocks, and the state machine applies what they say.

As on the real chain, time and slot of a message are those of its block, the entropy of a seed is the hash of a recorded
slot, a refused transaction changes nothing (so K3 is the sender's business), and one signature takes effect once.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.rules.apply import BY_TYPE, Sender, apply
from psyche.core.rules.rounds import RECORDED_SLOTS, find_entropy
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.limits import MAX_CLIENTS
from psyche.core.state.messages import Join, Message, ReclaimSlot, Recover, ReportEquivocation, Tick
from psyche.core.state.state import Coordinator, SlotState
from psyche.errors import BackendError, PsycheError
from psyche.server.evidence import check_report
from psyche.wire.backend import NotOwner
from psyche.wire.crypto import blake3_hash

BLOCK_HASHES: Final = 150  # blocks after which a transaction that names an older one cannot land any more
KEPT_BLOCKS: Final = 200  # that endpoints may still show
KEPT_STATUSES: Final = 4_096


class NotInstruction(BackendError):
    """The programs of a chain have no such instruction, or not in this situation."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Messages that take effect together or not at all.

    Args:
        messages: what is asked for, in order.
        signers: the keys that signed; the first one is the wallet, in whose name the messages are.
        block_hash: a recent block, after which the transaction expires.
        signature: the wallet's; of the same bytes it is the same one.
        evidence: two signed results, which the chain checks before a report of equivocation counts.
    """

    messages: tuple[Message, ...]
    signers: tuple[bytes, ...]
    block_hash: bytes
    signature: bytes
    evidence: tuple[bytes, bytes] | None = None

    @property
    def wallet(self) -> bytes:
        """The key in whose name the messages are."""
        return self.signers[0]

    @property
    def paid_signatures(self) -> int:
        """How many signatures the wallet pays for: those of evidence, which the chain checks, are among them."""
        return len(set(self.signers)) + len(self.evidence or ())


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """The slot in which a transaction landed, and the error with which it failed."""

    slot: int
    error: PsycheError | None


@dataclass(frozen=True, slots=True)
class Effect:
    """A message that took effect: the state machine applied it and some byte has changed."""

    message: Message
    sender: bytes
    slot: int
    now: int
    signature: bytes  # of its transaction


@dataclass(frozen=True, slots=True)
class ChainBlock:
    """A block, and the account of the run after it.

    `height` counts blocks, `slot` also those that were skipped. `unix` is the Clock that its transactions see,
    `made_s` the simulated time. `has_changed`: the account is not that of the block before.
    """

    slot: int
    height: int
    hash: bytes
    made_s: float
    unix: int
    raw: bytes
    has_changed: bool
    effects: tuple[Effect, ...] = ()
    landed: tuple[Transaction, ...] = ()  # refused ones too


@dataclass(slots=True)
class Blockchain:
    """The blocks of a chain on which one run lives; `produce` makes the next one.

    Args:
        state: the run as it was created; owned from now on.
        owner: the key whose wallet may command the run.
        rng: the source of the blocks' hashes and of chance.
        unix: the Clock of the first block.
        skipped: the share of slots without a block.
        on_block: called with each block.
        is_halted: it makes no blocks.
    """

    state: Coordinator
    owner: bytes
    rng: random.Random
    unix: int
    skipped: float = 0.0
    on_block: list[Callable[[ChainBlock], None]] = field(default_factory=list[Callable[[ChainBlock], None]])
    is_halted: bool = False
    slot: int = 0
    blocks: deque[ChainBlock] = field(default_factory=lambda: deque(maxlen=KEPT_BLOCKS))
    _recorded: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=RECORDED_SLOTS))
    _heights: dict[bytes, int] = field(default_factory=dict)  # of recent blocks, by hash
    _pending: dict[bytes, Transaction] = field(default_factory=dict)
    _statuses: dict[bytes, TransactionStatus] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the first block."""
        self._add_block(0.0, encode_state(self.state), ())

    @property
    def newest(self) -> ChainBlock:
        """The newest block."""
        return self.blocks[-1]

    @property
    def waiting(self) -> int:
        """The number of transactions that wait for a block."""
        return len(self._pending)

    def get_status(self, signature: bytes) -> TransactionStatus | None:
        """How a transaction landed; None if it has not."""
        return self._statuses.get(signature)

    def submit(self, transaction: Transaction) -> None:
        """Give a transaction to the leaders; what has landed already, or waits to, is not taken again."""
        if transaction.signature not in self._statuses:
            self._pending.setdefault(transaction.signature, transaction)

    def produce(self, now_s: float, unix: int) -> ChainBlock | None:
        """End a slot; return its block, or None if the slot was skipped.

        `now_s` is the simulated time. The Clock never goes back: an earlier `unix` counts as the last one.
        """
        self.slot += 1
        self.unix = max(self.unix, unix)
        if self.rng.random() < self.skipped or self.is_halted:
            return None
        effects: list[Effect] = []
        waiting, self._pending = self._pending, {}
        landed = [one for one in waiting.values() if self._execute(one, effects)]
        raw = encode_state(self.state) if effects else self.newest.raw
        block = self._add_block(now_s, raw, tuple(effects), tuple(landed))
        for notify in tuple(self.on_block):
            notify(block)
        return block

    def _add_block(
        self, now_s: float, raw: bytes, effects: tuple[Effect, ...], landed: tuple[Transaction, ...] = ()
    ) -> ChainBlock:
        last = self.newest if self.blocks else None
        height = 0 if last is None else last.height + 1
        hash_ = self.rng.randbytes(32)
        block = ChainBlock(self.slot, height, hash_, now_s, self.unix, raw, bool(effects), effects, landed)
        self.blocks.append(block)
        self._recorded.append((block.slot, block.hash))
        self._heights[block.hash] = height
        while len(self._heights) > BLOCK_HASHES + 1:
            del self._heights[next(iter(self._heights))]
        while len(self._statuses) > KEPT_STATUSES:
            del self._statuses[next(iter(self._statuses))]
        return block

    def _execute(self, transaction: Transaction, effects: list[Effect]) -> bool:
        """Carry out a transaction; whether it landed, and not expired without a trace."""
        if transaction.block_hash not in self._heights:
            return False
        error: PsycheError | None = None
        try:
            effects += self.carry_out(self.state, transaction)
        except PsycheError as refused:
            error = refused
        self._statuses[transaction.signature] = TransactionStatus(self.slot, error)
        return True

    def carry_out(self, state: Coordinator, transaction: Transaction) -> list[Effect]:
        """Apply all messages of a transaction to a state, or none; return what took effect.

        Raises:
            CoordinatorError: the state machine refuses one of the messages.
            BackendError: the programs refuse one: its sender may not send it, or there is no such instruction.
        """
        before = encode_state(state) if len(transaction.messages) > 1 else None
        effects: list[Effect] = []
        try:
            for message in transaction.messages:
                applied = self._fill_in(state, transaction, message)
                if apply(state, self.unix, self.slot, transaction.wallet, applied):
                    effects.append(Effect(applied, transaction.wallet, self.slot, self.unix, transaction.signature))
        except (CoordinatorError, BackendError):
            if before is not None:
                _restore(state, before)
            raise
        return effects

    def _fill_in(self, state: Coordinator, transaction: Transaction, message: Message) -> Message:
        """The message as the programs pass it on, after their own checks."""
        if BY_TYPE[type(message)].sender is Sender.OWNER and transaction.wallet != self.owner:
            raise NotOwner("only the owner of the run may do this")
        if isinstance(message, Recover) or (isinstance(message, ReclaimSlot) and _has_room(state)):
            raise NotInstruction(f"{type(message).__name__} is no instruction, or not now")
        if isinstance(message, Join) and message.p2p not in transaction.signers:
            raise NotInstruction("the session key did not sign the join (M1)")
        if isinstance(message, ReportEquivocation):
            check_report(state, message, transaction.evidence)
        return replace(message, entropy=find_entropy(state, self._recorded)) if isinstance(message, Tick) else message


def _has_room(state: Coordinator) -> bool:
    slots = state.registry.slots
    return len(slots) < MAX_CLIENTS or any(slot.state is SlotState.FREE for slot in slots)


def _restore(state: Coordinator, raw: bytes) -> None:
    """Give a state its former value."""
    former = decode_state(raw)
    for name in state.__slots__:
        setattr(state, name, getattr(former, name))


def sign_transaction(
    messages: Sequence[Message], signers: Sequence[bytes], block_hash: bytes, evidence: tuple[bytes, bytes] | None
) -> Transaction:
    """Sign messages. No real signature is computed: nobody in the simulation forges one."""
    parts = (repr(tuple(messages)).encode(), *signers, block_hash, *(evidence or ()))
    return Transaction(tuple(messages), tuple(signers), block_hash, blake3_hash(*parts), evidence)
