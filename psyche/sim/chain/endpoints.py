"""What one client sees of a simulated chain: endpoints with their own delays, which may fail, lag or lie."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from psyche.core.encoding.account import decode_state, encode_state
from psyche.errors import PsycheError
from psyche.sim.chain.blocks import Blockchain, ChainBlock, Transaction, TransactionStatus
from psyche.sim.chain.conditions import ChainConditions

ANSWER_S: Final = 0.05  # a request and its answer, at least
ANSWER_SPREAD_S: Final = 0.1
TIMEOUT_S: Final = 2.0  # after which a request to an endpoint that is down counts as failed
PUSH_SPREAD_S: Final = 0.2
FORK_SHIFT_S: Final = 1


class EndpointFailed(PsycheError):
    """An endpoint gave no answer, or one that cannot be used; another one may."""


@dataclass(slots=True, eq=False)
class SimulatedEndpoint:
    """One endpoint as one client reaches it. Faults set the last five fields.

    Args:
        name: its name, for people.
        chain: the chain.
        rng: the source of its chance.
        conditions: of the chain.
        lag_s: after how many seconds it shows a block.
        is_down: it answers nothing.
        stale_slots: by so many slots it is further behind.
        throttled: the share of requests that it refuses because there are too many (429).
        is_forked: it shows accounts of blocks that the chain gave up.
        lag_more_s: it is slower by this.
    """

    name: str
    chain: Blockchain
    rng: random.Random
    conditions: ChainConditions
    lag_s: float
    is_down: bool = False
    stale_slots: int = 0
    throttled: float = 0.0
    is_forked: bool = False
    lag_more_s: float = 0.0
    _forks: dict[int, bytes] = field(default_factory=dict)

    @property
    def delay_s(self) -> float:
        """After how many seconds it shows a block now."""
        return self.lag_s + self.lag_more_s + self.stale_slots * self.conditions.slot_s

    def get_block(self) -> ChainBlock:
        """The newest block that it has confirmed."""
        latest_s = trio.current_time() - self.delay_s
        blocks = self.chain.blocks
        return next((block for block in reversed(blocks) if block.made_s <= latest_s), blocks[0])

    def show(self, block: ChainBlock) -> bytes:
        """The account after a block, as this endpoint has it."""
        if not self.is_forked or not block.has_changed:
            return block.raw
        if block.height not in self._forks:
            self._forks = {block.height: _build_fork(block.raw)}
        return self._forks[block.height]

    async def ask(self) -> ChainBlock:
        """Ask for the newest confirmed block.

        Raises:
            EndpointFailed: it is down, or refuses to answer.
        """
        if self.is_down:
            await trio.sleep(TIMEOUT_S)
            raise EndpointFailed(f"{self.name}: no answer within {TIMEOUT_S:.0f} s")
        await trio.sleep(ANSWER_S + ANSWER_SPREAD_S * self.rng.random())
        if self.rng.random() < self.throttled:
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
        if self.rng.random() < self.conditions.lost:
            return
        is_late = self.rng.random() < self.conditions.late
        late_s = self.conditions.late_s * self.rng.random() if is_late else 0.0
        deliver(trio.current_time() + late_s, transaction)

    def compute_push_s(self, block: ChainBlock) -> float | None:
        """When this endpoint's push of a block's account arrives; None if it never does."""
        is_cut = self.rng.random() < self.conditions.cut
        arrives_s = block.made_s + self.delay_s + PUSH_SPREAD_S * self.rng.random()
        return None if is_cut else arrives_s


def _build_fork(raw: bytes) -> bytes:
    """The account of a block that the chain gave up: of the same nonce, but its time and seed are others."""
    state = decode_state(raw)
    state.state_start_unix += FORK_SHIFT_S
    state.last_seed = bytes(255 - byte for byte in state.last_seed)
    return encode_state(state)
