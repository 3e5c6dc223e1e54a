"""The timeline of results: the rounds in which they are attested and applied (`docs/protocol-reference.md` 4).

This module covers P1, P2 and S2. Heights count the rounds of an epoch from 0. `epoch.drain_from_height` is the
height of the first drain round, or 0 while the epoch has none. With overlap, the results of round h are trained in h,
attested in h+1 and applied at the start of h+2. Without overlap they are trained and attested in h and applied at the
start of h+1. Drain rounds train nothing, so none of their results are ever attested or applied.
"""

from psyche.core.state.enums import RoundFlag
from psyche.core.state.limits import FULL_DIGEST_EVERY_HEIGHTS, STORED_ROUNDS
from psyche.core.state.state import Config, Coordinator, Epoch, Round


def is_drain(round_: Round) -> bool:
    """Whether this is a drain round, which trains nothing and only empties the pipeline."""
    return bool(round_.flags & RoundFlag.DRAIN)


def is_data_height(epoch: Epoch, height: int) -> bool:
    """Whether round `height` trains on data; false for negative heights."""
    return height >= 0 and (not epoch.drain_from_height or height < epoch.drain_from_height)


def get_drain_rounds(config: Config) -> int:
    """The number of drain rounds at the end of an epoch (P1)."""
    return 2 if config.overlap else 1


def is_last_drain(config: Config, epoch: Epoch, height: int) -> bool:
    """Whether round `height` is the last drain round or a repetition of it (P2)."""
    return bool(epoch.drain_from_height) and height >= epoch.drain_from_height + get_drain_rounds(config) - 1


def get_attested_height(config: Config, epoch: Epoch, height: int) -> int | None:
    """a(h): the round whose results the witnesses of round `height` report.

    None if nothing is attested: at height 0 with overlap, and in the last drain round. `held`, bloom filter and
    root are zero there.
    """
    attested = height - 1 if config.overlap else height
    return attested if is_data_height(epoch, attested) else None


def get_applied_height(config: Config, epoch: Epoch, height: int) -> int | None:
    """The round whose decided results are applied at the start of round `height`.

    None if nothing is applied: in the first rounds of an epoch (0 and 1 with overlap, 0 without) and in
    repetitions of the last drain round. A void round is applied as the empty set (C4).
    """
    applied = height - 2 if config.overlap else height - 1
    return applied if is_data_height(epoch, applied) else None


def is_full_digest_height(config: Config, epoch: Epoch, height: int) -> bool:
    """Whether D(height) covers all weights even if the model has more than 100M parameters (S2)."""
    return height % FULL_DIGEST_EVERY_HEIGHTS == 0 or is_last_drain(config, epoch, height)


def get_round(state: Coordinator, height: int) -> Round | None:
    """The round of this height in the running epoch; None if it is not in the ring."""
    found = state.rounds[height % STORED_ROUNDS]
    return found if found.members and found.height == height else None


def get_attested_round(state: Coordinator) -> Round | None:
    """The round that the witnesses of the current round report on; None if nothing is attested."""
    height = get_attested_height(state.config, state.epoch, state.current.height)
    return None if height is None else get_round(state, height)
