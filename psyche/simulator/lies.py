"""What every dishonest program has: which occasions it gets, and what it counts."""

import random
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import trio

from psyche.core.errors import CoordinatorError
from psyche.core.messages import WitnessMessage
from psyche.errors import BackendError
from psyche.wire.ports import Network

if TYPE_CHECKING:
    from psyche.simulator.hosts import ClientHost


@dataclass(frozen=True, slots=True, kw_only=True)
class Liar:
    """Which client lies, how, and in which share of the occasions."""

    who: int
    kind: str
    share: float = 1.0


class Lies:
    """A dishonest program; what it does not change goes through as it is."""

    kind: ClassVar[str] = ""

    def __init__(self, share: float, rng: random.Random) -> None:
        self.share = share
        self.rng = rng
        self.told = 0
        self.refused = 0
        self.believed = 0  # of those that name somebody else as their sender: never (I9)

    def is_due(self) -> bool:
        """Whether to lie this time."""
        due = self.rng.random() < self.share
        self.told += due
        return due

    async def tell(self, request: Awaitable[None]) -> bool:
        """Say something to the server; whether it took it."""
        self.told += 1
        try:
            await request
        except (CoordinatorError, BackendError):
            self.refused += 1
            return False
        return True

    async def run(self, host: "ClientHost") -> None:
        """What it does by itself, until the client ends."""
        del host
        await trio.sleep_forever()

    def change_witness(self, host: "ClientHost", message: WitnessMessage) -> WitnessMessage | None:
        """What the server is told instead; None tells it nothing."""
        del host
        return message

    async def publish(self, host: "ClientHost", node: Network, raw: bytes) -> None:
        """What the peers are told instead."""
        del host
        await node.publish(raw)

    def change_body(self, host: "ClientHost", body: bytes) -> bytes | None:
        """Which payload is offered instead; None offers nothing."""
        del host
        return body

    def change_payload(self, payload: bytes) -> bytes:
        """What comes out of the trainer instead."""
        return payload
