"""The `Backend` on a chain: watches the run's account, sends this client's messages, and ticks.

Nobody hosts the record there, so each client does its share of what a server does by itself: it ticks when a
transition is due, and keeps its join alive.
"""

import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from psyche.backends.solana.floor import NoFloor, SlotFloor
from psyche.backends.solana.link import ChainTime, Link, Reading, TransactionExpired
from psyche.backends.solana.logic import (
    JOIN_VALID_S,
    Judge,
    RecordView,
    Standing,
    Taken,
    Ticker,
    find_own_slot,
    is_renewal_due,
    is_tick_due,
)
from psyche.backends.solana.version import check_version
from psyche.core.encoding.account import decode_state
from psyche.core.state.errors import ClientsFull, CoordinatorError, Halted
from psyche.core.state.messages import Join, Message, ReclaimSlot, Tick, Withdraw
from psyche.core.state.state import Coordinator, RunState
from psyche.errors import BackendError, PsycheError
from psyche.telemetry import kinds
from psyche.telemetry.sink import EventSink, NoEvents
from psyche.wire.address_record import AddressRecord
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Proof
from psyche.wire.report import SelfReport

TICK_EVERY_S: Final = 0.5
LOOK_AHEAD_S: Final = 1  # the chain may be ahead of this client's idea of its time
RENEW_EVERY_S: Final = 5.0
NEVER: Final = 1 << 63  # a slot that no chain reaches
CATCH_UP_S: Final = 4.0  # until a record shows what a refused message has done already: the slowest confirmation


@dataclass(frozen=True, slots=True)
class ChainPlatform:
    """The client's interface to its machine.

    Args:
        rng: decides which client ticks.
        decode: decodes a record that is shown; called in a thread.
        floor: what this client knew when its last process ended.
    """

    rng: random.Random = field(default_factory=random.SystemRandom)
    floor: SlotFloor = field(default_factory=NoFloor)
    decode: Callable[[bytes], Coordinator] = decode_state


@dataclass(frozen=True, slots=True)
class ChainStatistics:
    """The current queue sizes of a backend."""

    unanswered: int  # messages that are being sent


