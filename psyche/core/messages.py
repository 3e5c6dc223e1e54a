"""Messages that the coordinator and the members exchange, as plain data.

The bytes of a witness message are those of the chain instruction less its discriminator
(`docs/protocol-reference.md`, section Witness message); gossip bodies are those of R2.
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag

from psyche.core.state import WitnessFlag


@dataclass(frozen=True, slots=True)
class WitnessMessage:
    """A witness's report on the attested round (W1); bitmaps are integers, bit i is member i."""

    epoch: int
    height: int
    member: int
    flags: WitnessFlag
    at_s: int
    held: int
    heard: int
    missing: int
    broadcast_bloom: bytes  # 320 bytes
    results_root: bytes
    state_digest: bytes
    metadata: bytes = b""  # at most 256 bytes, never stored


class GossipKind(IntEnum):
    """Kinds of signed gossip."""

    RESULT = 0
    READY = 1
    FINISHED = 2
    LEAVE = 3


class ReadyFlag(IntFlag):
    """What a Ready says beyond the digest."""

    BEHIND = 1
    DIVERGED = 2


@dataclass(frozen=True, slots=True)
class Ready:
    """D(h) after the apply at the start of round h (S6)."""

    digest: bytes
    flags: ReadyFlag


@dataclass(frozen=True, slots=True)
class Finished:
    """A member's own work of the round is announced and the payloads due are in (A2)."""

    held: int
    results_root: bytes
    seen: int  # bitmap: whose Result(h) I have
    ready: Ready | None = None  # rides along where messages are many


@dataclass(frozen=True, slots=True)
class Result:
    """A commitment to a trained payload; the header travels beside it."""

    commitment: bytes
    header: bytes  # 448 bytes


@dataclass(frozen=True, slots=True)
class Leave:
    """The member leaves the epoch."""


GossipBody = Ready | Finished | Result | Leave


@dataclass(frozen=True, slots=True)
class Gossip:
    """A signed message of a member of the epoch, named by (epoch, height, member)."""

    run_uid: bytes
    epoch: int
    height: int
    member: int
    body: GossipBody
    signature: bytes  # 64 bytes over all of the above but a Result's header
