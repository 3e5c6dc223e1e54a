"""Which samples each trainer of a round takes."""

from psyche.core.committee import get_roles
from psyche.core.enums import Role, RoundFlag
from psyche.core.shuffle import compute_shuffle
from psyche.core.state import Config, Round


def compute_assignments(round_: Round, config: Config) -> dict[int, tuple[int, int]]:
    """Member -> (batch_start, batch_end), sample indexes with both ends included, ascending.

    The round's trainers, shuffled by its seed, share `batch_size` samples from `data_index` on as
    evenly as whole samples allow; the first ones take the rest. Members whose share is zero are not
    in the map. Empty in drain rounds (P2) and where nobody trains.
    """
    if round_.flags & RoundFlag.DRAIN:
        return {}
    trainers = [member for member, role in get_roles(round_, config).items() if role is Role.TRAINER]
    if not trainers:
        return {}
    base, rest = divmod(round_.batch_size, len(trainers))
    assignments: dict[int, tuple[int, int]] = {}
    start = round_.data_index
    for k, member in enumerate(compute_shuffle(trainers, round_.random_seed)):
        share = base + (k < rest)
        if not share:
            break  # shares only shrink
        assignments[member] = (start, start + share - 1)
        start += share
    return assignments
