"""What a client on a chain decides: when to tick, what is still worth sending, when to join again. No I/O, no clock.

Times come from outside: `now_s` is a clock that only moves forward, `ChainTime` is the chain's.
"""

import random
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import Final

from psyche.backends.solana.member.link import ChainTime
from psyche.backends.solana.member.view import RecordView, copy_record
from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.rules.apply import apply, is_repeat
from psyche.core.rules.rounds import RECORDED_SLOTS
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import Join, Message, Tick
from psyche.core.state.roster import is_in_epoch
from psyche.core.state.state import ClientState, Coordinator, Slot, SlotState

JOIN_VALID_S: Final = 90  # a client that dies while it waits is not formed into an epoch after this time (M2)
RENEW_BEFORE_S: Final = 45  # of the chain's clock, before a join expires; one transaction may take a minute at worst
TICKERS: Final = 2.0  # clients that send a tick that is due, on average (T3); each transaction costs its fee
TRY_AGAIN_S: Final = 2.0  # the time that most ticks take to show; only then more clients tick
MOST_TRIES: Final = 8  # 256 clients: after eight doublings all tick
KEPT_TRIALS: Final = 32  # of one record; the clients of a simulation share them
SOME_HASH: Final = b"\1" * 32  # for trying a tick: whether it has an effect does not depend on the hash


def get_entropy(state: Coordinator, slot: int) -> Entropy:
    """What the program would find for the armed slot in this slot, apart from the hash itself (E2)."""
    armed = state.current.entropy_slot
    if slot <= armed:
        return None
    return EXPIRED if slot > armed + RECORDED_SLOTS else SOME_HASH


def is_tick_due(state: Coordinator, sender: bytes, time: ChainTime) -> bool:
    """Whether a tick at this time would change the record; it changes `state`, which is a copy."""
    if state.halted:
        return False  # a tick fails there, and with it the whole transaction
    return apply(state, time.unix, time.slot, sender, Tick(get_entropy(state, time.slot)))


@lru_cache(maxsize=KEPT_TRIALS)
def _try_tick(raw: bytes, unix: int, entropy: Entropy) -> bool:
    """Whether a tick changes this record: who sends it and in which slot decides only which entropy there is."""
    state = copy_record(raw)
    return not state.halted and apply(state, unix, state.current.entropy_slot + 1, b"", Tick(entropy))


@dataclass(slots=True)
class Ticker:
    """Decides which client sends a tick that is due (T3).

    Of those that take part about `TICKERS` do; each time that no tick has shown meanwhile twice as many. Others begin
    later: they tick only if nobody is left who does.
    """

    wallet: bytes  # the client's signer key
    rng: random.Random  # the source of its chance
    _nonce: int = -1
    _tries: int = 0
    _next_s: float = 0.0

    def is_waiting(self, nonce: int, now_s: float) -> bool:
        """Whether `decide` says no to this record for now, so that it is no use to ask the chain for its time."""
        return nonce == self._nonce and now_s < self._next_s

    def decide(self, state: Coordinator, now_s: float) -> bool:
        """Draw whether this client sends the tick that is due in this record."""
        tickers = find_tickers(state)
        if state.nonce != self._nonce:
            self._nonce, self._tries = state.nonce, 0
            self._next_s = now_s if self.wallet in tickers else now_s + 2 * TRY_AGAIN_S
        if now_s < self._next_s:
            return False
        chance = TICKERS / max(1, len(tickers)) * 2**self._tries
        self._tries = min(self._tries + 1, MOST_TRIES)
        self._next_s = now_s + TRY_AGAIN_S
        return self.rng.random() < chance


def find_tickers(state: Coordinator) -> frozenset[bytes]:
    """The wallets that may be expected to tick: the Healthy members', or between epochs those that wait for one."""
    if is_in_epoch(state):
        healthy = frozenset(client.signer for client in state.clients if client.state is ClientState.HEALTHY)
        if healthy:
            return healthy
    return frozenset(slot.signer for slot in state.registry.slots if slot.state is SlotState.JOINED)


class Advice(Enum):
    """What is to be done with a message."""

    DONE = auto()  # the record has it already (K3)
    SEND = auto()
    SEND_WITH_TICK = auto()  # it makes a transition due


@dataclass(slots=True)
class AdmissionCheck:
    """Judges messages of one wallet by the newest record."""

    wallet: bytes
    view: RecordView
    time: ChainTime = field(default_factory=lambda: ChainTime(0, 0))  # the chain's time, as it was last known
    _sent: object = None  # the last message to be sent, with the record and the time by which that was decided

    def check(self, message: Message) -> Advice:
        """Decide what to do with a message now."""
        if self.is_done(message):
            return Advice.DONE
        state = self.view.copy_state()
        apply(state, self.time.unix, self.time.slot, self.wallet, message)
        self._sent = message, self.view.version, self.time
        due = not isinstance(message, Join) and is_tick_due(state, self.wallet, self.time)
        return Advice.SEND_WITH_TICK if due else Advice.SEND

    def is_done(self, message: Message) -> bool:
        """Whether the record has this message; a join counts until it has to be renewed (M2)."""
        state = self.view.state
        if isinstance(message, Join) and is_renewal_due(state, self.wallet, message.p2p, self.time.unix):
            return False
        return is_repeat(state, self.wallet, message)

    def is_tick_due(self, time: ChainTime) -> bool:
        return _try_tick(self.view.raw, time.unix, get_entropy(self.view.state, time.slot))

    def is_over(self, message: Message) -> bool:
        """Whether there is no use in sending a message any more: it is on record, or too late (T7)."""
        if not self.view.is_usable or self._sent == (message, self.view.version, self.time):
            return False  # decoding and trying a record takes milliseconds, and this is asked at each reading
        try:
            return self.check(message) is Advice.DONE
        except CoordinatorError:
            return True


def find_own_slot(state: Coordinator, wallet: bytes) -> Slot | None:
    live = (SlotState.JOINED, SlotState.LEAVING, SlotState.BANNED)
    return next((slot for slot in state.registry.slots if slot.signer == wallet and slot.state in live), None)


def is_renewal_due(state: Coordinator, wallet: bytes, p2p: bytes, unix: int) -> bool:
    """Whether the own join waits for a formation, and has expired or soon will (M2)."""
    slot = find_own_slot(state, wallet)
    if slot is None or slot.p2p != p2p or slot.state is not SlotState.JOINED or state.halted:
        return False
    waits = slot.active >= state.registry.next_active
    return waits and 0 < slot.expires_unix < unix + RENEW_BEFORE_S
