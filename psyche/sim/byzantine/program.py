"""What every dishonest program has: which occasions it gets, and what it counts."""

import random
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import trio

from psyche.backends.tcp.backend import TcpBackend
from psyche.client.engine.records import RoundRecord
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import WitnessMessage
from psyche.core.state.state import Coordinator
from psyche.errors import BackendError
from psyche.network.memory import MemoryNode
from psyche.sim.trainer import PayloadCodec
from psyche.wire.address_record import AddressRecord
from psyche.wire.crypto import Identity
from psyche.wire.line.tls import TlsConnection
from psyche.wire.ports import Network, SyncReply, SyncRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ByzantineMember:
    """Which client lies, how, and in which share of the occasions."""

    who: int
    kind: str
    share: float = 1.0


class Participant(Protocol):
    """What a dishonest program sees of the client that it stands beside."""

    @property
    def key(self) -> bytes:
        """Its public key."""
        ...

    @property
    def identity(self) -> Identity:
        """Its key, to sign with."""
        ...

    @property
    def network(self) -> MemoryNode | None:
        """Its node, while it has one."""
        ...

    @property
    def backend(self) -> TcpBackend | None:
        """Its way to the server, while it has one."""
        ...

    @property
    def codec(self) -> PayloadCodec:
        """What makes payloads of the run's model."""
        ...

    @property
    def member(self) -> int | None:
        """Its place in the epoch, as its engine knows it."""
        ...

    def find_record(self, height: int) -> RoundRecord | None:
        """What its engine knows of a round."""
        ...

    def get_state(self) -> Coordinator:
        """The newest state that it has seen."""
        ...

    def get_book(self) -> tuple[AddressRecord, ...]:
        """Where the others are, as the server says."""
        ...

    def get_victim(self) -> int:
        """Whom all dishonest members deny, so that they say the same."""
        ...

    def send_to(self, key: bytes, raw: bytes) -> None:
        """Gossip to one peer alone."""
        ...

    async def connect(self, host: str, port: int) -> TlsConnection:
        """A connection to the server."""
        ...


class ByzantineProgram:
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

    async def run(self, host: Participant) -> None:
        """What it does by itself, until the client ends."""
        del host
        await trio.sleep_forever()

    def shows_weights(self, host: Participant) -> bool:
        """Whether the server is told in Warmup which weights are loaded."""
        del host
        return True

    def change_witness(self, host: Participant, message: WitnessMessage) -> WitnessMessage | None:
        """What the server is told instead; None tells it nothing."""
        del host
        return message

    async def publish(self, host: Participant, node: Network, raw: bytes) -> None:
        """What the peers are told instead."""
        del host
        await node.publish(raw)

    def change_body(self, host: Participant, body: bytes) -> bytes | None:
        """Which payload is offered instead; None offers nothing."""
        del host
        return body

    def change_reply(self, request: SyncRequest, reply: SyncReply) -> SyncReply:
        """What a peer that asks is answered instead."""
        del request
        return reply

    def change_payload(self, payload: bytes) -> bytes:
        """What comes out of the trainer instead."""
        return payload
