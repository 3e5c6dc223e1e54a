"""The `Backend` on a chain: watches the run's account, sends this client's messages, and ticks.

Nobody hosts the record there, so each client does its share of what a server does by itself: it ticks when a
transition is due, and keeps its join alive.
"""

import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from psyche.backends.solana.floor import NoFloor, SlotFloor
from psyche.backends.solana.link import ChainTime, Link, Reading, TransactionExpired
from psyche.backends.solana.logic import (
    JOIN_VALID_S,
    RENEW_BEFORE_S,
    Advice,
    Judge,
    Ticker,
    find_own_slot,
    is_renewal_due,
)
from psyche.backends.solana.version import check_version
from psyche.backends.solana.view import RecordView, Taken, get_kept_phase
from psyche.backends.waits import NamedWaits
from psyche.core.encoding.account import decode_state
from psyche.core.rules.apply import BY_TYPE
from psyche.core.state.errors import ClientsFull, CoordinatorError, Halted
from psyche.core.state.messages import Join, Message, ReclaimSlot, Tick, Withdraw
from psyche.core.state.state import Coordinator
from psyche.errors import BackendError, PsycheError
from psyche.telemetry import kinds
from psyche.telemetry.sink import EventSink, NoEvents
from psyche.wire.address_record import AddressRecord
from psyche.wire.backend import NotAllowed
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Proof
from psyche.wire.report import SelfReport

TICK_EVERY_S: Final = 0.5
LOOK_AHEAD_S: Final = 1  # the chain may be ahead of this client's idea of its time
RENEW_EVERY_S: Final = 5.0
# From the answer that a transaction has landed until its account arrives too. The chain's own delay is over by then,
# however long it is; what is left is a push, or a new connection and a question if the push was cut.
CATCH_UP_S: Final = 4.0
DOUBT_S: Final = 15.0  # in this time each endpoint is asked again at least once
SILENCE_S: Final = 20.0  # endpoints are asked every few seconds, even if the account does not change
ALLOWED_AGAIN_S: Final = (1.0, 2.0, 5.0, 10.0)  # a wallet that may not join asks again after this


