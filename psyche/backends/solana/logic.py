"""What a client on a chain decides: which reading counts, when to tick, what is still worth sending. No I/O, no clock.

Times come from outside: `now_s` is a clock that only moves forward, `ChainTime` is the chain's.
"""

import random
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from psyche.backends.solana.link import ChainTime, Reading
from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.encoding.account import decode_state
from psyche.core.rules.apply import apply, is_repeat
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import Join, Message, Tick
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import Coordinator, Slot, SlotState
from psyche.errors import WireError

KEPT_HASHES: Final = 512  # slots whose hashes the chain keeps (E2)
JOIN_VALID_S: Final = (
    90  # how long a join stands without being renewed: a dead client is not formed into an epoch later
)
RENEW_BEFORE_S: Final = 45  # two tries fit, each with the time that a transaction takes to expire
TICKERS: Final = 2.0  # clients that send a tick that is due, on average (T3); each transaction costs its fee
SOME_HASH: Final = b"\1" * 32  # for trying a tick: whether it has an effect does not depend on the hash


class Taken(Enum):
    """What became of a reading."""

    NEW = auto()
    KNOWN = auto()
    OLD = auto()  # of a lower nonce, or of a slot before the client's start (M9)
    FORKED = auto()  # other bytes under the nonce that is known
    UNREADABLE = auto()
    OTHER_RUN = auto()  # the account was closed, and made again for another run


@dataclass(slots=True)
class RecordView:
    """The newest record that any endpoint has shown.

    Args:
        min_slot: readings of earlier slots may be older than this process: acting on one of them, a restarted member
            could sign a second result for a round (M9).
    """

    min_slot: int
    raw: bytes = b""
    nonce: int = -1
    slot: int = 0
    run_uid: bytes = b""
    is_doubtful: bool = False  # two endpoints contradict each other: nothing is sent until the record moves on
    problem: str = ""  # of the last reading that could not be used

    def take(self, reading: Reading) -> Taken:
        """Take a reading; `problem` then says what is wrong with it."""
        if reading.slot < self.min_slot:
            return Taken.OLD
        if reading.raw == self.raw:
            return Taken.KNOWN
        try:
            state = decode_state(reading.raw)
        except WireError as error:
            self.problem = str(error)
            return Taken.UNREADABLE
        if self.run_uid not in (b"", state.run_uid):
            self.problem = "the run was created again while this client took part in the old one: start it again"
            return Taken.OTHER_RUN
        return self._merge(state, reading)

    def _merge(self, state: Coordinator, reading: Reading) -> Taken:
        if state.nonce < self.nonce:
            return Taken.OLD
        if state.nonce == self.nonce:
            self.is_doubtful = True
            self.problem = f"two endpoints show different records with nonce {state.nonce}"
            return Taken.FORKED
        self.raw, self.nonce, self.slot = reading.raw, state.nonce, reading.slot
        self.run_uid, self.is_doubtful = state.run_uid, False
        return Taken.NEW

    def get_state(self) -> Coordinator:
        """A copy of the record."""
        return decode_state(self.raw)


def get_entropy(state: Coordinator, slot: int) -> Entropy:
    """What the program would find for the armed slot in this slot, apart from the hash itself (E2)."""
    armed = state.current.entropy_slot
    if slot <= armed:
        return None
    return EXPIRED if slot > armed + KEPT_HASHES else SOME_HASH


def is_tick_due(state: Coordinator, sender: bytes, time: ChainTime) -> bool:
    """Whether a tick at this time would change the record; it changes `state`, which is a copy."""
    if state.halted:
        return False  # a tick fails there, and with it the whole transaction
    return apply(state, time.unix, time.slot, sender, Tick(get_entropy(state, time.slot)))


@dataclass(slots=True)
class Ticker:
    """Decides which client sends a tick that is due: about `TICKERS` of all, and more each time that none came (T3)."""

    rng: random.Random
    _nonce: int = -1
    _tries: int = 0

    def decide(self, state: Coordinator) -> bool:
        """Draw whether this client sends the tick that is due in this record; ask again at the next interval."""
        if state.nonce != self._nonce:
            self._nonce, self._tries = state.nonce, 0
        chance = TICKERS / max(1, count_clients(state)) * 2**self._tries
        self._tries += 1
        return self.rng.random() < chance


def count_clients(state: Coordinator) -> int:
    """How many clients may be expected to tick: the Healthy members, and between epochs those that wait."""
    return get_healthy(state).bit_count() or sum(slot.state is SlotState.JOINED for slot in state.registry.slots)


class Standing(Enum):
    """What is to be done with a message."""

    DONE = auto()  # the record has it already (K3)
    SEND = auto()
    SEND_WITH_TICK = auto()  # it makes a transition due


@dataclass(slots=True)
class Judge:
    """Judges messages of one wallet by the newest record."""

    wallet: bytes
    view: RecordView
    time: ChainTime = field(default_factory=lambda: ChainTime(0, 0))

    def judge(self, message: Message) -> Standing:
        """Decide what to do with a message now.

        Raises:
            CoordinatorError: the rules refuse it, for example because its round is over: it is not worth a fee.
        """
        state = self.view.get_state()
        if not isinstance(message, Join) and is_repeat(state, self.wallet, message):
            return Standing.DONE
        apply(state, self.time.unix, self.time.slot, self.wallet, message)
        due = not isinstance(message, Join) and is_tick_due(state, self.wallet, self.time)
        return Standing.SEND_WITH_TICK if due else Standing.SEND

    def is_done(self, message: Message) -> bool:
        """Whether the record has this message."""
        return is_repeat(self.view.get_state(), self.wallet, message)

    def is_wanted(self, message: Message) -> bool:
        """Whether a message that is not confirmed yet should still be tried."""
        try:
            return not self.is_done(message) and self.judge(message) is not Standing.DONE
        except CoordinatorError:
            return False


def find_own_slot(state: Coordinator, wallet: bytes) -> Slot | None:
    """The slot of a wallet."""
    live = (SlotState.JOINED, SlotState.LEAVING, SlotState.BANNED)
    return next((slot for slot in state.registry.slots if slot.signer == wallet and slot.state in live), None)


def is_renewal_due(state: Coordinator, wallet: bytes, p2p: bytes, unix: int) -> bool:
    """Whether the own join waits for a formation and will expire soon."""
    slot = find_own_slot(state, wallet)
    if slot is None or slot.p2p != p2p or slot.state is not SlotState.JOINED or state.halted:
        return False
    waits = slot.active >= state.registry.next_active
    return waits and 0 < slot.expires_unix < unix + RENEW_BEFORE_S
