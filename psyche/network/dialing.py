"""Dialing: which peers a node dials, when, and for how long (N3)."""

import logging
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from psyche.errors import NetworkError
from psyche.network.addresses.table import AddressTable
from psyche.network.limits import NetworkLimits
from psyche.network.streams import Signal

_log: Final = logging.getLogger("psyche.network")
MAX_DIALS: Final = 2  # hello included; with more at once on a busy machine none finishes in time
YIELD_S: Final = 0.1  # per wanted peer: how long this end waits for the other to dial first
KNOWN_SILENCES: Final = 3  # failed dials after which a member or former peer ranks below peers never seen
HURRIED_SHARE: Final = 1 / 4  # share of the dial timeout for a dial that delays others
MAX_SILENCES: Final = 16  # counted per peer, so that one away for days ranks no lower than other silent ones
Dial = Callable[[bytes, str], Awaitable[None]]


@dataclass(slots=True)
class Redial:
    next_at: float = 0.0
    delay_s: float = 0.0
    is_dialing: bool = False
    is_rescheduled: bool = False  # since the running dial began: what was scheduled then holds when it ends
    failure: str = ""  # why the last dial failed
    silences: int = 0  # slow failed dials in a row; a new address does not reset them
    was_here: bool = False


class Wanted(Protocol):
    def is_wanted(self, key: bytes) -> bool: ...

    def is_here(self, key: bytes) -> bool: ...

    def is_member(self, key: bytes) -> bool: ...

    async def wait_for_hello(self, key: bytes) -> str: ...


@dataclass(slots=True, eq=False)
class DialTurn:
    rank: int  # the lowest goes first
    patience_s: float  # how long it may take while dials of the same rank wait
    begun_at: float = 0.0
    took_s: float = 0.0
    has_begun: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)  # pyright: ignore[reportArgumentType, reportCallIssue]


class DialTurns:
    """Runs a few dials at a time (N3). Peers that did not answer before go last, and are cut short if others wait.

    In an open run anybody may publish keys with addresses where nothing answers. A dial to such a key gets its
    full time only while no other dial waits, so that many of them delay honest peers only a little.
    """

    def __init__(self, hurried_s: float) -> None:
        self._hurried_s = hurried_s
        self._waiting: list[DialTurn] = []  # by arrival
        self._running: list[DialTurn] = []

    @asynccontextmanager
    async def take(self, turn: DialTurn) -> AsyncIterator[None]:
        """Wait for a turn, then run the block; it is cancelled if it has to make room for other dials."""
        self._waiting.append(turn)
        self._go_on()
        try:
            await turn.has_begun.wait()
            with turn.scope:
                yield
        finally:
            turn.took_s = trio.current_time() - turn.begun_at
            (self._running if turn in self._running else self._waiting).remove(turn)
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and len(self._running) < MAX_DIALS:
            turn = min(self._waiting, key=lambda waiting: waiting.rank)
            self._waiting.remove(turn)
            self._running.append(turn)
            turn.begun_at = trio.current_time()
            turn.has_begun.set()
        best = min((turn.rank for turn in self._waiting), default=math.inf)
        for turn in self._running:
            if best <= turn.rank:
                limit_s = self._hurried_s if best < turn.rank else turn.patience_s
                turn.scope.deadline = min(turn.scope.deadline, turn.begun_at + limit_s)


