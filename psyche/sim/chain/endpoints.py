"""What one client sees of a simulated chain: endpoints with their own delays, which may fail, lag or lie."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from psyche.core.encoding.account import decode_state, encode_state
from psyche.errors import PsycheError
from psyche.sim.chain.blocks import Blockchain, ChainBlock, Transaction, TransactionStatus
from psyche.sim.chain.conditions import ChainConditions

TIMEOUT_S: Final = 2.0  # after which a request to an endpoint that is down counts as failed
FORK_SHIFT_S: Final = 1


class EndpointFailed(PsycheError):
    """An endpoint gave no answer, or one that cannot be used; another one may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTrouble:
    """What is wrong with an endpoint while a fault lasts.

    Args:
        is_down: it answers nothing.
        stale_slots: by so many slots it is further behind.
        lag_s: by so many seconds it is slower.
        throttled: the share of requests that it refuses because there are too many (429).
        lost: the share of transactions that it loses.
        late: the share of transactions that it passes on late.
        cut: the share of pushed accounts that never arrive.
        is_forked: it shows accounts of blocks that the chain gave up.
        is_wrong: it shows another account than the chain's, whichever block it is asked for.
    """

    is_down: bool = False
    stale_slots: int = 0
    lag_s: float = 0.0
    throttled: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    cut: float = 0.0
    is_forked: bool = False
    is_wrong: bool = False


@dataclass(slots=True, eq=False)
class SimulatedEndpoint:
    """One endpoint as one client reaches it.

    Args:
        name: its name, for people.
        chain: the chain.
        rng: the source of its chance.
        conditions: of the chain.
        lag_s: after how many seconds it shows a block.
        troubles: what is wrong with it now.
    """

    name: str
    chain: Blockchain
    rng: random.Random
    conditions: ChainConditions
    lag_s: float
    troubles: list[EndpointTrouble] = field(default_factory=list[EndpointTrouble])
    _forks: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])

    @property
    def is_down(self) -> bool:
        """Whether it answers nothing."""
        return any(one.is_down for one in self.troubles)

    @property
    def is_forked(self) -> bool:
        """Whether it shows accounts of blocks that the chain gave up."""
        return any(one.is_forked for one in self.troubles)

    @property
    def delay_s(self) -> float:
        """After how many seconds it shows a block now."""
        more = [one.lag_s + one.stale_slots * self.conditions.slot_s for one in self.troubles]
        return self.lag_s + sum(more)

    def _happens(self, *shares: float) -> bool:
        """Draw whether one of several independent misfortunes strikes."""
        return self.rng.random() >= math.prod(1 - share for share in shares)

    def get_block(self) -> ChainBlock:
        """The newest block that it has confirmed."""
        latest_s = trio.current_time() - self.delay_s
        blocks = self.chain.blocks
        return next((block for block in reversed(blocks) if block.made_s <= latest_s), blocks[0])

    def show(self, block: ChainBlock) -> bytes:
        """The account after a block, as this endpoint has it."""
        is_wrong = any(one.is_wrong for one in self.troubles)
        if not is_wrong and not (self.is_forked and block.has_changed):
            return block.raw
        if block.raw not in self._forks:
            self._forks = {block.raw: _build_fork(block.raw)}
        return self._forks[block.raw]

    async def ask(self) -> ChainBlock:
        """Ask for the newest confirmed block.

        Raises:
            EndpointFailed: it is down, or refuses to answer.
        """
        if self.is_down:
            await trio.sleep(TIMEOUT_S)
            raise EndpointFailed(f"{self.name}: no answer within {TIMEOUT_S:.0f} s")
        await trio.sleep(self.conditions.answer_s * (0.5 + self.rng.random()))
        if self._happens(*(one.throttled for one in self.troubles)):
            raise EndpointFailed(f"{self.name}: 429 Too Many Requests")
        return self.get_block()

    async def get_status(self, signature: bytes) -> tuple[TransactionStatus | None, ChainBlock]:
        """How a transaction landed, as far as this endpoint has confirmed it, and its newest block.

        Raises:
            EndpointFailed: as `ask`.
        """
        block = await self.ask()
        status = self.chain.get_status(signature)
        return (status if status is not None and status.slot <= block.slot else None), block

    async def send(self, transaction: Transaction, deliver: Callable[[float, Transaction], None]) -> None:
        """Pass a transaction on to the leaders; it may be lost on the way, or come late.

        `deliver` takes the simulated time at which it arrives.

        Raises:
            EndpointFailed: as `ask`.
        """
        await self.ask()
        if self._happens(self.conditions.lost, *(one.lost for one in self.troubles)):
            return
        is_late = self._happens(self.conditions.late, *(one.late for one in self.troubles))
        late_s = self.conditions.late_s * self.rng.random() if is_late else 0.0
        deliver(trio.current_time() + late_s, transaction)

    def is_cut(self) -> bool:
        """Draw whether a push is cut on its way; the connection breaks with it."""
        return self._happens(self.conditions.cut, *(one.cut for one in self.troubles))

    def compute_push_s(self, block: ChainBlock) -> float:
        """When this endpoint's push of a block's account arrives."""
        return block.made_s + self.delay_s + 2 * self.conditions.answer_s * self.rng.random()


def _build_fork(raw: bytes) -> bytes:
    """The account of a block that the chain gave up: of the same nonce, but its time and seed are others."""
    state = decode_state(raw)
    state.state_start_unix += FORK_SHIFT_S
    state.last_seed = bytes(255 - byte for byte in state.last_seed)
    return encode_state(state)
