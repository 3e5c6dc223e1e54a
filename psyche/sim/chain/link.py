"""One client's way to a simulated chain: it implements `backends.solana.member.link.Link` over simulated endpoints.

It stands for the RPC client: all endpoints push accounts, and are asked now and then as well; a transaction is sent
again as it is until it is confirmed or has expired, and only then signed anew.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from psyche.backends.solana.member.link import ChainTime, Reading, TransactionExpired
from psyche.core.encoding.account import decode_state
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.gossip import Evidence
from psyche.core.state.messages import Join, Message
from psyche.errors import BackendError, PsycheError
from psyche.network.memory.line import Arrivals
from psyche.sim.chain.blocks import BLOCK_HASHES, Blockchain, ChainBlock, Transaction, sign_transaction
from psyche.sim.chain.endpoints import TIMEOUT_S, EndpointFailed, SimulatedEndpoint
from psyche.sim.chain.facts import ChainFacts
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Proof

RECONNECT_S: Final = 1.0
POLL_S: Final = 5.0  # between two questions to one endpoint, beside what it pushes
RESEND_S: Final = 2.0
GRACE_S: Final = 0.5  # for the other endpoints, once one has answered
CHECK_S: Final = 0.4  # between two questions for a transaction's status
PAUSE_S: Final = 0.5  # after all endpoints have failed, as in the RPC client
MOST_WAITING: Final = 64  # readings that nobody has taken; the oldest give way


class SimulatedLink:
    """A `Link` for one wallet.

    Args:
        chain: the chain.
        endpoints: in the client's order of preference.
        wallet: the key in whose name transactions are sent.
        session: the client's p2p key, which signs joins.
        arrivals: the queue of what is under way.
        facts: collects what happens.
    """

    def __init__(
        self, chain: Blockchain, endpoints: Sequence[SimulatedEndpoint], wallet: bytes, session: bytes,
        arrivals: Arrivals, facts: ChainFacts | None = None,
    ) -> None:  # fmt: skip
        self._chain = chain
        self._endpoints = tuple(endpoints)
        self._wallet = wallet
        self._session = session
        self._arrivals = arrivals
        self._facts = facts or ChainFacts()
        self._waiting: deque[Reading] = deque(maxlen=MOST_WAITING)
        self._news = trio.Event()
        self._first = 0  # the endpoint that answered last
        self._seen_slot = 0  # of the newest reading handed out

    # --- reading ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Collect readings from all endpoints until cancelled."""
        self._chain.on_block.append(self._follow)
        try:
            async with open_plain_nursery() as nursery:
                for endpoint in self._endpoints:
                    nursery.start_soon(self._poll, endpoint)
        finally:
            self._chain.on_block.remove(self._follow)

    async def readings(self) -> AsyncGenerator[Reading, None]:
        """Receive readings of all endpoints as they arrive."""
        while True:
            while self._waiting:
                reading = self._waiting.popleft()
                self._seen_slot = max(self._seen_slot, reading.slot)
                yield reading
            await self._news.wait()
            self._news = trio.Event()

    def _follow(self, block: ChainBlock) -> None:
        for endpoint in self._endpoints if block.has_changed else ():
            at_s = endpoint.compute_push_s(block)
            if endpoint.is_cut():
                self._arrivals.call_at(at_s + RECONNECT_S, self._read_again, endpoint)
            else:
                self._arrivals.call_at(at_s, self._take_push, endpoint, self._read(endpoint, block))

    def _read(self, endpoint: SimulatedEndpoint, block: ChainBlock) -> Reading:
        return Reading(endpoint.name, block.slot, endpoint.show(block))

    def _read_again(self, endpoint: SimulatedEndpoint) -> None:
        """The connection broke with a push, and is open again."""
        if not endpoint.is_down:
            self._take(self._read(endpoint, endpoint.get_block()))

    def _take_push(self, endpoint: SimulatedEndpoint, reading: Reading) -> None:
        if not endpoint.is_down:
            self._take(reading)

    def _take(self, reading: Reading) -> None:
        self._waiting.append(reading)
        self._news.set()

    async def _poll(self, endpoint: SimulatedEndpoint) -> None:
        while True:
            try:
                self._take(self._read(endpoint, await endpoint.ask()))
            except EndpointFailed:
                await trio.sleep(PAUSE_S)
            else:
                await trio.sleep(POLL_S)

    # --- asking -----------------------------------------------------------------------------------------

    async def get_newest_slot(self) -> int:
        """Ask all endpoints for their slot; return the highest once one has answered and the others had time to."""
        return (await self._ask_all()).slot

    async def get_time(self) -> ChainTime:
        """Return the chain's time as the most advanced endpoint knows it."""
        block = await self._ask_all()
        return ChainTime(block.slot, block.unix)

    async def _ask_all(self) -> ChainBlock:
        found: list[ChainBlock] = []

        async def ask(endpoint: SimulatedEndpoint, scope: trio.CancelScope) -> None:
            try:
                found.append(await endpoint.ask())
            except EndpointFailed:
                return
            scope.deadline = min(scope.deadline, trio.current_time() + GRACE_S)

        while not found:
            with trio.move_on_after(TIMEOUT_S) as scope:
                async with open_plain_nursery() as nursery:
                    for endpoint in self._endpoints:
                        nursery.start_soon(ask, endpoint, scope)
            if not found:
                await trio.sleep(PAUSE_S)
        return max(found, key=lambda block: block.slot)

    # --- sending ----------------------------------------------------------------------------------------

    async def send(
        self, messages: Sequence[Message], proof: Proof = None, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> int:
        """Carry out messages in one transaction; return its slot once it is confirmed.

        Raises:
            CoordinatorError: the program refuses one of the messages; nothing has changed.
            TransactionExpired: `is_wanted` said no when the transaction could not land any more.
            BackendError: the program has no such instruction, or not for this wallet.
        """
        evidence = (proof.first, proof.second) if isinstance(proof, Evidence) else None
        signers = [self._wallet, *(self._session for message in messages if isinstance(message, Join))]
        while True:
            block = await self._ask_any()
            transaction = sign_transaction(messages, signers, block.hash, evidence)
            try:
                slot = await self._carry(transaction, block)
            finally:
                self._facts.note_given_up(transaction)
            if slot is not None:
                return slot
            if not is_wanted():
                raise TransactionExpired("the transaction was not confirmed while it was wanted")

    async def _ask_any(self) -> ChainBlock:
        """The newest block of an endpoint that is no further behind than what the client knows.

        Another one would refuse messages about a round that it has not seen yet.
        """
        while True:
            endpoint = self._endpoints[self._first]
            with suppress(EndpointFailed):
                block = await endpoint.ask()
                if block.slot >= self._seen_slot:
                    return block
            await self._turn()

    async def _turn(self) -> None:
        """Go on to the next endpoint; after the last one, wait."""
        self._first = (self._first + 1) % len(self._endpoints)
        if not self._first:
            await trio.sleep(PAUSE_S)

    async def _carry(self, transaction: Transaction, block: ChainBlock) -> int | None:
        """Send a transaction until it has landed; return its slot, or None if it cannot land any more."""
        last_height = block.height + BLOCK_HASHES
        resend_at = trio.current_time()
        self._try_out(transaction, block)
        while True:
            endpoint = self._endpoints[self._first]
            try:
                if trio.current_time() >= resend_at:
                    resend_at = trio.current_time() + RESEND_S
                    self._facts.note_sent(transaction)
                    await endpoint.send(transaction, self._deliver)
                status, seen = await endpoint.get_status(transaction.signature)
            except EndpointFailed:
                await self._turn()
                continue
            if status is not None:
                _raise(status.error)
                return status.slot
            if seen.height > last_height:
                return None
            await trio.sleep(CHECK_S)

    def _try_out(self, transaction: Transaction, block: ChainBlock) -> None:
        """Simulate a transaction on an endpoint's account before it is sent, as endpoints do.

        Raises:
            CoordinatorError, BackendError: it would be refused.
        """
        self._chain.carry_out(decode_state(block.raw), transaction)

    def _deliver(self, at_s: float, transaction: Transaction) -> None:
        self._arrivals.call_at(at_s, self._chain.submit, transaction)


def _raise(error: PsycheError | None) -> None:
    if isinstance(error, CoordinatorError | BackendError):
        raise type(error)(*error.args)
