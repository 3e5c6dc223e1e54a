"""The base of all dishonest programs: the hooks that it can override, and the lies that it counts."""

import random
from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from typing import Protocol

import trio

from psyche.backends.port import Backend
from psyche.client.engine.records import RoundRecord
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import JudgeChallenge, WitnessMessage
from psyche.core.state.state import Coordinator
from psyche.errors import BackendError
from psyche.network.memory.node import MemoryNode
from psyche.sim.payloads import PayloadCodec
from psyche.sim.works import Piece
from psyche.wire.address_record import AddressRecord
from psyche.wire.crypto import Identity
from psyche.wire.line.tls import TlsConnection
from psyche.wire.ports import Network, SyncReply, SyncRequest
from psyche.wire.trainer import AuditReply, AuditRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ByzantineMember:
    """Which client lies, with which program, and at which share of the opportunities."""

    who: int
    kind: str
    share: float = 1.0


class Participant(Protocol):
    @property
    def key(self) -> bytes: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def network(self) -> MemoryNode | None: ...
    @property
    def backend(self) -> Backend | None: ...
    @property
    def codec(self) -> PayloadCodec: ...
    @property
    def member(self) -> int | None: ...
    def find_record(self, height: int) -> RoundRecord | None: ...
    def get_state(self) -> Coordinator: ...
    def get_book(self) -> tuple[AddressRecord, ...]: ...

    def get_victim(self) -> int:
        """The member that all dishonest members deny, so that they agree."""
        ...

    def get_friends(self) -> Collection[bytes]:
        """The keys of all dishonest clients."""
        ...

    def ask_to_end(self, reason: str) -> None: ...
    def send_to(self, key: bytes, raw: bytes) -> None: ...
    async def connect(self, host: str, port: int) -> TlsConnection: ...


class ByzantineProgram:
    """A dishonest program; whatever it does not override passes through unchanged."""

    def __init__(self, host: Participant, share: float, rng: random.Random) -> None:
        self.host = host
        self.share = share
        self.rng = rng
        self.told = 0
        self.refused = 0
        self.believed = 0  # accepted lies that named another member as the sender: must stay 0 (I9)

    def is_due(self) -> bool:
        due = self.rng.random() < self.share
        self.told += due
        return due

    async def tell(self, request: Awaitable[None]) -> bool:
        """Send the server a message; return whether it was accepted."""
        self.told += 1
        try:
            await request
        except (CoordinatorError, BackendError):
            self.refused += 1
            return False
        return True

    async def run(self) -> None:
        await trio.sleep_forever()

    def shows_weights(self) -> bool:
        """Whether the client tells the server in Warmup which weights it has loaded."""
        return True

    def change_witness(self, message: WitnessMessage) -> WitnessMessage | None:
        """The witness message sent to the server instead; None sends nothing."""
        return message

    async def publish(self, node: Network, raw: bytes) -> None:
        await node.publish(raw)

    def change_body(self, body: bytes) -> bytes | None:
        """The payload offered instead; None offers nothing."""
        return body

    def change_reply(self, request: SyncRequest, reply: SyncReply) -> SyncReply:
        """The reply sent instead to a peer's request."""
        del request
        return reply

    def change_payload(self, payload: bytes) -> bytes:
        """The payload returned instead of the trainer's."""
        return payload

    def change_works(self, height: int, pieces: list[Piece]) -> list[Piece]:
        """The pieces that its work table shows instead."""
        del height
        return pieces

    def change_calibration(self, piece: Piece) -> Piece:
        """The piece that its calibration row shows instead."""
        return piece

    def change_audit(self, request: AuditRequest, reply: AuditReply) -> AuditReply:
        """What its trainer finds instead of others' work."""
        del request
        return reply

    def change_judgement(self, message: JudgeChallenge) -> JudgeChallenge:
        """The vote sent instead."""
        return message
