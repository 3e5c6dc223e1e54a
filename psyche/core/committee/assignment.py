"""Which samples each trainer of a round takes."""

import hashlib
from typing import Final

from psyche.core.committee.elections import get_roles
from psyche.core.committee.shuffle import compute_order
from psyche.core.state.enums import Role, RoundFlag
from psyche.core.state.state import Config, Round

ASSIGNMENT_TAG: Final = b"psyche/assignment/1"


def compute_assignments(round_: Round, config: Config) -> dict[int, tuple[int, int]]:
    """Member -> (batch_start, batch_end), sample indexes with both ends included, ascending.

    The round's trainers, in an order that its seed gives, share `batch_size` samples from
    `data_index` on as evenly as whole samples allow; the first ones in that order take the rest.
    Members whose share is zero are not in the map. Empty in drain rounds (P2) and where nobody trains.
    """
    if round_.flags & RoundFlag.DRAIN:
        return {}
    trainers = [member for member, role in get_roles(round_, config).items() if role is Role.TRAINER]
    if not trainers:
        return {}
    base, rest = divmod(round_.batch_size, len(trainers))
    assignments: dict[int, tuple[int, int]] = {}
    start = round_.data_index
    key = hashlib.sha256(ASSIGNMENT_TAG + round_.seed).digest()
    for k, rank in enumerate(compute_order(len(trainers), key)):
        share = base + (k < rest)
        if not share:
            break  # shares only shrink
        assignments[trainers[rank]] = (start, start + share - 1)
        start += share
    return assignments