class Dialer:
    """Dials the wanted peers: after 1 s, doubling to 60 s, with jitter."""

    def __init__(
        self, key: bytes, limits: NetworkLimits, addresses: AddressTable, wanted: Wanted, dial: Dial,
        rng: random.Random, start_soon: Callable[..., None],
    ) -> None:  # fmt: skip
        self._key = key
        self._limits = limits
        self._addresses = addresses
        self._wanted = wanted
        self._dial_address = dial
        self._rng = rng
        self._start_soon = start_soon
        self._redials: dict[bytes, Redial] = {}
        self._wake = Signal()
        self._turns = DialTurns(HURRIED_SHARE * limits.dial_s)

    def get(self, key: bytes) -> Redial | None:
        return self._redials.get(key)

    def dial_now(self, keys: frozenset[bytes]) -> None:
        """Dial the keys whose address is known, resetting their back-off."""
        known = self._addresses.get_keys()
        for key in sorted(keys & known):  # sorted, so that simulated runs are reproducible
            # Both ends learn of each other at the same moment: one dials at once, the other only after giving it time.
            wait_s = 0.0 if self._key < key else min(YIELD_S * len(known), 2 * self._limits.redial_first_s)
            self._schedule(key, wait_s)
        self._wake.notify()

    def _schedule(self, key: bytes, wait_s: float) -> Redial:
        redial = self._redials.setdefault(key, Redial())
        redial.next_at, redial.delay_s = trio.current_time() + wait_s, self._limits.redial_first_s
        redial.is_rescheduled = True
        return redial

    def forget_unknown(self) -> None:
        known = self._addresses.get_keys()
        self._redials = {k: r for k, r in self._redials.items() if k in known or self._wanted.is_here(k)}

    def note_connected(self, key: bytes) -> None:
        redial = self._redials.get(key)
        if redial is not None:
            redial.silences = 0

    def note_gone(self, key: bytes, *, was_connected: bool) -> None:
        if was_connected:
            redial = self._schedule(key, self._rng.random() * self._limits.redial_first_s)
            redial.was_here = True
        self._wake.notify()

    async def run(self) -> None:
        while True:
            next_at = trio.current_time() + self._limits.redial_longest_s
            for key, redial in list(self._redials.items()):
                if redial.is_dialing or not self._wanted.is_wanted(key):
                    continue
                if redial.next_at <= trio.current_time():
                    redial.is_dialing, redial.is_rescheduled = True, False
                    self._start_soon(self._dial, key, redial)
                else:
                    next_at = min(next_at, redial.next_at)
            with trio.move_on_at(next_at):
                await self._wake.wait()

    async def _dial(self, key: bytes, redial: Redial) -> None:
        try:
            addresses = self._addresses.get_addresses(key)
            if not addresses:
                redial.failure = "its address is not known, or has expired"
            for address in addresses:
                if await self._dial_at(key, address, redial):
                    break
        finally:
            redial.is_dialing = False
            if not redial.is_rescheduled:
                redial.next_at = trio.current_time() + redial.delay_s * (0.5 + 0.5 * self._rng.random())
                redial.delay_s = min(2 * redial.delay_s, self._limits.redial_longest_s)
            self._wake.notify()

    async def _dial_at(self, key: bytes, address: str, redial: Redial) -> bool:
        lead = KNOWN_SILENCES if redial.was_here or self._wanted.is_member(key) else 0
        turn = DialTurn(redial.silences - lead, min(1.0, HURRIED_SHARE * 2**redial.silences) * self._limits.dial_s)
        has_answered, failure = False, "no answer yet, given up because other peers wait to be dialed"
        async with self._turns.take(turn):
            if not self._wanted.is_here(key):
                is_known = address in self._addresses.get_addresses(key)  # it may have moved while it waited
                failure = await self._try_address(key, address) if is_known else "its address has changed"
            has_answered = not failure or self._wanted.is_here(key)
            if self._wanted.is_here(key):
                failure = "no hello yet, given up because other peers wait to be dialed"
                failure = await self._wanted.wait_for_hello(key)
        redial.failure = failure
        if failure and turn.took_s >= HURRIED_SHARE * self._limits.dial_s:
            redial.silences = min(redial.silences + 1, MAX_SILENCES)
        return has_answered

    async def _try_address(self, key: bytes, address: str) -> str:
        try:
            with trio.fail_after(self._limits.dial_s):
                await self._dial_address(key, address)
        except (NetworkError, trio.TooSlowError) as error:
            failure = str(error) or f"no answer within {self._limits.dial_s:g} s"
            _log.debug("peer %s at %s: %s", key.hex()[:16], address, failure)
            return failure
        return ""
