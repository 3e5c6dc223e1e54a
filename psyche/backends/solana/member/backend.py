"""The `Backend` on a chain: follows the run's account, sends this client's messages, ticks, and keeps its join alive.

Nobody hosts the record there, so each client does its share of what a server does by itself: it ticks when a
transition is due, and renews its join.
"""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from psyche.backends.solana.member.following import ChainPlatform, RecordFollower
from psyche.backends.solana.member.link import ChainTime, TransactionExpired
from psyche.backends.solana.member.logic import (
    JOIN_VALID_S,
    RENEW_BEFORE_S,
    AdmissionCheck,
    Advice,
    Ticker,
    is_renewal_due,
)
from psyche.backends.solana.rpc.run_link import RpcLink
from psyche.backends.waits import BackendStatistics, opens
from psyche.core.rules.apply import BY_TYPE
from psyche.core.state.errors import ClientsFull, CoordinatorError, Halted
from psyche.core.state.messages import Join, Message, ReclaimSlot, Tick, Withdraw
from psyche.core.state.state import Coordinator
from psyche.errors import BackendError
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink, NoEvents
from psyche.wire.backend import NotAllowed
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Proof

TICK_EVERY_S: Final = 0.5
RENEW_EVERY_S: Final = 5.0
# From the answer that a transaction has landed until its account arrives too. The chain's own delay is over by then,
# however long it is; what is left is a push, or a new connection and a question if the push was cut.
CATCH_UP_S: Final = 4.0
LOOK_AHEAD_S: Final = 1  # the chain may be ahead of this client's idea of its time
ALLOWED_AGAIN_S: Final = (1.0, 2.0, 5.0, 10.0)  # a wallet that may not join asks again after this


