"""Ticking: nobody does it for the clients of a chain (T3)."""

from random import Random
from typing import Final

import trio

from psyche.backends.solana.member.following import RecordFollower
from psyche.backends.solana.member.link import ChainTime
from psyche.backends.solana.member.logic import Ticker
from psyche.backends.solana.member.sending import CATCH_UP_S, TICK_EVERY_S, MessageSubmitter
from psyche.core.state.messages import Tick

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
            if not self._submitter.judge.is_tick_due(soon):
                return False
        await self._submitter.ask_time()
        return self._follower.view.is_usable and self._submitter.judge.is_tick_due(self._submitter.judge.time)
