"""The course of a run, as its server remembers it and as witnesses on a chain claim it: figures of the whole only."""

import math
import statistics
import struct
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from psyche.wire.report import MAX_TOKENS_PER_S

MAX_POINTS: Final = 2_000
MAX_LOSS: Final = 1e9  # nats per token: more is no loss, but a mistake or a lie
_CLAIM: Final = struct.Struct("<Iff")


class Claim(NamedTuple):
    """What a witness says of its own training, in the metadata of its message; nobody checks it."""

    step: int
    loss: float
    tokens_per_s: float


def encode_claim(claim: Claim) -> bytes:
    return _CLAIM.pack(*claim)


def read_claim(metadata: bytes) -> Claim | None:
    """Read a witness's metadata; None for what is no such claim, or has numbers that none could be."""
    if len(metadata) < _CLAIM.size:
        return None
    claim = Claim(*_CLAIM.unpack_from(metadata))
    is_possible = 0.0 <= claim.loss <= MAX_LOSS and 0.0 <= claim.tokens_per_s <= MAX_TOKENS_PER_S
    return claim if is_possible else None  # comparisons with NaN are false


class HistoryPoint(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One round with data.

    Args:
        step: steps on record after it.
        unix: when it was over.
        seconds: how long it took; 0: not known.
        members: how many took part.
        results: how many results its witnesses counted.
        loss, least, greatest: the median of what members say, in nats per token, and the extremes; None: nobody says.
        tokens_per_s: of all members together, as they say.
        tokens: trained in the run by then; 0: not known.
        is_claimed: whether it is what witnesses said on a chain, of some of the rounds, and nobody checked.
        epoch, height: which round it was.
        learning_rate: of its step; None: not known.
    """

    step: Annotated[int, Meta(ge=0)]
    unix: int
    seconds: float
    members: int
    results: int
    loss: float | None
    least: float | None
    greatest: float | None
    tokens_per_s: float
    tokens: int
    is_claimed: bool = False
    epoch: int = 0
    height: int = 0
    learning_rate: float | None = None


class Summary(NamedTuple):
    """What the claims of a round come to."""

    loss: float | None
    least: float | None
    greatest: float | None
    tokens_per_s: float


def summarize_claims(claims: Sequence[Claim], members: int) -> Summary:
    """Sum up claims; where few of the members are witnesses, theirs stand for the others."""
    if not claims:
        return Summary(None, None, None, 0.0)
    losses = [claim.loss for claim in claims]
    rate = math.fsum(claim.tokens_per_s for claim in claims) / len(claims) * members
    return Summary(statistics.median(losses), min(losses), max(losses), rate)
