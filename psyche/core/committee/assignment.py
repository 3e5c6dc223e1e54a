"""The assignment of a round's samples to its trainers."""

import hashlib
from typing import Final

from psyche.core.committee.elections import get_roles
from psyche.core.committee.shuffle import compute_order
from psyche.core.state.enums import Role, RoundFlag
from psyche.core.state.state import Config, Round

ASSIGNMENT_TAG: Final = b"psyche/assignment/1"


def compute_assignments(round_: Round, config: Config) -> dict[int, tuple[int, int]]:
    """Map each trainer to its samples: member -> (batch_start, batch_end), both included, ascending.

    The seed orders the round's trainers. They share `batch_size` samples, starting at `data_index`, as evenly
    as whole samples allow; the first trainers in that order take one more each if the division leaves a rest.
    Members with an empty share are left out. The map is empty in drain rounds (P2) and if nobody trains.
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
