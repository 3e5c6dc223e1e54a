"""Sending messages: judged by the newest record, sent until they are on record or too late."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import trio

from psyche.backends.solana.member.following import RecordFollower
from psyche.backends.solana.member.link import ChainTime, Link, TransactionExpired
from psyche.backends.solana.member.logic import Advice, Judge
from psyche.core.rules.apply import BY_TYPE
from psyche.core.state.errors import CoordinatorError, Halted
from psyche.core.state.messages import Message, Tick
from psyche.errors import BackendError
from psyche.telemetry import types
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Proof

TICK_EVERY_S: Final = 0.5
RENEW_EVERY_S: Final = 5.0
# From the answer that a transaction has landed until its account arrives too. The chain's own delay is over by then,
# however long it is; what is left is a push, or a new connection and a question if the push was cut.
CATCH_UP_S: Final = 4.0


class MessageSubmitter:
    """Sends messages over a link, by the record that a follower shows and the chain's time."""

    def __init__(self, link: Link, wallet: bytes, follower: RecordFollower) -> None:
        self.judge = Judge(wallet, follower.view)
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
        self.judge.time = await self._link.get_time()
        self._time_at_s = trio.current_time()

    def carry_time_on(self) -> ChainTime:
        """The chain's time, its clock carried on by the seconds that have passed here."""
        if not self.has_time:
            return self.judge.time
        return replace(self.judge.time, unix=self.judge.time.unix + int(trio.current_time() - self._time_at_s))

    async def deliver(self, message: Message, proof: Proof) -> None:
        """Send a message until it is on record or too late; the record has shown it on return, if that is soon."""
        with_tick = True
        while (verdict := await self.consider(message)) is not Advice.DONE:
            ticks = (Tick(None),) if with_tick and verdict is Advice.SEND_WITH_TICK else ()
            try:
                has_landed = await self.send((message, *ticks), proof, lambda: self.judge.is_over(message))
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
        return self.judge.judge(message)

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
            await self._follower.wait_until(lambda: self.judge.is_done(message))
        return self.judge.is_done(message)

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
