"""The `Backend` on a chain: watches the run's account, sends this client's messages, and ticks.

Nobody hosts the record there, so each client does its share of what a server does by itself: it ticks when a
transition is due, and keeps its join alive.
"""

from collections.abc import AsyncGenerator
from typing import Final

from psyche.backends.solana.member.following import ChainPlatform, RecordFollower
from psyche.backends.solana.member.sending import JoinKeeper, MessageSubmitter, TickKeeper
from psyche.backends.solana.rpc.run_link import RpcLink
from psyche.backends.waits import BackendStatistics, opens
from psyche.core.state.messages import Join, Message, Withdraw
from psyche.core.state.state import Coordinator
from psyche.errors import BackendError
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink, NoEvents
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Proof


class SolanaBackend:
    """A `Backend` over a chain. `run` must be running while it is used (or use `open_chain_backend`).

    `link` signs with `wallet`, which joins and pays, and with the session key `p2p`.
    """

    # What a chain has no place for: peers tell each other addresses (N1 to N5), and nobody collects reports (K8). All
    # endpoints are watched at once, and asked every few seconds where they are silent.
    get_addresses: None = None
    report: None = None
    reconnect_soon: None = None

    def __init__(
        self, link: RpcLink, wallet: bytes, p2p: bytes, *, sink: EventSink | None = None,
        platform: ChainPlatform | None = None,
    ) -> None:  # fmt: skip
        platform = platform or ChainPlatform()
        self._sink = sink or NoEvents()
        self._follower = RecordFollower(link, wallet, p2p, self._sink, platform)
        self._submitter = MessageSubmitter(link, wallet, self._follower)
        self._joins = JoinKeeper(wallet, p2p, self._follower, self._submitter)
        self._ticks = TickKeeper(wallet, platform.rng, self._follower, self._submitter)
        self._unanswered = 0

    async def run(self) -> None:
        try:
            await self._follower.begin()
            async with open_plain_nursery() as nursery:
                nursery.start_soon(self._follower.run)
                nursery.start_soon(self._ticks.keep_ticking)
                nursery.start_soon(self._joins.keep_joined, self.submit)
        except BackendError as error:
            self._sink.emit(types.BackendGivenUp(reason=str(error)))
            self._follower.fail(error)
            raise
        finally:
            self._follower.fail(BackendError("the client's connection to the chain was stopped"))

    def states(self) -> AsyncGenerator[Coordinator, None]:
        self._joins.is_wanted = True
        return self._follower.states()

    async def submit(self, message: Message, proof: Proof = None) -> None:
        """Submit a message, one of a kind at a time; what is on record already is a success (K3)."""
        if isinstance(message, Join | Withdraw):
            self._follower.has_withdrawn = isinstance(message, Withdraw)
        self._unanswered += 1
        try:
            async with self._submitter.take_turn(type(message)):
                if isinstance(message, Join):
                    await self._joins.join(message, proof)
                else:
                    await self._submitter.deliver(message, proof)
        finally:
            self._unanswered -= 1

    def statistics(self) -> BackendStatistics:
        return BackendStatistics(unanswered=self._unanswered)


open_chain_backend: Final = opens(SolanaBackend)
