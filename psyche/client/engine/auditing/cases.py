"""What of a member's round is recomputed: plain data that the engine names and the runtime fills in (V8, V11)."""

from typing import NamedTuple

from psyche.core.state.state import ZERO32
from psyche.wire.trainer import LocalTarget


class Link(NamedTuple):
    """What shows whether a round's gradient went into its payload (V11)."""

    momentum_before: bytes
    momentum_after: bytes
    seed: bytes  # of the round after, which names the opened chunks
    lr: float
    taken_out: bytes  # blob id of the payload whose values were taken out of the momentum before; zero: none were
    opening: bytes = ZERO32  # blob id, once it is here


class Case(NamedTuple):
    """A member's batch of a round, of which pieces are recomputed (V8)."""

    member: int
    height: int  # of the round, at whose weights it was trained
    start: int
    end: int
    piece_samples: int
    pieces: tuple[int, ...]
    numeric_class: int
    payload: bytes  # blob id of what it sent, to compare with; zero: nothing is
    last: bytes = ZERO32  # blob id of its payload of the round before, where it looked ahead with it, or began from it
    lookahead_lr: float = 0.0
    link: Link | None = None  # of a whole round
    local: LocalTarget | None = None  # where the pieces are inner steps
