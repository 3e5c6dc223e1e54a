"""Who does what in a round: quorum, roles and witnesses (`docs/protocol-reference.md` 2.5 and 3.3).

Elections run over ranks: that of a member is the number of set bits below it in the round's
`members`, or in its `electors` where witnesses are elected (M10). With nobody gone and nobody on
probation rank and index are the same. Everything here is total: numbers that a
checked configuration cannot hold are clamped, for a tick must never fail (T2).
"""

import hashlib
from typing import Final

from psyche.core.committee.shuffle import compute_order
from psyche.core.state.bits import get_members
from psyche.core.state.enums import Role
from psyche.core.state.limits import MAX_WITNESSES
from psyche.core.state.state import Config, Round

COMMITTEE_SALT: Final = b"committee"
WITNESS_SALT: Final = b"witness"


def compute_quorum(n: int) -> int:
    """q(n): how many of `n` elected witnesses must agree.

    2q > n always, so two sets cannot both win. q(0) is 1: nobody is never a quorum.
    """
    return min(n, 2) if 0 < n < 4 else 2 * n // 3 + 1


def compute_liar_bound(n: int) -> int:
    """f(n): how many of `n` elected witnesses may lie without harm to what is decided (C2, C3, W6)."""
    return max(0, n - 1) // 3


def compute_witnesses_expected(witness_nodes: int, electors: int) -> int:
    """n of a round with this many electors; `witness_nodes` 0 means everybody, up to 32."""
    return min(witness_nodes or MAX_WITNESSES, electors, MAX_WITNESSES)


def get_ranks(members_bits: int) -> list[int]:
    """The member of each rank."""
    return get_members(members_bits)


def compute_election_seed(random_seed: int, salt: bytes) -> bytes:
    """The 32 bytes that order the ranks for one purpose: SHA-256(SHA-256(LE_u64(seed)) | salt)."""
    inner = hashlib.sha256(random_seed.to_bytes(8, "little")).digest()
    return hashlib.sha256(inner + salt).digest()


def _compute_member_order(candidates: int, random_seed: int, salt: bytes) -> list[int]:
    """The members of a bitmap by their position in the election of `salt`."""
    ranks = get_ranks(candidates)
    order = compute_order(len(ranks), compute_election_seed(random_seed, salt))
    return [ranks[rank] for rank in order]


def get_roles(round_: Round, config: Config) -> dict[int, Role]:
    """The role of every member of the round, in order of members.

    The first `tie_breaker_tasks` positions break ties, the next floor((m - T) * percent / 100)
    verify, the rest train.
    """
    by_position = _compute_member_order(round_.members, round_.random_seed, COMMITTEE_SALT)
    tie_breakers = min(round_.tie_breaker_tasks, len(by_position))
    verifiers = (len(by_position) - tie_breakers) * min(config.verification_percent, 100) // 100
    elected = dict.fromkeys(sorted(by_position), Role.TRAINER)
    for position, member in enumerate(by_position[: tie_breakers + verifiers]):
        elected[member] = Role.TIE_BREAKER if position < tie_breakers else Role.VERIFIER
    return elected


def is_witness(round_: Round, member: int) -> bool:
    """Whether the member is elected witness of the round; false for who does not take part."""
    return member in get_witnesses(round_)


def get_witnesses(round_: Round) -> list[int]:
    """The elected witnesses in order of their election position, `witnesses_expected` of them.

    Witnesses are elected among the electors (M10), apart from roles: they also train or verify.
    """
    return _compute_member_order(round_.electors, round_.random_seed, WITNESS_SALT)[: round_.witnesses_expected]
