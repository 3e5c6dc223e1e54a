"""What members tell each other by signed gossip, as plain data; the bytes are those of R2."""

from dataclasses import dataclass
from enum import IntFlag


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


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two signed results of one member for one round, as they were gossiped (R7)."""

    first: bytes
    second: bytes