class SolanaBackend:
    """A `Backend` over a chain. `run` must be running while it is used (or use `open_chain_backend`)."""

    # What a chain has no place for: peers tell each other addresses (N1 to N5), nobody collects reports (K8), and the
    # data manifest comes from peers (D1). All endpoints are watched at once, and asked every few seconds where they are
    # silent.
    get_addresses: None = None
    report: None = None
    ask_data_manifest: None = None
    reconnect_soon: None = None

    def __init__(
        self, link: RpcLink, *, sink: EventSink | None = None, platform: ChainPlatform | None = None
    ) -> None:  # fmt: skip
        platform = platform or ChainPlatform()
        self._link = link
        self._sink = sink or NoEvents()
        self._follower = RecordFollower(link, self._sink, platform)
        self._view = self._follower.view
        self._admission = AdmissionCheck(link.wallet, self._view)
        self._ticker = Ticker(link.wallet, platform.rng)
        self._time_at_s = -math.inf  # when the chain's time was asked for last
        self._turns: dict[type[Message], trio.Lock] = {}  # one message of a kind is sent at a time
        self._is_up = False  # the client is: one that still loads PyTorch must not be counted on (M2)
        self._trouble = ""  # of what the backend sent by itself last
        self._unanswered = 0

    async def run(self) -> None:
        try:
            await self._follower.begin()
            async with open_plain_nursery() as nursery:
                for task in (self._follower.run, self._keep_ticking, self._keep_joined):
                    nursery.start_soon(task)
        except BackendError as error:
            self._sink.emit(types.BackendGivenUp(reason=str(error)))
            self._follower.fail(error)
            raise
        finally:
            self._follower.fail(BackendError("the client's connection to the chain was stopped"))

    def states(self) -> AsyncGenerator[Coordinator, None]:
        self._is_up = True
        return self._follower.states()

    async def submit(self, message: Message, proof: Proof = None) -> None:
        """Submit a message, one of a kind at a time; what is on record already is a success (K3)."""
        if isinstance(message, Join | Withdraw):
            self._follower.has_withdrawn = isinstance(message, Withdraw)
        self._unanswered += 1
        try:
            async with self._take_turn(type(message)):
                if isinstance(message, Join):
                    await self._join(message, proof)
                else:
                    await self._deliver(message, proof)
        finally:
            self._unanswered -= 1

    def statistics(self) -> BackendStatistics:
        return BackendStatistics(unanswered=self._unanswered)

    # --- sending ----------------------------------------------------------------------------------------------

    def _take_turn(self, kind: type[Message]) -> trio.Lock:
        return self._turns.setdefault(kind, trio.Lock())

    async def _ask_time(self) -> None:
        self._admission.time = await self._link.get_time()
        self._time_at_s = trio.current_time()

    def _carry_time_on(self) -> ChainTime:
        """The chain's time, its clock carried on by the seconds that have passed here."""
        if not math.isfinite(self._time_at_s):
            return self._admission.time
        return replace(
            self._admission.time, unix=self._admission.time.unix + int(trio.current_time() - self._time_at_s)
        )

    async def _deliver(self, message: Message, proof: Proof) -> None:
        """Send a message until it is on record or too late; the record has shown it on return, if that is soon."""
        with_tick = True
        while (verdict := await self._consider(message)) is not Advice.DONE:
            ticks = (Tick(None),) if with_tick and verdict is Advice.SEND_WITH_TICK else ()
            try:
                has_landed = await self._send((message, *ticks), proof, lambda: self._admission.is_over(message))
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
        await self._follower.wait_until(lambda: self._view.is_usable)
        if trio.current_time() - self._time_at_s > TICK_EVERY_S:
            await self._ask_time()
        return self._admission.check(message)

    async def _send(self, messages: tuple[Message, ...], proof: Proof, is_over: Callable[[], bool]) -> bool:
        """Carry out messages until a record shows that this is of no use any more; return whether they have landed.

        A lost transaction would otherwise keep back the next message of its kind for a minute.
        """
        has_landed = False

        async def watch(scope: trio.CancelScope) -> None:
            await self._follower.wait_until(is_over)
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
            await self._follower.wait_until(lambda: self._admission.is_done(message))
        return self._admission.is_done(message)

    async def _attempt(self, action: str, function: Callable[..., Awaitable[None]], *args: Message) -> None:
        """Do what nobody waits for; whether it worked shows in the record."""
        try:
            await function(*args)
        except CoordinatorError as error:
            self._sink.emit(types.TooLate(action=action, reason=str(error)))
        except BackendError as error:
            self._follower.check_alive()
            if str(error) != self._trouble:  # said once; another member ticks, and what has no remedy shows elsewhere
                self._sink.emit(types.Error(message=str(error), action=action))
            self._trouble = str(error)
            await trio.sleep(RENEW_EVERY_S)

    # --- ticks ------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Tick if that would change the record (T3)."""
        async with self._take_turn(Tick):
            if await self._is_tick_due():
                version = self._view.version
                await self._send((Tick(None),), None, lambda: self._view.version > version)
                with trio.move_on_after(CATCH_UP_S):
                    await self._follower.wait_until(lambda: self._view.version > version)

    async def _keep_ticking(self) -> None:
        view = self._view
        while True:
            await trio.sleep(TICK_EVERY_S)
            if not view.is_usable or self._ticker.is_waiting(view.nonce, trio.current_time()):
                continue
            if await self._is_tick_due() and self._ticker.decide(view.state, trio.current_time()):
                await self._attempt("tick", self._tick)

    async def _is_tick_due(self) -> bool:
        """Whether a tick would change the record; the chain is only asked if it might."""
        if math.isfinite(self._time_at_s):
            armed = self._view.state.current.entropy_slot
            if not self._admission.is_tick_due(ChainTime(armed + 1, self._carry_time_on().unix + LOOK_AHEAD_S)):
                return False
        await self._ask_time()
        return self._view.is_usable and self._admission.is_tick_due(self._admission.time)

    # --- joins ------------------------------------------------------------------------------------------------

    async def _join(self, message: Join, proof: Proof) -> None:
        """Join; a wallet that the run's owner has not let in yet asks again until it is (M12)."""
        refusals, self._is_up, waits = 0, True, self._follower.waits
        while not self._follower.has_withdrawn:
            try:
                await self._join_once(message, proof)
            except NotAllowed as error:
                if waits.start(types.Wait.PERMISSION, "the owner to allow this client's wallet", "join"):
                    self._sink.emit(types.NotAllowedYet(message=f"{error}. This client then joins by itself"))
                await trio.sleep(ALLOWED_AGAIN_S[min(refusals, len(ALLOWED_AGAIN_S) - 1)])
                refusals += 1
            else:
                waits.end(types.Wait.PERMISSION, types.WaitOutcome.ALLOWED)
                return

    async def _join_once(self, message: Join, proof: Proof) -> None:
        """Join for a limited time, so that an epoch is not formed with a client that has died meanwhile (M2)."""
        while not self._follower.has_withdrawn and (messages := await self._consider_join(message)):
            until_unix = self._carry_time_on().unix + JOIN_VALID_S
            join = replace(message, expires_unix=until_unix)
            if await self._send((*messages[:-1], join), proof, partial(self._is_join_over, message, until_unix)):
                await self._shows(message)
                return

    async def _consider_join(self, message: Join) -> tuple[Message, ...]:
        """What has to be sent for a join; nothing if the record has it already."""
        try:
            return () if await self._consider(message) is Advice.DONE else (message,)
        except ClientsFull:
            self._admission.check(ReclaimSlot())  # raises if no slot is idle; a server does this by itself (M4)
            return ReclaimSlot(), message

    def _is_join_over(self, message: Join, until_unix: int) -> bool:
        is_stale = self._carry_time_on().unix + RENEW_BEFORE_S > until_unix
        return is_stale or self._follower.has_withdrawn or self._admission.is_done(message)

    async def _keep_joined(self) -> None:
        follower, wallet, p2p = self._follower, self._link.wallet, self._link.p2p
        while True:
            await trio.sleep(RENEW_EVERY_S)
            is_here = self._is_up and follower.has_place and not follower.has_withdrawn
            if not is_here or not self._view.is_usable:
                continue
            if is_renewal_due(self._view.state, wallet, p2p, self._carry_time_on().unix):
                await self._attempt("join", self.submit, Join(p2p))


open_chain_backend: Final = opens(SolanaBackend)