class SolanaBackend:
    """A `wire.ports.Backend` over a chain. `run` must be running while it is used (or use `open_chain_backend`).

    Args:
        link: the chain; it signs with `wallet` and `p2p`.
        wallet: the public key that joins and pays.
        p2p: the client's public session key.
        sink: receives events.
        platform: randomness; that of this machine if not given.
    """

    def __init__(
        self, link: Link, wallet: bytes, p2p: bytes, *, sink: EventSink | None = None,
        platform: ChainPlatform | None = None,
    ) -> None:  # fmt: skip
        self._link = link
        self._wallet, self._p2p = wallet, p2p
        self._sink = sink or NoEvents()
        self._platform = platform or ChainPlatform()
        self._view = RecordView(NEVER)
        self._judge = Judge(wallet, self._view)
        self._ticker = Ticker(self._platform.rng)
        self._time_at_s = -math.inf  # when the chain's time was asked for last
        self._turns: dict[type[Message], trio.Lock] = {}
        self._unanswered = 0
        self._place: tuple[int, int, RunState] | None = None  # in the run, of the record shown last
        self._has_joined = False  # the record has shown the own join, and no withdrawal followed
        self._changed = trio.Event()
        self._failure: PsycheError | None = None

    # --- the record ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the chain until cancelled.

        Raises:
            BackendError: it gives up for good; every waiting call raises the same error.
        """
        try:
            known = await trio.to_thread.run_sync(self._platform.floor.read)
            self._view.min_slot = max(known, await self._link.get_newest_slot())  # M9
            async with open_plain_nursery() as nursery:
                for task in (self._watch, self._keep_ticking, self._keep_joined):
                    nursery.start_soon(task)
        except BackendError as error:
            self._sink.emit(kinds.ServerGivenUp(reason=str(error)))
            self._fail(error)
            raise
        finally:
            self._fail(BackendError("the client's connection to the chain was stopped"))

    async def _watch(self) -> None:
        async with aclosing(self._link.readings()) as readings:
            async for reading in readings:
                self._take(reading)
        raise BackendError("the chain is not watched any more")

    def _take(self, reading: Reading) -> None:
        match self._view.take(reading):
            case Taken.NEW:
                self._check_own_slot()
                self._note_change()
            case Taken.UNREADABLE | Taken.FORKED:
                self._sink.emit(kinds.StateMismatch(reason=f"{reading.endpoint}: {self._view.problem}"))
            case Taken.OTHER_RUN:
                raise BackendError(self._view.problem)
            case Taken.KNOWN | Taken.OLD:
                pass

    def _check_own_slot(self) -> None:
        """End where another machine has taken this wallet's place: else both would take it from each other for ever."""
        slot = find_own_slot(self._view.get_state(), self._wallet)
        if slot is None:
            return
        if slot.p2p == self._p2p:
            self._has_joined = True
        elif self._has_joined:
            raise BackendError(
                f"another machine takes part with this wallet now, under the p2p key {slot.p2p.hex()}: give each "
                "machine a wallet of its own, or stop the other one"
            )

    async def states(self) -> AsyncGenerator[Coordinator, None]:
        """Receive states as they change: only the newest, with increasing nonces; each is the caller's own copy.

        Raises:
            BackendError: the backend gave up for good.
            WrongVersion: the run's owner wants another version of this program.
        """
        seen = -1
        while True:
            while self._view.nonce <= seen:
                self._check_alive()
                await self._changed.wait()
            raw, slot, seen = self._view.raw, self._view.slot, self._view.nonce
            state = await trio.to_thread.run_sync(self._platform.decode, raw)
            check_version(state)  # P9: it changes only while the run is paused
            await self._remember(state, slot)
            yield state

    async def _remember(self, state: Coordinator, slot: int) -> None:
        """Note what is about to be shown: all endpoints may be behind it when this client starts again (M9)."""
        place = (state.progress.epoch, state.current.height, state.run_state)
        if place != self._place:
            self._place = place
            await trio.to_thread.run_sync(self._platform.floor.write, slot)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise BackendError(str(self._failure)) from self._failure

    def _fail(self, error: PsycheError) -> None:
        self._failure = self._failure or error
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- time ------------------------------------------------------------------------------------

    async def _ask_time(self) -> ChainTime:
        self._judge.time = await self._link.get_time()
        self._time_at_s = trio.current_time()
        return self._judge.time

    def _estimate_unix(self) -> int:
        """The chain's clock, carried on by the time that has passed here."""
        return self._judge.time.unix + int(trio.current_time() - self._time_at_s)

    async def _refresh_time(self) -> None:
        if trio.current_time() - self._time_at_s > TICK_EVERY_S:
            await self._ask_time()

    # --- messages --------------------------------------------------------------------------------

    async def submit(self, message: Message, proof: Proof = None) -> None:
        """Submit a message, one of a kind at a time; what is on record already is a success (K3).

        Raises:
            CoordinatorError: the rules refuse it; if its round is over, nothing is sent.
            BackendError: the backend gave up for good.
        """
        turn = self._turns.setdefault(type(message), trio.Lock())
        async with turn:
            await self._wait_for_record()
            self._unanswered += 1
            try:
                await self._submit(message, proof)
            finally:
                self._unanswered -= 1

    async def _wait_for_record(self) -> None:
        while self._view.nonce < 0 or self._view.is_doubtful:
            self._check_alive()
            await self._changed.wait()
        self._check_alive()

    async def _submit(self, message: Message, proof: Proof) -> None:
        await self._refresh_time()
        if isinstance(message, Join):
            await self._join(message, proof)
            return
        if isinstance(message, Withdraw):
            self._has_joined = False
        standing = self._judge.judge(message)
        if standing is Standing.DONE:
            return
        ticks = (Tick(None),) if standing is Standing.SEND_WITH_TICK else ()
        try:
            await self._send((message, *ticks), proof, message)
        except Halted:
            if not ticks:
                raise
            await self._send((message,), proof, message)  # the run was paused meanwhile: only the tick fails there

    async def _send(self, messages: tuple[Message, ...], proof: Proof, judged: Message) -> None:
        """Send messages until they are on record, or too late."""
        try:
            await self._link.send(messages, proof, is_wanted=lambda: self._judge.is_wanted(judged))
        except TransactionExpired:
            if not self._judge.is_done(judged):
                self._judge.judge(judged)  # raises why it is too late
                raise
        except CoordinatorError:
            if not await self._becomes_done(judged):
                raise

    async def _becomes_done(self, message: Message) -> bool:
        """Whether the record shows within a confirmation that an earlier copy of a refused message has landed (K3)."""
        with trio.move_on_after(CATCH_UP_S):
            while not self._judge.is_done(message):
                self._check_alive()
                await self._changed.wait()
        return self._judge.is_done(message)

    async def _join(self, message: Join, proof: Proof = None) -> None:
        """Join for a limited time, so that an epoch is not formed with a client that has died meanwhile (M2)."""
        message = replace(message, expires_unix=self._estimate_unix() + JOIN_VALID_S)
        messages: tuple[Message, ...] = (message,)
        try:
            self._judge.judge(message)
        except ClientsFull:
            self._judge.judge(ReclaimSlot())  # raises if no slot is idle; a server does this by itself (M4)
            messages = (ReclaimSlot(), message)
        await self._link.send(messages, proof)

    async def _keep_joined(self) -> None:
        """Renew the join while it waits for a formation."""
        while True:
            await trio.sleep(RENEW_EVERY_S)
            if self._view.nonce < 0 or not self._has_joined:
                continue
            if is_renewal_due(self._view.get_state(), self._wallet, self._p2p, self._estimate_unix()):
                await self._try(Join(self._p2p))

    # --- ticks -----------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Tick if that would change the record; the backend does so by itself while it runs (T3)."""
        if await self._is_tick_due():
            await self._link.send((Tick(None),), is_wanted=self._is_still_due)

    async def _keep_ticking(self) -> None:
        while True:
            await trio.sleep(TICK_EVERY_S)
            if self._view.nonce < 0 or self._view.is_doubtful:
                continue
            if await self._is_tick_due() and self._ticker.decide(self._view.get_state()):
                await self._try(Tick(None))

    async def _is_tick_due(self) -> bool:
        state = self._view.get_state()
        unix = self._estimate_unix() if math.isfinite(self._time_at_s) else 0
        hoped = ChainTime(state.current.entropy_slot + 1, unix + LOOK_AHEAD_S)
        if unix and not is_tick_due(state, self._wallet, hoped):
            return False  # not even if the hash of the armed slot is there: the chain need not be asked
        time = await self._ask_time()
        return is_tick_due(self._view.get_state(), self._wallet, time)

    def _is_still_due(self) -> bool:
        time = ChainTime(self._judge.time.slot, self._estimate_unix())
        return is_tick_due(self._view.get_state(), self._wallet, time)

    async def _try(self, message: Message) -> None:
        """Send what nobody waits for; whether it worked shows in the record."""
        try:
            await (self.tick() if isinstance(message, Tick) else self.submit(message))
        except (CoordinatorError, TransactionExpired) as error:
            self._sink.emit(kinds.TooLate(action=type(message).__name__.lower(), reason=str(error)))

    # --- what a chain has no place for -----------------------------------------------------------

    def address_book(self) -> Sequence[AddressRecord]:
        """Return nothing: addresses never go on a chain; peers tell each other (N1 to N4)."""
        return ()

    def report(self, report: SelfReport) -> None:
        """Do nothing: what a client says of itself has no place in the record (K8)."""

    def statistics(self) -> ChainStatistics:
        """Return the current queue sizes."""
        return ChainStatistics(unanswered=self._unanswered)


@asynccontextmanager
async def open_chain_backend(
    link: Link, wallet: bytes, p2p: bytes, *, sink: EventSink | None = None, platform: ChainPlatform | None = None
) -> AsyncIterator[SolanaBackend]:
    """Open a backend that follows the chain while the block runs; the block is cancelled if it gives up for good."""
    backend = SolanaBackend(link, wallet, p2p, sink=sink, platform=platform)
    async with open_plain_nursery() as nursery:
        nursery.start_soon(backend.run)
        yield backend
        nursery.cancel_scope.cancel()
