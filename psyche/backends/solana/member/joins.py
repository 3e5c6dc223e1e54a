"""Joining, and keeping the join alive while it waits for an epoch."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from psyche.backends.solana.member.following import RecordFollower
from psyche.backends.solana.member.logic import JOIN_VALID_S, RENEW_BEFORE_S, Advice, is_renewal_due
from psyche.backends.solana.member.sending import RENEW_EVERY_S, MessageSubmitter
from psyche.core.state.errors import ClientsFull
from psyche.core.state.messages import Join, Message, ReclaimSlot
from psyche.telemetry import types
from psyche.wire.backend import NotAllowed
from psyche.wire.ports import Proof

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
            self._submitter.judge.judge(ReclaimSlot())  # raises if no slot is idle; a server does this by itself (M4)
            return ReclaimSlot(), message

    def _is_join_over(self, message: Join, until_unix: int) -> bool:
        is_stale = self._submitter.carry_time_on().unix + RENEW_BEFORE_S > until_unix
        return is_stale or self._follower.has_withdrawn or self._submitter.judge.is_done(message)

    async def keep_joined(self, submit: Callable[[Message], Awaitable[None]]) -> None:
        while True:
            await trio.sleep(RENEW_EVERY_S)
            is_here = self.is_wanted and not self._follower.has_withdrawn
            if not is_here or not self._follower.view.is_usable or not self._follower.has_place:
                continue
            if is_renewal_due(self._follower.view.state, self._wallet, self._p2p, self._submitter.carry_time_on().unix):
                await self._submitter.attempt("join", submit, Join(self._p2p))
