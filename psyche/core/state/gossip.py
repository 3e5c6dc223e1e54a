"""Signed gossip between members as plain data; R2 defines its bytes."""

from dataclasses import dataclass
from enum import IntFlag


class ReadyFlag(IntFlag):
    """Flags of a Ready."""

    BEHIND = 1
    DIVERGED = 2


@dataclass(frozen=True, slots=True)
class Ready:
    """A member's digest D(h), after it applied results at the start of round h (S6)."""

    digest: bytes
    flags: ReadyFlag


@dataclass(frozen=True, slots=True)
class Finished:
    """A member has announced its own work of the round and holds the payloads that are due (A2)."""

    held: int
    results_root: bytes
    seen: int  # bitmap: the members whose Result(h) the sender has
    ready: Ready | None = None  # sent along to save a message


@dataclass(frozen=True, slots=True)
class Result:
    """A commitment to a trained payload, together with the header it commits to."""

    commitment: bytes
    header: bytes  # 448 bytes


@dataclass(frozen=True, slots=True)
class Leave:
    """The member leaves the epoch."""


GossipBody = Ready | Finished | Result | Leave


@dataclass(frozen=True, slots=True)
class Gossip:
    """A signed message of a member of the epoch, identified by (epoch, height, member) and its kind."""

    run_uid: bytes
    epoch: int
    height: int
    member: int
    body: GossipBody
    signature: bytes  # 64 bytes, over all of the above except a Result's header


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two signed results of one member for one round, as encoded gossip messages (R7)."""

    first: bytes
    second: bytes
