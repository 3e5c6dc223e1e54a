"""Who does what in a round: quorum, roles and witnesses (`docs/protocol-reference.md` 2.5 and 3.3).

Elections run over the ranks of the round's `members` bitmap: rank = set bits below the member's
index. With nobody gone rank and index are the same. Everything here is total: numbers that a
checked configuration cannot hold are clamped, for a tick must never fail (T2).
"""

import hashlib
from typing import Final

from psyche.core.bits import get_members
from psyche.core.enums import Role
from psyche.core.errors import UnknownMember
from psyche.core.limits import MAX_WITNESSES
from psyche.core.shuffle import compute_order
from psyche.core.state import Config, Round

COMMITTEE_SALT: Final = b"committee"
WITNESS_SALT: Final = b"witness"


def compute_quorum(n: int) -> int:
    """q(n): how many of `n` elected witnesses must agree.

    2q > n always, so two sets cannot both win. q(0) is 1: nobody is never a quorum.
    """
    return min(n, 2) if 0 < n < 4 else 2 * n // 3 + 1


def compute_witnesses_expected(witness_nodes: int, members: int) -> int:
    """n of a round with this many members; `witness_nodes` 0 means everybody, up to 32."""
    return min(witness_nodes or MAX_WITNESSES, members, MAX_WITNESSES)


def get_ranks(members_bits: int) -> list[int]:
    """The member of each rank."""
    return get_members(members_bits)


def compute_election_seed(random_seed: int, salt: bytes) -> bytes:
    """The 32 bytes that order the ranks for one purpose: SHA-256(SHA-256(LE_u64(seed)) | salt)."""
    inner = hashlib.sha256(random_seed.to_bytes(8, "little")).digest()
    return hashlib.sha256(inner + salt).digest()


def _compute_member_order(round_: Round, salt: bytes) -> list[int]:
    """Members by their position in the election of `salt`."""
    ranks = get_ranks(round_.members)
    order = compute_order(len(ranks), compute_election_seed(round_.random_seed, salt))
    return [ranks[rank] for rank in order]


def get_roles(round_: Round, config: Config) -> dict[int, Role]:
    """The role of every member of the round, in order of members.

    The first `tie_breaker_tasks` positions break ties, the next floor((m - T) * percent / 100)
    verify, the rest train.
    """
    by_position = _compute_member_order(round_, COMMITTEE_SALT)
    tie_breakers = min(round_.tie_breaker_tasks, len(by_position))
    verifiers = (len(by_position) - tie_breakers) * min(config.verification_percent, 100) // 100
    elected = dict.fromkeys(sorted(by_position), Role.TRAINER)
    for position, member in enumerate(by_position[: tie_breakers + verifiers]):
        elected[member] = Role.TIE_BREAKER if position < tie_breakers else Role.VERIFIER
    return elected


def get_role(round_: Round, config: Config, member: int) -> Role:
    """The role of one member.

    Raises:
        UnknownMember: it does not take part in the round.
    """
    if not _is_member(round_, member):
        raise UnknownMember(f"member {member} does not take part in round {round_.height}")
    return get_roles(round_, config)[member]


def _is_member(round_: Round, member: int) -> bool:
    return member >= 0 and bool(round_.members >> member & 1)


def is_witness(round_: Round, member: int) -> bool:
    """Whether the member is elected witness of the round; false for who does not take part."""
    return member in get_witnesses(round_)


def get_witnesses(round_: Round) -> list[int]:
    """The elected witnesses in order of their election position, `witnesses_expected` of them.

    Witnesses are elected apart from roles: they also train or verify.
    """
    return _compute_member_order(round_, WITNESS_SALT)[: round_.witnesses_expected]
