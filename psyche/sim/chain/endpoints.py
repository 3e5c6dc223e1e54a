"""What one client sees of a simulated chain: endpoints with their own delays, which may fail, lag or lie."""

import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
import trio

from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.rpc.transport import RequestFailed, Socket
from psyche.core.encoding.account import decode_state, encode_state
from psyche.localchain.blocks import ChainBlock
from psyche.localchain.core_chain import CoreChain, encode_push
from psyche.network.memory.line import Arrivals
from psyche.sim.faults import EndpointFault
from psyche.sim.scenarios.scenario import ChainConditions

CONNECT_S: Final = 5.0  # after which an attempt to open a socket has failed
SILENCE_S: Final = 4.0  # after which an open socket is noticed to be dead: two pings
FORK_SHIFT_S: Final = 1


class SimulatedEndpoint:
    """One endpoint as one client reaches it.

    Args:
        name: its host, by which clients and people know it.
        chain: the chain.
        rng: the source of its chance.
        conditions: of the chain.
        lag_s: after how many seconds it shows a block.
        arrivals: the queue of what is under way.
        note_sent: called with the signature of each transaction that it is given.
    """

    def __init__(
        self, name: str, chain: CoreChain, rng: random.Random, conditions: ChainConditions, lag_s: float,
        arrivals: Arrivals, note_sent: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.name = name
        self.address = Endpoint(f"http://{name}", f"ws://{name}")
        self.chain = chain
        self.rng = rng
        self.conditions = conditions
        self.lag_s = lag_s
        self.arrivals = arrivals
        self.sockets: dict[SimulatedSocket, None] = {}
        self.answer = chain.make_endpoint(self.get_block, self.show, self._send)
        self._note_sent = note_sent
        self._troubles: list[EndpointFault] = []
        self._forks: dict[bytes, bytes] = {}

    def suffer(self, trouble: EndpointFault) -> None:
        """Get into trouble until `recover`; who has an open socket to a machine that is down notices by pings."""
        self._troubles.append(trouble)
        if trouble.is_down:
            self.arrivals.call_at(trio.current_time() + SILENCE_S, self._break_sockets)

    def recover(self, trouble: EndpointFault) -> None:
        self._troubles.remove(trouble)

    def _break_sockets(self) -> None:
        for socket in tuple(self.sockets) if self.is_down else ():
            socket.fail("no answer to a ping")

    @property
    def is_down(self) -> bool:
        return any(one.is_down for one in self._troubles)

    @property
    def delay_s(self) -> float:
        """After how many seconds it shows a block now."""
        more = [one.lag_s + one.stale_slots * self.conditions.slot_s for one in self._troubles]
        return self.lag_s + sum(more)

    def _happens(self, *shares: float) -> bool:
        """Draw whether one of several independent misfortunes strikes."""
        return self.rng.random() >= math.prod(1 - share for share in shares)

    def is_cut(self) -> bool:
        return self._happens(self.conditions.cut, *(one.cut for one in self._troubles))

    def is_throttled(self) -> bool:
        return self._happens(*(one.throttled for one in self._troubles))

    def get_block(self) -> ChainBlock:
        """The newest block that it has confirmed."""
        latest_s = trio.current_time() - self.delay_s
        blocks = self.chain.blocks
        return next((block for block in reversed(blocks) if block.made_s <= latest_s), blocks[0])

    def show(self, block: ChainBlock) -> bytes:
        """The account after a block, as this endpoint has it."""
        is_wrong = any(one.is_wrong or (one.is_forked and block.has_changed) for one in self._troubles)
        if not is_wrong:
            return block.raw
        if block.raw not in self._forks:
            self._forks = {block.raw: _build_fork(block.raw)}
        return self._forks[block.raw]

    def _send(self, signature: str, deliver: Callable[[], None]) -> None:
        """Pass a transaction on to the leaders; it may be lost on the way, or come late."""
        self._note_sent(signature)
        if not self._happens(self.conditions.lost, *(one.lost for one in self._troubles)):
            is_late = self._happens(self.conditions.late, *(one.late for one in self._troubles))
            late_s = self.conditions.late_s * self.rng.random() if is_late else 0.0
            self.arrivals.call_at(trio.current_time() + late_s, deliver)


class SimulatedSocket:
    """A connection with one subscription, to the run's account; changes come with the endpoint's delay."""

    def __init__(self, endpoint: SimulatedEndpoint) -> None:
        self._endpoint = endpoint
        self._arrived: deque[dict[str, Any] | bytes] = deque()
        self._failure = ""
        self._news = trio.Event()

    def close(self) -> None:
        if self._push in self._endpoint.chain.on_block:
            self._endpoint.chain.on_block.remove(self._push)

    def _push(self, block: ChainBlock) -> None:
        """Send a block's account once the endpoint shows it; a push that is cut takes the connection with it."""
        one = self._endpoint
        if block.has_changed:
            at_s = block.made_s + one.delay_s + 2 * one.conditions.answer_s * one.rng.random()
            if one.is_cut():
                one.arrivals.call_at(at_s, self.fail, "cut")
            else:
                one.arrivals.call_at(at_s, self._take, encode_push(block.slot, one.show(block)))

    def _take(self, message: dict[str, Any] | bytes) -> None:
        if not self._endpoint.is_down:
            self._arrived.append(message)
            self._news.set()

    def fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._news.set()

    async def send(self, message: dict[str, Any]) -> None:
        one = self._endpoint
        await trio.sleep(one.conditions.answer_s * (0.5 + one.rng.random()))
        assert message["method"] == "accountSubscribe", "clients follow one account"
        newest = one.get_block()
        for block in one.chain.blocks:
            if block.slot > newest.slot:  # made, and not shown here yet
                self._push(block)
        one.chain.on_block.append(self._push)
        self._take({"jsonrpc": "2.0", "id": message["id"], "result": 1})

    async def receive(self) -> dict[str, Any]:
        while not self._arrived and not self._failure:
            self._news = trio.Event()
            await self._news.wait()
        if self._failure:
            raise RequestFailed(self._failure)
        found = self._arrived.popleft()
        return msgspec.json.decode(found) if isinstance(found, bytes) else found


class SimulatedTransport:
    def __init__(self, endpoints: Sequence[SimulatedEndpoint]) -> None:
        self.addresses = [one.address for one in endpoints]
        self._endpoints = {one.address: one for one in endpoints}

    async def post(self, endpoint: Endpoint, question: bytes) -> tuple[int, bytes]:
        one = self._endpoints[endpoint]
        await trio.sleep(one.conditions.answer_s * (0.5 + one.rng.random()))
        if one.is_down:
            await trio.sleep_forever()
        if one.is_throttled():
            raise RequestFailed("HTTP 429")
        return 200, one.answer(question)

    async def talk(self, endpoint: Endpoint, use: Callable[[Socket], Awaitable[None]]) -> str:
        one = self._endpoints[endpoint]
        if one.is_down:
            await trio.sleep(CONNECT_S)
            return "no answer in time"
        socket = SimulatedSocket(one)
        one.sockets[socket] = None
        try:
            await use(socket)
        except RequestFailed as error:
            return str(error)
        except trio.TooSlowError:
            return "no answer in time"
        finally:
            del one.sockets[socket]
            socket.close()
        return "closed"


def _build_fork(raw: bytes) -> bytes:
    """The account of a block that the chain gave up: of the same nonce, but its time and seed are others."""
    state = decode_state(raw)
    state.state_start_unix += FORK_SHIFT_S
    state.last_seed = bytes(255 - byte for byte in state.last_seed)
    return encode_state(state)
