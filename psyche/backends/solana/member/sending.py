"""Sending messages: tried by the newest record, sent until they are on record or too late; joins kept, ticks sent."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

import trio

from psyche.backends.solana.member.following import RecordFollower
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
from psyche.core.rules.apply import BY_TYPE
from psyche.core.state.errors import ClientsFull, CoordinatorError, Halted
from psyche.core.state.messages import Join, Message, ReclaimSlot, Tick
from psyche.errors import BackendError
from psyche.telemetry import types
from psyche.wire.backend import NotAllowed
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Proof

TICK_EVERY_S: Final = 0.5
RENEW_EVERY_S: Final = 5.0
# From the answer that a transaction has landed until its account arrives too. The chain's own delay is over by then,
# however long it is; what is left is a push, or a new connection and a question if the push was cut.
CATCH_UP_S: Final = 4.0


class MessageSubmitter:
    """Sends messages over a link, by the record that a follower shows and the chain's time."""

    def __init__(self, link: RpcLink, wallet: bytes, follower: RecordFollower) -> None:
        self.admission = AdmissionCheck(wallet, follower.view)
        self._link = link
        self._follower = follower
        self._time_at_s = -math.inf  # when the chain's time was asked for last
        self._turns: dict[type[Message], trio.Lock] = {}
        self._trouble = ""  # of what the backend sent by itself last

    def take_turn(self, kind: type[Message]) -> trio.Lock:
        """The lock of a kind of messages: one of a kind is sent at a time."""
        return self._turns.setdefault(kind, trio.Lock())

    @property
    def has_time(self) -> bool:
        return math.isfinite(self._time_at_s)

    async def ask_time(self) -> None:
        self.admission.time = await self._link.get_time()
        self._time_at_s = trio.current_time()

    def carry_time_on(self) -> ChainTime:
        """The chain's time, its clock carried on by the seconds that have passed here."""
        if not self.has_time:
            return self.admission.time
        return replace(self.admission.time, unix=self.admission.time.unix + int(trio.current_time() - self._time_at_s))

    async def deliver(self, message: Message, proof: Proof) -> None:
        """Send a message until it is on record or too late; the record has shown it on return, if that is soon."""
        with_tick = True
        while (verdict := await self.consider(message)) is not Advice.DONE:
            ticks = (Tick(None),) if with_tick and verdict is Advice.SEND_WITH_TICK else ()
            try:
                has_landed = await self.send((message, *ticks), proof, lambda: self.admission.is_over(message))
            except Halted:
                if not ticks:
                    raise
                with_tick = False  # the run was paused meanwhile: maybe only the tick fails
            except CoordinatorError:
                if await self.shows(message):
                    return  # K3: an earlier transaction with it has landed
                raise
            else:
                if has_landed:
                    await self.shows(message)  # so that nobody judges it by a record without it
                    return

    async def consider(self, message: Message) -> Advice:
        await self._follower.wait_until(lambda: self._follower.view.is_usable)
        if trio.current_time() - self._time_at_s > TICK_EVERY_S:
            await self.ask_time()
        return self.admission.check(message)

    async def send(self, messages: tuple[Message, ...], proof: Proof, is_over: Callable[[], bool]) -> bool:
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

    async def shows(self, message: Message) -> bool:
        """Whether the record shows a message within the time of a confirmation."""
        if BY_TYPE[type(message)].is_repeat is None:
            return False
        with trio.move_on_after(CATCH_UP_S):
            await self._follower.wait_until(lambda: self.admission.is_done(message))
        return self.admission.is_done(message)

    async def attempt(self, action: str, function: Callable[..., Awaitable[None]], *args: Message) -> None:
        """Do what nobody waits for; whether it worked shows in the record."""
        try:
            await function(*args)
        except CoordinatorError as error:
            self._follower.sink.emit(types.TooLate(action=action, reason=str(error)))
        except BackendError as error:
            self._follower.check_alive()
            if str(error) != self._trouble:  # said once; another member ticks, and what has no remedy shows elsewhere
                self._follower.sink.emit(types.Error(message=str(error), action=action))
            self._trouble = str(error)
            await trio.sleep(RENEW_EVERY_S)


LOOK_AHEAD_S: Final = 1  # the chain may be ahead of this client's idea of its time