@dataclass(frozen=True, slots=True)
class ChainPlatform:
    """The client's interface to its machine.

    Args:
        rng: decides which client ticks.
        floor: keeps over restarts how far this client has followed the run (M9).
        decode: decodes the states that are shown; called in a thread.
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
        self._kept: object = None  # the phase that the floor names
        self._kept_slot = 0
        self._keeping = trio.Lock()
        self._view = RecordView(min_slot=0)
        self._judge = Judge(wallet, self._view)
        self._ticker = Ticker(wallet, self._platform.rng)
        self._waits = NamedWaits(self._sink)
        self._time_at_s = -math.inf  # when the chain's time was asked for last
        self._read_at_s = -math.inf  # when an endpoint showed anything last
        self._turns: dict[type[Message], trio.Lock] = {}
        self._unanswered = 0
        self._has_place = False  # the record has shown the own join, and no withdrawal followed
        self._has_withdrawn = False
        self._trouble = ""  # of what the backend sent by itself last
        self._is_known = False  # the run, since a record was shown
        self._changed = trio.Event()
        self._failure: PsycheError | None = None

    # --- the record ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the chain until cancelled.

        Raises:
            BackendError: it gives up for good; every waiting call raises the same error.
        """
        try:
            self._waits.start(kinds.Wait.HOME, "an RPC endpoint to answer", "connect")
            known = await trio.to_thread.run_sync(self._platform.floor.read)
            self._view.min_slot = max(known, await self._link.get_newest_slot())  # M9
            self._waits.start(kinds.Wait.HOME, f"an RPC endpoint at slot {self._view.min_slot} or later", "connect")
            async with open_plain_nursery() as nursery:
                for task in (
                    self._watch,
                    self._watch_silence,
                    self._settle_doubts,
                    self._keep_ticking,
                    self._keep_joined,
                ):
                    nursery.start_soon(task)
        except BackendError as error:
            self._sink.emit(kinds.HomeGivenUp(reason=str(error)))
            self._fail(error)
            raise
        finally:
            self._fail(BackendError("the client's connection to the chain was stopped"))

    async def _watch(self) -> None:
        async with aclosing(self._link.readings()) as readings:
            async for reading in readings:
                self._read_at_s = trio.current_time()
                self._take(reading)
        raise BackendError("the chain is not watched any more")

    def _take(self, reading: Reading) -> None:
        match self._view.take(reading):
            case Taken.NEW:
                self._check_own_slot()
                self._note_usable()
            case Taken.AGREED:
                self._note_usable()
            case Taken.UNREADABLE:
                self._sink.emit(kinds.StateMismatch(reason=f"{reading.endpoint}: {self._view.problem}"))
            case Taken.FORKED:
                self._sink.emit(kinds.StateMismatch(reason=f"{reading.endpoint}: {self._view.problem}"))
                if not self._view.is_usable:
                    self._waits.start(kinds.Wait.HOME, "the RPC endpoints to agree on the run's record", "go on")
                    self._note_change()
            case Taken.OTHER_RUN:
                raise BackendError(self._view.problem)
            case Taken.OLD if self._view.nonce < 0:
                what = f"an RPC endpoint at slot {self._view.min_slot}, which this client has seen already"
                self._waits.start(kinds.Wait.HOME, what, "connect")
            case Taken.KNOWN | Taken.OLD | Taken.DOUBTED:
                if self._view.is_usable:
                    self._waits.end(kinds.Wait.HOME, kinds.WaitOutcome.CONNECTED)

    def _note_usable(self) -> None:
        if not self._is_known:
            self._is_known = True
            run_id = self._view.state.run_id
            self._sink.emit(kinds.HomeConnected(run_id=run_id, program="solana"))
        self._waits.end(kinds.Wait.HOME, kinds.WaitOutcome.CONNECTED)
        self._note_change()

    async def _settle_doubts(self) -> None:
        """Go on with what most endpoints show where they contradict each other for long: reading again did not help."""
        while True:
            await self._wait_until(lambda: self._view.nonce >= 0 and not self._view.is_usable)
            nonce = self._view.nonce
            with trio.move_on_after(DOUBT_S):
                await self._wait_until(lambda: self._view.is_usable)
            if self._view.nonce == nonce and not self._view.is_usable:
                self._sink.emit(kinds.StateMismatch(reason=self._view.settle()))
                self._note_usable()

    async def _watch_silence(self) -> None:
        """Name the wait for endpoints that show nothing, not even the record that is known."""
        started_s = trio.current_time()
        while True:
            await trio.sleep(SILENCE_S / 4)
            if trio.current_time() - max(started_s, self._read_at_s) >= SILENCE_S:
                what = f"an RPC endpoint to show the run's record: none has for {SILENCE_S:.0f} s"
                if self._waits.start(kinds.Wait.HOME, what, "go on"):
                    self._sink.emit(kinds.HomeLost(reason=what, tries=0))

    def _check_own_slot(self) -> None:
        """End where another machine has taken this wallet's place: else both would take it from each other for ever."""
        slot = find_own_slot(self._view.state, self._wallet)
        if slot is None:
            return
        if slot.p2p == self._p2p:
            self._has_place = True
        elif self._has_place and not self._has_withdrawn:
            raise BackendError(
                f"another machine takes part with this wallet now, under the p2p key {slot.p2p.hex()}: give each "
                "machine a wallet of its own, or stop the other one"
            )

    async def states(self) -> AsyncGenerator[Coordinator, None]:
        """Receive states as they change: only the newest, with increasing nonces; each is the caller's own copy.

        Raises:
            BackendError: the backend gave up for good.
            VersionMismatch: the run's owner wants another version of this program.
        """
        seen = -1
        while True:
            await self._wait_until(lambda: self._view.is_usable and self._view.nonce > seen)  # noqa: B023
            raw, slot, seen = self._view.raw, self._view.slot, self._view.nonce
            state = await trio.to_thread.run_sync(self._platform.decode, raw)
            check_version(state)  # P9: it changes only while the run is paused
            await self._remember(state, slot)
            yield state

    async def _remember(self, state: Coordinator, slot: int) -> None:
        """Note what is about to be shown: all endpoints may be behind it when this client starts again (M9)."""
        phase = get_kept_phase(state)
        async with self._keeping:  # several may follow the states at once
            if phase == self._kept or slot < self._kept_slot:
                return
            try:
                await trio.to_thread.run_sync(self._platform.floor.write, slot)
            except BackendError as error:  # F16: not even a full disk ends the client
                self._sink.emit(kinds.Error(message=str(error), action="remember how far the run was followed"))
            else:
                self._kept, self._kept_slot = phase, slot

    async def _wait_until(self, is_met: Callable[[], bool]) -> None:
        """Wait for a record that meets a condition.

        Raises:
            BackendError: the backend gave up for good.
        """
        self._check_alive()
        while not is_met():
            await self._changed.wait()
            self._check_alive()

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

    async def _ask_time(self) -> None:
        self._judge.time = await self._link.get_time()
        self._time_at_s = trio.current_time()

    def _carry_time_on(self) -> ChainTime:
        """The chain's time, its clock carried on by the seconds that have passed here."""
        if not math.isfinite(self._time_at_s):
            return self._judge.time
        return replace(self._judge.time, unix=self._judge.time.unix + int(trio.current_time() - self._time_at_s))

    # --- messages --------------------------------------------------------------------------------

    async def submit(self, message: Message, proof: Proof = None) -> None:
        """Submit a message, one of a kind at a time; what is on record already is a success (K3).

        Raises:
            CoordinatorError: the rules refuse it; if its round is over, nothing is sent (T7).
            BackendError: the backend gave up for good.
        """
        if isinstance(message, Join | Withdraw):
            self._has_withdrawn = isinstance(message, Withdraw)
        self._unanswered += 1
        try:
            async with self._turns.setdefault(type(message), trio.Lock()):
                await (self._join(message, proof) if isinstance(message, Join) else self._submit(message, proof))
        finally:
            self._unanswered -= 1

    async def _submit(self, message: Message, proof: Proof) -> None:
        """Send a message until it is on record or too late; the record has shown it on return, if that is soon."""
        with_tick = True
        while (verdict := await self._consider(message)) is not Advice.DONE:
            ticks = (Tick(None),) if with_tick and verdict is Advice.SEND_WITH_TICK else ()
            try:
                has_landed = await self._send((message, *ticks), proof, lambda: self._judge.is_over(message))
            except Halted:
                if not ticks:
                    raise
                with_tick = False  # the run was paused meanwhile: maybe only the tick fails
            except CoordinatorError:
                if await self._shows(message):
                    return  # K3: an earlier transaction with it has landed
                raise
            else:
                if has_landed:
                    await self._shows(message)  # so that nobody judges it by a record without it
                    return

    async def _consider(self, message: Message) -> Advice:
        """Judge a message by the newest record and the chain's time."""
        await self._wait_until(lambda: self._view.is_usable)
        if trio.current_time() - self._time_at_s > TICK_EVERY_S:
            await self._ask_time()
        return self._judge.judge(message)

    async def _send(self, messages: tuple[Message, ...], proof: Proof, is_over: Callable[[], bool]) -> bool:
        """Carry out messages until a record shows that this is of no use any more; return whether they have landed.

        A lost transaction would otherwise keep back the next message of its kind for a minute.
        """
        has_landed = False

        async def watch(scope: trio.CancelScope) -> None:
            await self._wait_until(is_over)
            scope.cancel()

        async with open_plain_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            try:
                await self._link.send(messages, proof, is_wanted=lambda: not is_over())
                has_landed = True
            except TransactionExpired:
                pass  # the caller looks at the record again
            nursery.cancel_scope.cancel()
        return has_landed

    async def _shows(self, message: Message) -> bool:
        """Whether the record shows a message within the time of a confirmation."""
        if BY_TYPE[type(message)].is_repeat is None:
            return False
        with trio.move_on_after(CATCH_UP_S):
            await self._wait_until(lambda: self._judge.is_done(message))
        return self._judge.is_done(message)

    # --- joining ---------------------------------------------------------------------------------

    async def _join(self, message: Join, proof: Proof) -> None:
        """Join; a wallet that the run's owner has not let in yet asks again until it is (M12)."""
        refusals = 0
        while not self._has_withdrawn:
            try:
                await self._join_once(message, proof)
            except NotAllowed as error:
                if self._waits.start(kinds.Wait.PERMISSION, "the owner to allow this client's wallet", "join"):
                    self._sink.emit(kinds.NotAllowedYet(message=f"{error}. This client then joins by itself"))
                await trio.sleep(ALLOWED_AGAIN_S[min(refusals, len(ALLOWED_AGAIN_S) - 1)])
                refusals += 1
            else:
                self._waits.end(kinds.Wait.PERMISSION, kinds.WaitOutcome.ALLOWED)
                return

    async def _join_once(self, message: Join, proof: Proof) -> None:
        """Join for a limited time, so that an epoch is not formed with a client that has died meanwhile (M2).

        Raises:
            CoordinatorError: the rules refuse it.
            NotAllowed: the wallet needs the owner's authorization.
        """
        while not self._has_withdrawn and (messages := await self._consider_join(message)):
            until_unix = self._carry_time_on().unix + JOIN_VALID_S
            join = replace(message, expires_unix=until_unix)
            if await self._send((*messages[:-1], join), proof, lambda: self._is_join_over(message, until_unix)):  # noqa: B023
                await self._shows(message)
                return

    async def _consider_join(self, message: Join) -> tuple[Message, ...]:
        """What has to be sent for a join; nothing if the record has it already."""
        try:
            return () if await self._consider(message) is Advice.DONE else (message,)
        except ClientsFull:
            self._judge.judge(ReclaimSlot())  # raises if no slot is idle; a server does this by itself (M4)
            return ReclaimSlot(), message

    def _is_join_over(self, message: Join, until_unix: int) -> bool:
        is_stale = self._carry_time_on().unix + RENEW_BEFORE_S > until_unix
        return is_stale or self._has_withdrawn or self._judge.is_done(message)

    async def _keep_joined(self) -> None:
        """Renew the join while it waits for a formation."""
        while True:
            await trio.sleep(RENEW_EVERY_S)
            if not self._view.is_usable or not self._has_place or self._has_withdrawn:
                continue
            if is_renewal_due(self._view.state, self._wallet, self._p2p, self._carry_time_on().unix):
                await self._try("join", self.submit, Join(self._p2p))

    # --- ticks -----------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Tick if that would change the record; the backend does so by itself while it runs (T3)."""
        async with self._turns.setdefault(Tick, trio.Lock()):
            if await self._is_tick_due():
                nonce = self._view.nonce
                await self._send((Tick(None),), None, lambda: self._view.nonce > nonce)
                with trio.move_on_after(CATCH_UP_S):
                    await self._wait_until(lambda: self._view.nonce > nonce)

    async def _keep_ticking(self) -> None:
        while True:
            await trio.sleep(TICK_EVERY_S)
            if not self._view.is_usable or self._ticker.is_waiting(self._view.nonce, trio.current_time()):
                continue
            if await self._is_tick_due() and self._ticker.decide(self._view.state, trio.current_time()):
                await self._try("tick", self.tick)

    async def _is_tick_due(self) -> bool:
        """Whether a tick would change the record; the chain is only asked if it might."""
        if math.isfinite(self._time_at_s):
            armed = self._view.state.current.entropy_slot
            soon = ChainTime(armed + 1, self._carry_time_on().unix + LOOK_AHEAD_S)
            if not self._judge.is_tick_due(soon):
                return False
        await self._ask_time()
        return self._view.is_usable and self._judge.is_tick_due(self._judge.time)

    async def _try(self, action: str, function: Callable[..., Awaitable[None]], *args: Message) -> None:
        """Do what nobody waits for; whether it worked shows in the record."""
        try:
            await function(*args)
        except CoordinatorError as error:
            self._sink.emit(kinds.TooLate(action=action, reason=str(error)))
        except BackendError as error:
            self._check_alive()
            if str(error) != self._trouble:  # said once; another member ticks, and what has no remedy shows elsewhere
                self._sink.emit(kinds.Error(message=str(error), action=action))
            self._trouble = str(error)
            await trio.sleep(RENEW_EVERY_S)

    # --- what a chain has no place for -----------------------------------------------------------

    def address_book(self) -> Sequence[AddressRecord]:
        """Return nothing: addresses never go on a chain; peers tell each other (N1 to N4)."""
        return ()

    def reconnect_soon(self) -> None:
        """Do nothing: all endpoints are watched, and those that are silent are asked every few seconds."""

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