class TickKeeper:
    """Ticks when a transition is due; `rng` decides which client does."""

    def __init__(self, wallet: bytes, rng: Random, follower: RecordFollower, submitter: MessageSubmitter) -> None:
        self._ticker = Ticker(wallet, rng)
        self._follower = follower
        self._submitter = submitter

    async def tick(self) -> None:
        """Tick if that would change the record; the backend does so by itself while it runs (T3)."""
        async with self._submitter.take_turn(Tick):
            if await self._is_tick_due():
                view, version = self._follower.view, self._follower.view.version
                await self._submitter.send((Tick(None),), None, lambda: view.version > version)
                with trio.move_on_after(CATCH_UP_S):
                    await self._follower.wait_until(lambda: view.version > version)

    async def keep_ticking(self) -> None:
        view = self._follower.view
        while True:
            await trio.sleep(TICK_EVERY_S)
            if not view.is_usable or self._ticker.is_waiting(view.nonce, trio.current_time()):
                continue
            if await self._is_tick_due() and self._ticker.decide(view.state, trio.current_time()):
                await self._submitter.attempt("tick", self.tick)

    async def _is_tick_due(self) -> bool:
        """Whether a tick would change the record; the chain is only asked if it might."""
        if self._submitter.has_time:
            armed = self._follower.view.state.current.entropy_slot
            soon = ChainTime(armed + 1, self._submitter.carry_time_on().unix + LOOK_AHEAD_S)
            if not self._submitter.admission.is_tick_due(soon):
                return False
        await self._submitter.ask_time()
        return self._follower.view.is_usable and self._submitter.admission.is_tick_due(self._submitter.admission.time)


ALLOWED_AGAIN_S: Final = (1.0, 2.0, 5.0, 10.0)  # a wallet that may not join asks again after this


class JoinKeeper:
    def __init__(self, wallet: bytes, p2p: bytes, follower: RecordFollower, submitter: MessageSubmitter) -> None:
        self._wallet, self._p2p = wallet, p2p
        self._follower = follower
        self._submitter = submitter
        self.is_wanted = False  # its client is up: one that still loads PyTorch must not be counted on (M2)

    async def join(self, message: Join, proof: Proof) -> None:
        """Join; a wallet that the run's owner has not let in yet asks again until it is (M12)."""
        refusals, self.is_wanted = 0, True
        while not self._follower.has_withdrawn:
            try:
                await self._join_once(message, proof)
            except NotAllowed as error:
                if self._follower.waits.start(types.Wait.PERMISSION, "the owner to allow this client's wallet", "join"):
                    self._follower.sink.emit(types.NotAllowedYet(message=f"{error}. This client then joins by itself"))
                await trio.sleep(ALLOWED_AGAIN_S[min(refusals, len(ALLOWED_AGAIN_S) - 1)])
                refusals += 1
            else:
                self._follower.waits.end(types.Wait.PERMISSION, types.WaitOutcome.ALLOWED)
                return

    async def _join_once(self, message: Join, proof: Proof) -> None:
        """Join for a limited time, so that an epoch is not formed with a client that has died meanwhile (M2)."""
        while not self._follower.has_withdrawn and (messages := await self._consider_join(message)):
            until_unix = self._submitter.carry_time_on().unix + JOIN_VALID_S
            join = replace(message, expires_unix=until_unix)
            is_over = partial(self._is_join_over, message, until_unix)
            if await self._submitter.send((*messages[:-1], join), proof, is_over):
                await self._submitter.shows(message)
                return

    async def _consider_join(self, message: Join) -> tuple[Message, ...]:
        """What has to be sent for a join; nothing if the record has it already."""
        try:
            return () if await self._submitter.consider(message) is Advice.DONE else (message,)
        except ClientsFull:
            self._submitter.admission.check(
                ReclaimSlot()
            )  # raises if no slot is idle; a server does this by itself (M4)
            return ReclaimSlot(), message

    def _is_join_over(self, message: Join, until_unix: int) -> bool:
        is_stale = self._submitter.carry_time_on().unix + RENEW_BEFORE_S > until_unix
        return is_stale or self._follower.has_withdrawn or self._submitter.admission.is_done(message)

    async def keep_joined(self, submit: Callable[[Message], Awaitable[None]]) -> None:
        while True:
            await trio.sleep(RENEW_EVERY_S)
            is_here = self.is_wanted and not self._follower.has_withdrawn
            if not is_here or not self._follower.view.is_usable or not self._follower.has_place:
                continue
            if is_renewal_due(self._follower.view.state, self._wallet, self._p2p, self._submitter.carry_time_on().unix):
                await self._submitter.attempt("join", submit, Join(self._p2p))
